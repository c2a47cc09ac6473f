#include "tandem/kernels/cpu/simd/lanes_avx512.h"
#include "tandem/kernels/cpu/simd/row_kernels_impl.h"

namespace tandem::kernels::cpu {

extern const RowKernels kAvx512RowKernels;
const RowKernels kAvx512RowKernels = RowKernelsOf<Avx512Lanes>::table("avx512");

}  // namespace tandem::kernels::cpu
