#pragma once

#include <utility>

#include "tandem/core/units.h"
#include "tandem/kernels/cuda/host_table.h"
#include "tandem/kernels/cuda/pack.h"
#include "tandem/kernels/weight.h"

namespace tandem::kernels::cuda {

/// A weight: bricks of a matrix, f32 values of a vector or token ids in device memory, or a table
/// in host memory.
class CudaWeight final : public Weight {
 public:
  explicit CudaWeight(PackedMatrix matrix) : packed_(std::move(matrix)) {}
  CudaWeight(WeightBuffer vector, int size) {
    packed_.bricks = std::move(vector);
    packed_.view.rows = 1;
    packed_.view.cols = size;
  }
  CudaWeight(HostTable table, int rows, int cols) : table_(std::move(table)) {
    packed_.view.rows = rows;
    packed_.view.cols = cols;
  }

  std::int64_t rows() const override { return packed_.view.rows; }
  std::int64_t cols() const override { return packed_.view.cols; }
  std::size_t bytes() const override {
    return packed_.bricks.size() + packed_.row_scales.size() + table_.bytes();
  }
  const MatrixView& matrix() const { return packed_.view; }
  const float* vector() const { return packed_.bricks.as<float>(); }
  const TokenId* token_ids() const { return packed_.bricks.as<TokenId>(); }
  /// Null rows: the weight is in device memory.
  const HostRows& host_rows() const { return table_.rows(); }

 private:
  PackedMatrix packed_;
  HostTable table_;
};

}  // namespace tandem::kernels::cuda
