#include "tandem/kernels/cpu/simd/attention_int8_impl.h"
#include "tandem/kernels/cpu/simd/code_lanes_neon.h"
#include "tandem/kernels/cpu/simd/products_impl.h"
#include "tandem/kernels/cpu/simd/quantize_impl.h"

namespace tandem::kernels::cpu {

const IsaKernels kNeonKernels = {Quantizer<NeonCodes>::quantize_row,
                                 Quantizer<NeonCodes>::round_e4m3, Products<NeonCodes>::matmul,
                                 Int8Attention<NeonCodes>::attend};

}  // namespace tandem::kernels::cpu
