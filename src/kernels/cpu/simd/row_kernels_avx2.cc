#include "tandem/kernels/cpu/simd/lanes_avx2.h"
#include "tandem/kernels/cpu/simd/row_kernels_impl.h"

namespace tandem::kernels::cpu {

extern const RowKernels kAvx2RowKernels;
const RowKernels kAvx2RowKernels = RowKernelsOf<Avx2Lanes>::table("avx2");

}  // namespace tandem::kernels::cpu
