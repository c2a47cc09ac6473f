#pragma once

#include <cstddef>
#include <cstdint>

#include "tandem/core/dtype.h"

namespace tandem::formats {

/// True for the types that dequantize_row decodes.
bool can_dequantize(core::DType dtype);

/// dst[0..elements) = the f32 values of a row of `elements` (whole blocks) at src, which may be
/// misaligned. Plain scalar code, spec/formats.md section 3: the oracle for every fast path.
/// CHECKs can_dequantize(dtype).
void dequantize_row(core::DType dtype, const std::byte* src, std::int64_t elements, float* dst);

/// dst[0..elements) = E2M1 values of the codes at src, two a byte, the lower half first (the
/// packing of NVFP4 safetensors, not of GGUF blocks). `elements` is even.
void decode_e2m1_pairs(const std::byte* src, std::int64_t elements, float* dst);

/// The value of an E4M3 code: 1-4-3 bits, bias 7, no infinity; 0x7F and 0xFF are not numbers.
float e4m3_to_f32(std::uint8_t code);
/// The code nearest to x, ties to even; magnitudes above 464, and NaN, give NaN.
std::uint8_t f32_to_e4m3(float x);

}  // namespace tandem::formats
