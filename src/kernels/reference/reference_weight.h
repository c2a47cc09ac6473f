#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tandem/core/buffer.h"
#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/kernels/backend.h"
#include "tandem/kernels/reference/reference_ops.h"

namespace tandem::kernels::reference {

/// A weight as f32, or for WeightRole::kTable the view it came from, of which single rows are
/// decoded on demand. With WeightView::e4m3_group the f32 values are the file's codes, and products
/// are summed and scaled block by block.
class ReferenceWeight final : public Weight {
 public:
  /// Token ids lie in [0, vocab). Fails as WeightView::check does, and with kResourceExhausted for
  /// memory.
  static core::Result<std::unique_ptr<Weight>> create(const WeightView& view, WeightRole role,
                                                      int vocab, std::string_view name);

  std::int64_t rows() const override { return view_.rows(); }
  std::int64_t cols() const override { return view_.cols(); }
  std::size_t bytes() const override { return values_.size() + scales_.size() * sizeof(float); }

  /// out[r, n] = row n . x[r]. x: [num_rows, cols], out: [num_rows, rows]. Not for kTable (CHECK).
  void multiply(const float* x, int num_rows, float* out) const;
  /// All values of a vector; not for kTable (CHECK).
  std::span<const float> vector() const;
  /// Ids of a weight packed as kTokenIds (CHECK).
  std::span<const TokenId> token_ids() const;
  /// dst[0..cols) = row r.
  void gather(std::int64_t r, std::span<float> dst) const;

 private:
  core::Status decode();
  MatrixView matrix() const;
  void multiply_e4m3(std::span<const float> x, std::span<float> codes, float* out) const;

  WeightView view_;  // of kTable alone, the bytes are read after creation
  core::Arena values_;
  std::vector<float> scales_;  // [rows][cols / scale_block_], with e4m3_group
  int scale_block_ = 0;
  std::vector<TokenId> ids_;
};

}  // namespace tandem::kernels::reference
