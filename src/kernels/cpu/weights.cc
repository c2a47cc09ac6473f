#include "tandem/kernels/cpu/weights.h"

#include <array>

#include "tandem/core/check.h"
#include "tandem/formats/mapped_file.h"

namespace tandem::kernels::cpu {
namespace {

/// Rows of tables up to this size are read into a buffer; the largest released has 43 KiB.
constexpr std::size_t kMaxRowBytes = std::size_t{64} << 10;

}  // namespace

core::Result<std::unique_ptr<Weight>> VectorWeight::create(const WeightView& view) {
  auto weight = std::make_unique<VectorWeight>();
  weight->cols_ = view.rows() * view.cols();
  TANDEM_ASSIGN(weight->memory_,
                core::Arena::reserve(static_cast<std::size_t>(weight->cols_) * sizeof(float),
                                     /*huge_pages=*/false));
  float* dst = weight->memory_.as<float>();
  for (std::int64_t r = 0; r < view.rows(); ++r) {
    view.values(r, {dst + r * view.cols(), static_cast<std::size_t>(view.cols())});
  }
  return std::unique_ptr<Weight>(std::move(weight));
}

void TableWeight::gather_row(std::int64_t r, float* dst) const {
  const std::span<float> values(dst, static_cast<std::size_t>(view_.cols()));
  std::array<std::byte, kMaxRowBytes> bytes;
  WeightView row = view_.slice(r, 1);
  const std::size_t size = row.tensor.bytes();
  // If the file is shorter by now, its mapping says so.
  if (view_.file != nullptr && size <= bytes.size() &&
      view_.file->read({row.tensor.data, size}, bytes.data())) {
    row.tensor.data = bytes.data();
  }
  row.values(0, values);
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

std::span<const TokenId> token_ids(const Weight* w) {
  const auto* ids = dynamic_cast<const TokenIdsWeight*>(w);
  TANDEM_CHECK(ids != nullptr, "the token ids of this operation are missing");
  return ids->ids();
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
