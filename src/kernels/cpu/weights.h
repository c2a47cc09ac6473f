#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tandem/core/buffer.h"
#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/kernels/backend.h"
#include "tandem/kernels/cpu/matmul.h"

namespace tandem::kernels::cpu {

/// A vector of f32, for norms and other elementwise factors.
class VectorWeight final : public Weight {
 public:
  static core::Result<std::unique_ptr<Weight>> create(const WeightView& view);
  std::int64_t rows() const override { return 1; }
  std::int64_t cols() const override { return cols_; }
  std::size_t bytes() const override { return memory_.size(); }
  const float* data() const { return memory_.as<float>(); }

 private:
  core::Arena memory_;
  std::int64_t cols_ = 0;
};

/// A table that stays in its file; rows are read and decoded when they are asked for.
class TableWeight final : public Weight {
 public:
  explicit TableWeight(const WeightView& view) : view_(view) {}
  std::int64_t rows() const override { return view_.rows(); }
  std::int64_t cols() const override { return view_.cols(); }
  std::size_t bytes() const override { return 0; }
  /// dst[0..cols) = row r.
  void gather_row(std::int64_t r, float* dst) const;

 private:
  WeightView view_;
};

/// Token ids, for the centroid head.
class TokenIdsWeight final : public Weight {
 public:
  explicit TokenIdsWeight(std::vector<TokenId> ids) : ids_(std::move(ids)) {}
  std::int64_t rows() const override { return 1; }
  std::int64_t cols() const override { return static_cast<std::int64_t>(ids_.size()); }
  std::size_t bytes() const override { return ids_.size() * sizeof(TokenId); }
  std::span<const TokenId> ids() const { return ids_; }

 private:
  std::vector<TokenId> ids_;
};

/// The weight as what its role made it. CHECKs that it is there and of that kind.
const float* vector_data(const Weight* w, std::int64_t size);
const PackedMatrix& matrix(const Weight* w);
std::span<const TokenId> token_ids(const Weight* w);

/// Rows of a table of either role.
class Gatherer {
 public:
  explicit Gatherer(const Weight* w);
  void operator()(TokenId token, float* dst) const;
  int cols() const;

 private:
  const TableWeight* table_ = nullptr;
  const PackedMatrix* packed_ = nullptr;
};

}  // namespace tandem::kernels::cpu
