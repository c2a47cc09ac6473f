#include "tandem/kernels/cpu/simd/lanes_scalar.h"
#include "tandem/kernels/cpu/simd/row_kernels_impl.h"

namespace tandem::kernels::cpu {

extern const RowKernels kScalarRowKernels;
const RowKernels kScalarRowKernels = RowKernelsOf<ScalarLanes>::table("scalar");

}  // namespace tandem::kernels::cpu
