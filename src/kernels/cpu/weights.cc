#include "tandem/kernels/cpu/weights.h"

#include <string>
#include <utility>

#include "tandem/core/check.h"
#include "tandem/formats/dequantize.h"

namespace tandem::kernels::cpu {
namespace {

core::Status check_decodable(const core::TensorView& view, std::string_view name) {
  if (formats::can_dequantize(view.dtype)) return {};
  return core::unimplemented("tensor " + std::string(name) + " has type " +
                             std::string(core::name(view.dtype)) +
                             ", which the CPU backend cannot read; convert the model to another "
                             "quantization");
}

}  // namespace

core::Result<std::unique_ptr<Weight>> VectorWeight::create(const core::TensorView& view,
                                                           std::string_view name) {
  TANDEM_TRY(check_decodable(view, name));
  auto weight = std::make_unique<VectorWeight>();
  weight->cols_ = view.elements();
  TANDEM_ASSIGN(weight->memory_,
                core::Arena::reserve(static_cast<std::size_t>(weight->cols_) * sizeof(float),
                                     /*huge_pages=*/false));
  float* dst = weight->memory_.as<float>();
  for (std::int64_t r = 0; r < view.rows(); ++r) {
    formats::dequantize_row(view.dtype, view.row(r), view.cols(), dst + r * view.cols());
  }
  return std::unique_ptr<Weight>(std::move(weight));
}

core::Result<std::unique_ptr<Weight>> TableWeight::create(const core::TensorView& view,
                                                          std::string_view name) {
  TANDEM_TRY(check_decodable(view, name));
  return std::unique_ptr<Weight>(new TableWeight(view));
}

void TableWeight::gather_row(std::int64_t r, float* dst) const {
  formats::dequantize_row(view_.dtype, view_.row(r), view_.cols(), dst);
}

const float* vector_data(const Weight* w, std::int64_t size) {
  const auto* vector = dynamic_cast<const VectorWeight*>(w);
  TANDEM_CHECK(vector != nullptr && vector->cols() == size,
               "a vector weight of this operation is missing or has another size");
  return vector->data();
}

const PackedMatrix& matrix(const Weight* w) {
  const auto* packed = dynamic_cast<const PackedMatrix*>(w);
  TANDEM_CHECK(packed != nullptr, "a linear weight of this operation is missing");
  return *packed;
}

Gatherer::Gatherer(const Weight* w)
    : table_(dynamic_cast<const TableWeight*>(w)), packed_(dynamic_cast<const PackedMatrix*>(w)) {
  TANDEM_CHECK(table_ != nullptr || packed_ != nullptr, "a table of this operation is missing");
}

void Gatherer::operator()(TokenId token, float* dst) const {
  if (table_ != nullptr) {
    table_->gather_row(token, dst);
  } else {
    packed_->gather_row(token, dst);
  }
}

int Gatherer::cols() const {
  return static_cast<int>(table_ != nullptr ? table_->cols() : packed_->cols());
}

}  // namespace tandem::kernels::cpu
