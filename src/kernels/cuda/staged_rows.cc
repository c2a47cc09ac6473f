#include "tandem/kernels/cuda/staged_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "tandem/core/half.h"
#include "tandem/formats/dequantize.h"
#include "tandem/kernels/cuda/gemm.h"

namespace tandem::kernels::cuda {
namespace {

using core::DType;

constexpr std::int64_t kFactorCols = 128;  // of kF8
constexpr std::int64_t kScaleCols = 16;    // of kFp4
constexpr float kFactorUnit = 256.0F;      // of both: what the kernels' products are short of

bool is_fp4(DType dtype) {
  return dtype == DType::kU8 || dtype == DType::kNVFP4 || dtype == DType::kMXFP4;
}

/// One scale for all columns of a row, if any.
bool has_row_scales(const WeightView& view) {
  return view.scales.data == nullptr || view.scale_cols >= view.cols();
}

core::Status not_built(std::string_view name, const char* what) {
  return core::unimplemented(std::string(name) + ": " + what +
                             " is not built for CUDA; use --device cpu");
}

/// The e4m3 code of 2^p, 0 where it is too small. p <= 8.
std::uint8_t power_of_two_code(int p) {
  if (p < -9) return 0;
  return static_cast<std::uint8_t>(p >= -6 ? (p + 7) << 3 : 1 << (p + 9));
}

int code_of(const std::byte* bytes, int i) {
  return std::to_integer<int>(bytes[i]);
}

/// Exponents of a row of MXFP4 blocks.
int largest_exponent(const WeightView& view, std::int64_t row) {
  const std::byte* block = view.tensor.row(row);
  const int block_bytes = core::traits(DType::kMXFP4).block_bytes;
  int largest = 0;
  for (std::int64_t k = 0; k < view.cols(); k += 32, block += block_bytes) {
    largest = std::max(largest, code_of(block, 0));
  }
  return largest;
}

/// Puts two E2M1 codes for every pair of columns; `at(i)` is the code of column i of `count`.
template <typename At>
void put_pairs(int count, std::byte* to, At at) {
  for (int i = 0; i < count; i += 2) to[i / 2] = static_cast<std::byte>(at(i) | at(i + 1) << 4);
}

}  // namespace

core::Result<BrickKind> brick_kind(const WeightView& view, WeightRole role, std::string_view name) {
  const DType dtype = view.tensor.dtype;
  if (view.e4m3_group > 0 && view.e4m3_group < view.cols() && view.e4m3_group != kFactorCols) {
    return not_built(name, "rounding of activations in such groups");
  }
  if (dtype == DType::kF8E4M3) {
    const bool is_plain = has_row_scales(view) && input_form(view) == InputForm::kE4m3Rows;
    if (is_plain && role == WeightRole::kLinear && has_wgmma()) return BrickKind::kE4m3;
    if (has_row_scales(view) || view.scale_cols % kFactorCols == 0) return BrickKind::kF8;
    return not_built(name, "FP8 with scales of fewer than 128 columns");
  }
  if (dtype == DType::kU8) {
    const bool is_nvfp4 = view.scales.dtype == DType::kF8E4M3 && view.scale_rows == 1 &&
                          view.scale_cols == kScaleCols && view.cols() % kScaleCols == 0;
    if (is_nvfp4) return BrickKind::kFp4;
    return not_built(name, "E2M1 with other scales than an E4M3 for each 16 columns");
  }
  if (!has_row_scales(view)) return BrickKind::kF16;
  switch (dtype) {
    case DType::kQ4_K:
      return BrickKind::kQ4K;
    case DType::kQ6_K:
      return BrickKind::kQ6K;
    case DType::kQ8_0:
    case DType::kQ5_0:
    case DType::kQ4_0:
    case DType::kIQ4_NL:
      return BrickKind::kQ8;
    case DType::kNVFP4:
    case DType::kMXFP4:
      return BrickKind::kFp4;
    default:
      return BrickKind::kF16;
  }
}

InputForm input_form(const WeightView& view) {
  if (view.e4m3_group == 0) return InputForm::kHalf;
  return view.e4m3_group < view.cols() ? InputForm::kE4m3Blocks : InputForm::kE4m3Rows;
}

StagedRows::StagedRows(const WeightView& view, BrickKind kind)
    : view_(view), kind_(kind), dtype_(view.tensor.dtype) {
  const std::int64_t cols = view.cols();
  const bool is_float = dtype_ == DType::kF32 || dtype_ == DType::kF16 || dtype_ == DType::kBF16;
  if (kind == BrickKind::kF8) {
    row_bytes_ = static_cast<std::size_t>(2 * ((cols + kFactorCols - 1) / kFactorCols) + cols);
  } else if (kind == BrickKind::kFp4) {
    row_bytes_ = static_cast<std::size_t>(cols / 2 + cols / kScaleCols);
  } else if (kind == BrickKind::kF16 && !(is_float && has_row_scales(view))) {
    dtype_ = DType::kF16;
    row_bytes_ = static_cast<std::size_t>(2 * cols);
    values_.resize(static_cast<std::size_t>(cols));
  } else {
    is_raw_ = true;
    row_bytes_ = core::row_bytes(dtype_, cols);
  }
}

const void* StagedRows::rows(std::int64_t first, std::int64_t count) {
  if (is_raw_) return view_.tensor.row(first);
  staged_.resize(row_bytes_ * static_cast<std::size_t>(count));
  for (std::int64_t r = 0; r < count; ++r) {
    stage(first + r, staged_.data() + static_cast<std::size_t>(r) * row_bytes_);
  }
  return staged_.data();
}

void StagedRows::stage(std::int64_t row, std::byte* to) {
  switch (kind_) {
    case BrickKind::kF8:
      return stage_f8(row, to);
    case BrickKind::kFp4:
      return stage_fp4(row, to);
    default:
      return stage_half(row, to);
  }
}

void StagedRows::stage_f8(std::int64_t row, std::byte* to) {
  const std::int64_t cols = view_.cols();
  float largest = 0.0F;
  const std::int64_t step = has_row_scales(view_) ? cols : kFactorCols;
  for (std::int64_t k = 0; k < cols; k += step) {
    largest = std::max(largest, std::fabs(view_.scale(row, k)));
  }
  float factor = kFactorUnit;
  for (std::int64_t k = 0; k < cols; k += kFactorCols, to += 2) {
    if (step < cols) {
      factor = largest > 0.0F ? view_.scale(row, k) / largest * kFactorUnit : 0.0F;
    }
    const std::uint16_t half = core::f32_to_f16(factor);
    std::memcpy(to, &half, sizeof half);
  }
  std::memcpy(to, view_.tensor.row(row), static_cast<std::size_t>(cols));
}

void StagedRows::stage_fp4(std::int64_t row, std::byte* to) const {
  const auto cols = static_cast<int>(view_.cols());
  const std::byte* block = view_.tensor.row(row);
  std::byte* scales = to + cols / 2;
  if (dtype_ == DType::kU8) {
    std::memcpy(to, block, static_cast<std::size_t>(cols / 2));
    const std::int64_t per_row = cols / kScaleCols;
    std::memcpy(scales, view_.scales.data + row * per_row, static_cast<std::size_t>(per_row));
    return;
  }
  const int block_bytes = core::traits(dtype_).block_bytes;
  if (dtype_ == DType::kMXFP4) {
    const int largest = largest_exponent(view_, row);
    for (int k = 0; k < cols; k += 32, block += block_bytes, to += 16) {
      put_pairs(32, to, [&](int i) { return code_of(block, 1 + i % 16) >> (i / 16 * 4) & 15; });
      const std::uint8_t scale = power_of_two_code(code_of(block, 0) - largest + 8);
      *scales++ = static_cast<std::byte>(scale);
      *scales++ = static_cast<std::byte>(scale);
    }
    return;
  }
  for (int k = 0; k < cols; k += 64, block += block_bytes) {
    for (int s = 0; s < 4; ++s, to += 8) {
      put_pairs(16, to,
                [&](int i) { return code_of(block, 4 + 8 * s + i % 8) >> (i / 8 * 4) & 15; });
      const int scale = code_of(block, s) & 0x7f;
      *scales++ = static_cast<std::byte>(scale == 0x7f ? 0 : scale);
    }
  }
}

void StagedRows::stage_half(std::int64_t row, std::byte* to) {
  if (has_row_scales(view_)) {
    view_.codes(row, values_);
  } else {
    view_.values(row, values_);
  }
  for (const float value : values_) {
    const std::uint16_t half = core::f32_to_f16(value);
    std::memcpy(to, &half, sizeof half);
    to += sizeof half;
  }
}

std::vector<float> StagedRows::row_scales() const {
  const bool in_values = kind_ == BrickKind::kF16 && !has_row_scales(view_);
  if (in_values || (kind_ != BrickKind::kFp4 && !view_.is_scaled())) return {};
  std::vector<float> scales;
  for (std::int64_t n = 0; n < view_.rows(); ++n) {
    float scale = 1.0F;
    if (dtype_ == DType::kMXFP4) {
      scale = std::ldexp(view_.scale(n, 0), largest_exponent(view_, n) - 127);
    } else if (dtype_ == DType::kU8) {
      scale = kFactorUnit;
    } else if (has_row_scales(view_)) {
      scale = view_.scale(n, 0) * (is_fp4(dtype_) ? kFactorUnit : 1.0F);
    } else {
      scale = 0.0F;  // F8 by blocks, relative to the largest
      for (std::int64_t k = 0; k < view_.cols(); k += kFactorCols) {
        scale = std::max(scale, std::fabs(view_.scale(n, k)));
      }
    }
    scales.push_back(scale * view_.factor);
  }
  return scales;
}

}  // namespace tandem::kernels::cuda
