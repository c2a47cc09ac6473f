#include "tandem/kernels/reference/reference_weight.h"

#include <algorithm>
#include <utility>

#include "tandem/core/check.h"

namespace tandem::kernels::reference {

core::Result<std::unique_ptr<Weight>> ReferenceWeight::create(const WeightView& view,
                                                              WeightRole role, int vocab,
                                                              std::string_view name) {
  auto weight = std::make_unique<ReferenceWeight>();
  weight->view_ = view;
  if (role == WeightRole::kTokenIds) {
    TANDEM_ASSIGN(weight->ids_, read_token_ids(view, vocab, name));
  } else {
    TANDEM_TRY(view.check(name));
    if (role != WeightRole::kTable) TANDEM_TRY(weight->decode());
  }
  return std::unique_ptr<Weight>(std::move(weight));
}

core::Status ReferenceWeight::decode() {
  const std::size_t count = static_cast<std::size_t>(rows()) * static_cast<std::size_t>(cols());
  TANDEM_ASSIGN(values_, core::Arena::reserve(count * sizeof(float), true));
  const auto width = static_cast<std::size_t>(cols());
  const bool by_codes = view_.e4m3_group > 0;
  for (std::int64_t r = 0; r < rows(); ++r) {
    const std::span<float> row(values_.as<float>() + r * cols(), width);
    by_codes ? view_.codes(r, row) : view_.values(r, row);
  }
  if (!by_codes) return {};
  const std::int64_t weight_block = view_.scales.data == nullptr ? cols() : view_.scale_cols;
  scale_block_ = static_cast<int>(std::min<std::int64_t>(weight_block, view_.e4m3_group));
  TANDEM_CHECK(weight_block % scale_block_ == 0 && view_.e4m3_group % scale_block_ == 0,
               "scales of weights and of activations must divide a row alike");
  for (std::int64_t r = 0; r < rows(); ++r) {
    for (std::int64_t k = 0; k < cols(); k += scale_block_) {
      scales_.push_back(view_.scale(r, k) * view_.factor);
    }
  }
  return {};
}

void ReferenceWeight::multiply(const float* x, int num_rows, float* out) const {
  if (view_.e4m3_group == 0) return linear(matrix(), x, num_rows, out);
  const MatrixView input{x, num_rows, static_cast<int>(cols())};
  std::vector<float> codes(static_cast<std::size_t>(cols()));
  for (int r = 0; r < num_rows; ++r) multiply_e4m3(input.row(r), codes, out + r * rows());
}

/// y = sum over blocks of (sum of code products) * activation scale * weight scale.
void ReferenceWeight::multiply_e4m3(std::span<const float> x, std::span<float> codes,
                                    float* out) const {
  const auto group = static_cast<std::size_t>(view_.e4m3_group);
  const auto block = static_cast<std::size_t>(scale_block_);
  std::vector<float> x_scales;
  for (std::size_t k = 0; k < x.size(); k += group) {
    const std::size_t n = std::min(group, x.size() - k);
    x_scales.push_back(round_to_e4m3(x.subspan(k, n), codes.subspan(k, n)));
  }
  const MatrixView w = matrix();
  const float* scale = scales_.data();
  for (int n = 0; n < w.rows; ++n) {
    out[n] = 0.0F;
    for (std::size_t k = 0; k < x.size(); k += block, ++scale) {
      const std::size_t size = std::min(block, x.size() - k);
      out[n] +=
          dot(w.row(n).subspan(k, size), codes.subspan(k, size)) * x_scales[k / group] * *scale;
    }
  }
}

MatrixView ReferenceWeight::matrix() const {
  TANDEM_CHECK(values_.data() != nullptr, "this weight cannot be multiplied");
  return {values_.as<float>(), static_cast<int>(rows()), static_cast<int>(cols())};
}

std::span<const float> ReferenceWeight::vector() const {
  TANDEM_CHECK(values_.data() != nullptr, "this weight is not a vector");
  return {values_.as<float>(), static_cast<std::size_t>(rows() * cols())};
}

std::span<const TokenId> ReferenceWeight::token_ids() const {
  TANDEM_CHECK(!ids_.empty(), "this weight holds no token ids");
  return ids_;
}

void ReferenceWeight::gather(std::int64_t r, std::span<float> dst) const {
  TANDEM_CHECK(r >= 0 && r < rows() && static_cast<std::int64_t>(dst.size()) == cols(),
               "row or width outside the table");
  if (values_.data() == nullptr) return view_.values(r, dst);
  std::copy_n(values_.as<float>() + r * cols(), cols(), dst.begin());
}

}  // namespace tandem::kernels::reference
