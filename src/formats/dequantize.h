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

}  // namespace tandem::formats
