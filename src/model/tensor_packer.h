#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tandem/core/status.h"
#include "tandem/kernels/backend.h"
#include "tandem/model/model_files.h"
#include "tandem/model/weights.h"

namespace tandem::model {

/// Finds weights by role, checks their shapes and hands them to the backend. Failures are
/// one sentence that names path and tensor: kDataLoss for one that is missing or has another shape
/// or type than asked for, else the backend's. All arguments must outlive the packer.
class TensorPacker {
 public:
  TensorPacker(const ModelFiles& files, kernels::Backend& backend, WeightStorage& storage)
      : files_(files), backend_(backend), storage_(storage) {}

  bool has(TensorKey key) const;

  /// A vector [n] of a plain type.
  core::Status vector(TensorKey key, int n, const kernels::Weight*& out);
  /// A matrix [rows, cols] of any type that the backend can run.
  core::Status matrix(TensorKey key, std::int64_t rows, std::int64_t cols, kernels::WeightRole use,
                      const kernels::Weight*& out);
  core::Status linear(TensorKey key, std::int64_t rows, std::int64_t cols,
                      const kernels::Weight*& out) {
    return matrix(key, rows, cols, kernels::WeightRole::kLinear, out);
  }
  /// One value of a plain type; `out` stays as it is if the files have none.
  core::Status optional_scalar(TensorKey key, float& out);

  /// A weight of any rank with rows x cols values in all, not packed yet.
  core::Result<kernels::WeightView> find(TensorKey key, std::int64_t rows, std::int64_t cols) const;
  /// Rows of a matrix with `cols` columns; the files alone know how many. At least 1.
  core::Result<int> count_rows(TensorKey key, std::int64_t cols) const;
  /// Packs a view, which may be part of the tensor named by `key`.
  core::Status pack(TensorKey key, const kernels::WeightView& view, kernels::WeightRole use,
                    const kernels::Weight*& out);

  core::Status error(std::string_view message) const;

 private:
  core::Status check_plain(const std::string& name, const core::TensorView& view) const;

  const ModelFiles& files_;
  kernels::Backend& backend_;
  WeightStorage& storage_;
};

}  // namespace tandem::model
