#include "tandem/kernels/cpu/simd/attention_int8_impl.h"
#include "tandem/kernels/cpu/simd/code_lanes_avx512.h"
#include "tandem/kernels/cpu/simd/products_impl.h"
#include "tandem/kernels/cpu/simd/quantize_impl.h"

namespace tandem::kernels::cpu {

const IsaKernels kAvx512Kernels = {
    Quantizer<Avx512Codes>::quantize_row, Quantizer<Avx512Codes>::round_e4m3,
    Products<Avx512Codes>::matmul, Int8Attention<Avx512Codes>::attend};

}  // namespace tandem::kernels::cpu
