#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tandem/core/status.h"
#include "tandem/kernels/weight.h"

namespace tandem::kernels::cpu {

/// NVFP4 and MXFP4 of all files in one form before they are packed: blocks of 32 columns, two bytes
/// of scales and 16 bytes of E2M1 codes, that of column j < 16 in the low half of byte j, that of
/// column j + 16 in the high half. The scales are two unsigned E4M3 codes, each for 16 columns
/// (NVFP4), or a bf16 (MXFP4); a value is twice its E2M1 value times half the scale.
inline constexpr std::size_t kFp4BlockBytes = 18;
using Fp4Block = std::array<std::uint8_t, kFp4BlockBytes>;

/// The dtype that a weight's panels have: kNVFP4 for pairs of E2M1 codes (U8), else its own.
core::DType panel_dtype(const WeightView& view);
/// Whether the weight is in one of these forms.
bool is_fp4(const WeightView& view);
/// Rows of whole blocks, and scales that have a place in them.
core::Status check_fp4(const WeightView& view, std::string_view name);
/// Block `block` of row `row`.
Fp4Block fp4_block(const WeightView& view, std::int64_t row, int block);

/// The doubled E2M1 value of a column.
int fp4_code(const Fp4Block& block, int column);
/// Half the scale of a column.
float fp4_half_scale(core::DType dtype, const Fp4Block& block, int column);

}  // namespace tandem::kernels::cpu
