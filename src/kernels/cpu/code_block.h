#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tandem/core/dtype.h"

namespace tandem::kernels::cpu {

/// One block of a quantized row as integers and its float scales. Element k of the block has the
/// value d * scales[k / 16] * codes[k] - dmin * mins[k / 16].
struct CodeBlock {
  std::array<std::int16_t, 256> codes = {};
  std::array<std::int16_t, 16> scales = {};
  std::array<std::int16_t, 16> mins = {};
  float d = 0.0F;
  float dmin = 0.0F;
  bool has_mins = false;
  /// NVFP4: scales that are no integers, of 16 columns each.
  std::array<float, 2> half_scales = {};
  bool has_half_scales = false;
};

/// Reads a block in the file's layout (spec/formats.md section 3), or in that of fp4.h. CHECKs that
/// the type is one of Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K..Q6_K IQ4_NL IQ4_XS NVFP4 MXFP4.
CodeBlock read_code_block(core::DType dtype, const std::byte* block);

}  // namespace tandem::kernels::cpu
