#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "tandem/core/buffer.h"
#include "tandem/core/status.h"
#include "tandem/core/tensor.h"
#include "tandem/kernels/backend.h"
#include "tandem/kernels/reference/reference_ops.h"

namespace tandem::kernels::reference {

/// A weight as f32, or for WeightRole::kTable the view it came from, of which single rows are
/// dequantized on demand.
class ReferenceWeight final : public Weight {
 public:
  /// Fails with kUnimplemented for a dtype that has no dequantizer, kResourceExhausted for memory.
  static core::Result<std::unique_ptr<Weight>> create(const core::TensorView& view, WeightRole role,
                                                      std::string_view name);

  std::int64_t rows() const override { return view_.rows(); }
  std::int64_t cols() const override { return view_.cols(); }
  std::size_t bytes() const override { return values_.size(); }

  /// All values; not for kTable (CHECK).
  MatrixView matrix() const;
  /// All values of a vector; not for kTable (CHECK).
  std::span<const float> vector() const;
  /// dst[0..cols) = row r.
  void gather(std::int64_t r, std::span<float> dst) const;

 private:
  core::TensorView view_;  // of kTable alone, `data` is read after creation
  core::Arena values_;
};

}  // namespace tandem::kernels::reference
