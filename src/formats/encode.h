#pragma once

#include <cstddef>
#include <span>

#include "tandem/core/dtype.h"

namespace tandem::formats {

/// Writes a row in the layout of F32, F16, BF16 or Q8_0 (CHECK) to dst, which must have
/// row_bytes(dtype, src.size()). Rounds to nearest; the inverse of dequantize_row where the values
/// can be represented.
void encode_row(core::DType dtype, std::span<const float> src, std::byte* dst);

/// FP8-Dynamic weights, spec/formats.md section 6: codes[i] = e4m3(src[i] / scale). Returns the
/// scale of the row, max|src| / 448 rounded to bf16, or 1 for a row of zeros.
float encode_e4m3_row(std::span<const float> src, std::byte* codes);

}  // namespace tandem::formats
