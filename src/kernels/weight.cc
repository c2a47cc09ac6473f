#include "tandem/kernels/weight.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "tandem/core/check.h"
#include "tandem/core/checked_math.h"
#include "tandem/formats/dequantize.h"
#include "tandem/formats/little_endian.h"

namespace tandem::kernels {
namespace {

using core::DType;

bool has_float_values(DType dtype) {
  return dtype == DType::kU8 || formats::can_dequantize(dtype);
}

core::Status bad_dtype(std::string_view name, std::string_view part, DType dtype) {
  return core::unimplemented("tensor '" + std::string(name) + "'" + std::string(part) +
                             " has type " + std::string(core::name(dtype)) +
                             ", which cannot be used as a weight; convert it to another type");
}

}  // namespace

WeightView WeightView::slice(std::int64_t first, std::int64_t count) const {
  TANDEM_CHECK(first >= 0 && count >= 0 && first + count <= rows(), "rows outside the weight");
  WeightView part = *this;
  part.tensor.rank = 2;
  part.tensor.shape = {count, tensor.cols(), 1, 1};
  part.tensor.data = tensor.row(first);
  if (scales.data == nullptr) return part;
  const std::int64_t per_row = core::ceil_div(cols(), scale_cols);
  const std::int64_t skipped = (first_row + first) / scale_rows;
  part.first_row = (first_row + first) % scale_rows;
  part.scales.rank = 2;
  part.scales.shape = {core::ceil_div(part.first_row + count, scale_rows), per_row, 1, 1};
  part.scales.data =
      scales.data + skipped * static_cast<std::int64_t>(core::row_bytes(scales.dtype, per_row));
  return part;
}

core::Status WeightView::check(std::string_view name) const {
  if (!has_float_values(tensor.dtype)) return bad_dtype(name, "", tensor.dtype);
  if (tensor.dtype == DType::kU8 && scales.data == nullptr) {
    return bad_dtype(name, " (which has no scales)", tensor.dtype);
  }
  if (!std::isfinite(factor)) {
    return core::data_loss("tensor '" + std::string(name) +
                           "' has a scale that is not finite; "
                           "the file is damaged, get it again");
  }
  if (scales.data == nullptr) return {};
  if (core::is_block_quantized(scales.dtype) || !formats::can_dequantize(scales.dtype)) {
    return bad_dtype(name, ": its scale", scales.dtype);
  }
  TANDEM_CHECK(scale_rows > 0 && scale_cols > 0, "scales without the size of their blocks");
  const std::int64_t expected =
      core::ceil_div(first_row + rows(), scale_rows) * core::ceil_div(cols(), scale_cols);
  if (scales.elements() == expected) return {};
  return core::data_loss("tensor '" + std::string(name) + "' of " + std::to_string(rows()) + " x " +
                         std::to_string(cols()) + " values has " +
                         std::to_string(scales.elements()) + " scales, expected " +
                         std::to_string(expected) + "; the file is damaged, get it again");
}

float WeightView::scale(std::int64_t n, std::int64_t k) const {
  if (scales.data == nullptr) return 1.0F;
  const std::int64_t index =
      (first_row + n) / scale_rows * core::ceil_div(cols(), scale_cols) + k / scale_cols;
  const auto size = static_cast<std::int64_t>(core::row_bytes(scales.dtype, 1));
  float value = 0.0F;
  formats::dequantize_row(scales.dtype, scales.data + index * size, 1, &value);
  return value;
}

void WeightView::codes(std::int64_t n, std::span<float> dst) const {
  TANDEM_CHECK(static_cast<std::int64_t>(dst.size()) == cols(), "a row has cols() values");
  if (tensor.dtype == DType::kU8) {
    formats::decode_e2m1_pairs(tensor.row(n), cols(), dst.data());
  } else {
    formats::dequantize_row(tensor.dtype, tensor.row(n), cols(), dst.data());
  }
}

void WeightView::values(std::int64_t n, std::span<float> dst) const {
  codes(n, dst);
  if (!is_scaled()) return;
  const std::int64_t width = scales.data == nullptr ? cols() : scale_cols;
  for (std::int64_t begin = 0; begin < cols(); begin += width) {
    const float block_scale = scale(n, begin);
    for (std::int64_t k = begin; k < std::min(cols(), begin + width); ++k) {
      float& value = dst[static_cast<std::size_t>(k)];
      value = value * block_scale * factor;
    }
  }
}

core::Result<std::vector<TokenId>> read_token_ids(const WeightView& view, int vocab,
                                                  std::string_view name) {
  const core::TensorView& tensor = view.tensor;
  if (tensor.dtype != DType::kI32 && tensor.dtype != DType::kI64) {
    return core::unimplemented("tensor '" + std::string(name) + "' has type " +
                               std::string(core::name(tensor.dtype)) +
                               ", but token ids are I32 or I64");
  }
  std::vector<TokenId> ids(static_cast<std::size_t>(tensor.elements()));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t id = tensor.dtype == DType::kI32
                                ? formats::load<std::int32_t>(tensor.data + 4 * i)
                                : formats::load<std::int64_t>(tensor.data + 8 * i);
    if (id < 0 || id >= vocab) {
      return core::data_loss("tensor '" + std::string(name) + "' holds token " +
                             std::to_string(id) + ", but the vocabulary has " +
                             std::to_string(vocab) + "; the file is damaged, get it again");
    }
    ids[i] = static_cast<TokenId>(id);
  }
  return ids;
}

}  // namespace tandem::kernels
