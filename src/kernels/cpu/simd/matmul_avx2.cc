#include "tandem/kernels/cpu/simd/attention_int8_impl.h"
#include "tandem/kernels/cpu/simd/code_lanes_avx2.h"
#include "tandem/kernels/cpu/simd/products_impl.h"
#include "tandem/kernels/cpu/simd/quantize_impl.h"

namespace tandem::kernels::cpu {

const IsaKernels kAvx2Kernels = {Quantizer<Avx2Codes>::quantize_row,
                                 Quantizer<Avx2Codes>::round_e4m3, Products<Avx2Codes>::matmul,
                                 Int8Attention<Avx2Codes>::attend};

}  // namespace tandem::kernels::cpu
