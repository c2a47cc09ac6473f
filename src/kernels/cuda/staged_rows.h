#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tandem/kernels/cuda/layouts.cuh"
#include "tandem/kernels/weight.h"

namespace tandem::kernels::cuda {

/// The brick kind that holds a weight: block types of matching structure keep their codes,
/// everything else becomes fp16. kUnimplemented names what has no kernel: pairs of E2M1 codes with
/// other scales than NVFP4's, e4m3 codes with scales that divide 128 columns, activations rounded
/// in other groups than 128 columns or a row.
core::Result<BrickKind> brick_kind(const WeightView& view, WeightRole role, std::string_view name);

/// What a product with this weight wants its inputs rounded to.
InputForm input_form(const WeightView& view);

/// A weight's rows as the packing kernels read them, made from the file's a chunk at a time:
/// - kF8: [ceil(K / 128)] fp16 factors times 256, then K codes;
/// - kFp4: K / 2 pairs of E2M1 codes, the lower half first, then K / 16 e4m3 scales;
/// - kF16 of F16, BF16 and F32: the file's rows; of other types fp16;
/// - other kinds, kE4m3 among them: the file's rows.
class StagedRows {
 public:
  StagedRows(const WeightView& view, BrickKind kind);

  std::size_t row_bytes() const { return row_bytes_; }
  /// Type of the staged values of kF16, of the file's blocks of others.
  core::DType dtype() const { return dtype_; }
  /// Rows [first, first + count), valid until the next call.
  const void* rows(std::int64_t first, std::int64_t count);
  /// Factor of each output that its bricks do not hold; empty: all ones.
  std::vector<float> row_scales() const;

 private:
  void stage(std::int64_t row, std::byte* to);
  void stage_f8(std::int64_t row, std::byte* to);
  void stage_fp4(std::int64_t row, std::byte* to) const;
  void stage_half(std::int64_t row, std::byte* to);

  WeightView view_;
  BrickKind kind_;
  core::DType dtype_;
  bool is_raw_ = false;  // the file's rows serve as they are
  std::size_t row_bytes_ = 0;
  std::vector<std::byte> staged_;
  std::vector<float> values_;
};

}  // namespace tandem::kernels::cuda
