#include "tandem/kernels/cpu/simd/row_kernels.h"

namespace tandem::kernels::cpu {

extern const RowKernels kScalarRowKernels;
#if defined(__x86_64__)
extern const RowKernels kAvx2RowKernels;
extern const RowKernels kAvx512RowKernels;
#elif defined(__aarch64__)
extern const RowKernels kNeonRowKernels;
#endif

const RowKernels* row_kernels(std::string_view isa) {
  if (isa == "scalar") return &kScalarRowKernels;
#if defined(__x86_64__)
  if (isa == "avx2") return &kAvx2RowKernels;
  if (isa == "avx512") return &kAvx512RowKernels;
#elif defined(__aarch64__)
  if (isa == "neon") return &kNeonRowKernels;
#endif
  return nullptr;
}

}  // namespace tandem::kernels::cpu
