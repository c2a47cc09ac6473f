#include "tandem/kernels/cpu/simd/lanes_neon.h"
#include "tandem/kernels/cpu/simd/row_kernels_impl.h"

namespace tandem::kernels::cpu {

extern const RowKernels kNeonRowKernels;
const RowKernels kNeonRowKernels = RowKernelsOf<NeonLanes>::table("neon");

}  // namespace tandem::kernels::cpu
