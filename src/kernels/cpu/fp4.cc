#include "tandem/kernels/cpu/fp4.h"

#include <string>

#include "tandem/core/half.h"
#include "tandem/formats/dequantize.h"

namespace tandem::kernels::cpu {
namespace {

using core::DType;

constexpr std::array<int, 16> kDoubledE2m1 = {0, 1,  2,  3,  4,  6,  8,  12,
                                              0, -1, -2, -3, -4, -6, -8, -12};
constexpr std::int64_t kNvfp4Group = 16;

std::uint8_t byte_at(const std::byte* p, std::int64_t i) {
  return std::to_integer<std::uint8_t>(p[i]);
}

/// An unsigned E4M3 scale; what is not a number counts as 0 (spec/formats.md section 3).
std::uint8_t clean_scale(std::uint8_t code) {
  const auto magnitude = static_cast<std::uint8_t>(code & 0x7f);
  return magnitude == 0x7f ? 0 : magnitude;
}

/// The byte of two columns that are 16 apart, from the low or the high halves of theirs.
std::uint8_t low_halves(std::uint8_t first, std::uint8_t second) {
  return static_cast<std::uint8_t>((first & 15) | second << 4);
}
std::uint8_t high_halves(std::uint8_t first, std::uint8_t second) {
  return static_cast<std::uint8_t>(first >> 4 | (second & 0xf0));
}

/// Half of a GGUF block of 64: 4 scales, then 4 runs of 8 bytes whose low halves are columns 0..7
/// of 16, the high ones columns 8..15.
Fp4Block from_nvfp4(const std::byte* block, int half) {
  Fp4Block out = {};
  for (int group = 0; group < 2; ++group) {
    out[static_cast<std::size_t>(group)] = clean_scale(byte_at(block, 2 * half + group));
  }
  const std::byte* codes = block + 4 + 16 * half;
  for (std::size_t j = 0; j < 8; ++j) {
    const std::uint8_t first = byte_at(codes, static_cast<std::int64_t>(j));
    const std::uint8_t second = byte_at(codes, static_cast<std::int64_t>(8 + j));
    out[2 + j] = low_halves(first, second);
    out[10 + j] = high_halves(first, second);
  }
  return out;
}

/// An E8M0 exponent and 16 bytes of codes in the order of Fp4Block.
Fp4Block from_mxfp4(const std::byte* block) {
  Fp4Block out = {};
  const int e = byte_at(block, 0);
  // Half of 2^(e - 127), subnormal below e = 2.
  const int bf16 = e < 2 ? 0x20 << e : (e - 1) << 7;
  out[0] = static_cast<std::uint8_t>(bf16 & 255);
  out[1] = static_cast<std::uint8_t>(bf16 >> 8);
  for (std::size_t j = 0; j < 16; ++j) {
    out[2 + j] = byte_at(block, 1 + static_cast<std::int64_t>(j));
  }
  return out;
}

Fp4Block from_pairs(const WeightView& view, std::int64_t row, int block) {
  Fp4Block out = {};
  const std::byte* codes = view.tensor.row(row) + 16 * std::int64_t{block};
  const std::byte* scales =
      view.scales.data + row * (view.cols() / kNvfp4Group) + 2 * std::int64_t{block};
  for (int group = 0; group < 2; ++group) {
    out[static_cast<std::size_t>(group)] = clean_scale(byte_at(scales, group));
  }
  for (std::size_t i = 0; i < 8; ++i) {
    const std::uint8_t first = byte_at(codes, static_cast<std::int64_t>(i));
    const std::uint8_t second = byte_at(codes, static_cast<std::int64_t>(8 + i));
    out[2 + 2 * i] = low_halves(first, second);
    out[3 + 2 * i] = high_halves(first, second);
  }
  return out;
}

}  // namespace

DType panel_dtype(const WeightView& view) {
  return view.tensor.dtype == DType::kU8 ? DType::kNVFP4 : view.tensor.dtype;
}

bool is_fp4(const WeightView& view) {
  const DType dtype = panel_dtype(view);
  return dtype == DType::kNVFP4 || dtype == DType::kMXFP4;
}

core::Status check_fp4(const WeightView& view, std::string_view name) {
  if (view.tensor.dtype != DType::kU8) return {};
  const bool fits = view.cols() % 32 == 0 && view.scales.dtype == DType::kF8E4M3 &&
                    view.scale_rows == 1 && view.scale_cols == kNvfp4Group;
  if (!fits) {
    return core::unimplemented(
        "tensor " + std::string(name) +
        " is not NVFP4 with an E4M3 scale for each 16 columns and rows of whole 32 columns, which "
        "is what the CPU backend runs; choose the reference backend");
  }
  for (std::int64_t i = 0; i < view.scales.elements(); ++i) {
    if (byte_at(view.scales.data, i) < 0x7f) continue;
    return core::data_loss("tensor " + std::string(name) +
                           " has a group scale that is negative or not a number; the file is "
                           "damaged, get it again");
  }
  return {};
}

Fp4Block fp4_block(const WeightView& view, std::int64_t row, int block) {
  switch (view.tensor.dtype) {
    case DType::kU8:
      return from_pairs(view, row, block);
    case DType::kMXFP4:
      return from_mxfp4(view.tensor.row(row) + 17 * std::int64_t{block});
    default:
      return from_nvfp4(view.tensor.row(row) + 36 * std::int64_t{block / 2}, block % 2);
  }
}

int fp4_code(const Fp4Block& block, int column) {
  const std::uint8_t byte = block[static_cast<std::size_t>(2 + column % 16)];
  return kDoubledE2m1[static_cast<std::size_t>(column < 16 ? byte & 15 : byte >> 4)];
}

float fp4_half_scale(DType dtype, const Fp4Block& block, int column) {
  if (dtype == DType::kNVFP4) {
    return formats::e4m3_to_f32(block[static_cast<std::size_t>(column / 16)]) * 0.5F;
  }
  return core::bf16_to_f32(static_cast<std::uint16_t>(block[0] | block[1] << 8));
}

}  // namespace tandem::kernels::cpu
