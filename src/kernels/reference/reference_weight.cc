#include "tandem/kernels/reference/reference_weight.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tandem/core/check.h"
#include "tandem/formats/dequantize.h"

namespace tandem::kernels::reference {

core::Result<std::unique_ptr<Weight>> ReferenceWeight::create(const core::TensorView& view,
                                                              WeightRole role,
                                                              std::string_view name) {
  if (!formats::can_dequantize(view.dtype)) {
    return core::unimplemented("tensor '" + std::string(name) + "' has type " +
                               std::string(core::name(view.dtype)) +
                               ", which cannot be used as a weight; convert it to another type");
  }
  auto weight = std::make_unique<ReferenceWeight>();
  weight->view_ = view;
  if (role != WeightRole::kTable) {
    const std::size_t bytes = static_cast<std::size_t>(view.elements()) * sizeof(float);
    TANDEM_ASSIGN(weight->values_, core::Arena::reserve(bytes, true));
    for (std::int64_t r = 0; r < view.rows(); ++r) {
      formats::dequantize_row(view.dtype, view.row(r), view.cols(),
                              weight->values_.as<float>() + r * view.cols());
    }
  }
  return std::unique_ptr<Weight>(std::move(weight));
}

MatrixView ReferenceWeight::matrix() const {
  TANDEM_CHECK(values_.data() != nullptr, "a weight packed as kTable cannot be multiplied");
  return {values_.as<float>(), static_cast<int>(rows()), static_cast<int>(cols())};
}

std::span<const float> ReferenceWeight::vector() const {
  TANDEM_CHECK(values_.data() != nullptr, "a weight packed as kTable is not a vector");
  return {values_.as<float>(), static_cast<std::size_t>(view_.elements())};
}

void ReferenceWeight::gather(std::int64_t r, std::span<float> dst) const {
  TANDEM_CHECK(r >= 0 && r < rows() && static_cast<std::int64_t>(dst.size()) == cols(),
               "row or width outside the table");
  if (values_.data() == nullptr) {
    formats::dequantize_row(view_.dtype, view_.row(r), cols(), dst.data());
  } else {
    std::copy_n(values_.as<float>() + r * cols(), cols(), dst.begin());
  }
}

}  // namespace tandem::kernels::reference
