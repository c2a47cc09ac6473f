#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tandem/core/dtype.h"

namespace tandem::kernels::cpu {

/// One block of a quantized row as integers and its float scales. Element k of the block has the
/// value scales[k / 16] * codes[k] - mins[k / 16]. Both are products of the block's scale and an
/// integer, which f32 holds exactly.
struct CodeBlock {
  std::array<std::int16_t, 256> codes = {};
  std::array<float, 16> scales = {};
  std::array<float, 16> mins = {};
  bool has_mins = false;
  bool has_half_scales = false;  ///< of 16 columns each; else neighbours of a group of 32 are equal
};

/// Reads a block in the file's layout (spec/formats.md section 3), or in that of fp4.h. CHECKs that
/// the type is one of Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K..Q6_K IQ4_NL IQ4_XS NVFP4 MXFP4.
CodeBlock read_code_block(core::DType dtype, const std::byte* block);

}  // namespace tandem::kernels::cpu
