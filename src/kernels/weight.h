#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/tensor.h"
#include "tandem/core/units.h"

namespace tandem::formats {
class MappedFile;
}

namespace tandem::kernels {

/// A weight in its backend's own layout, opaque to everybody else. The backend must outlive it.
class Weight {
 public:
  virtual ~Weight() = default;
  virtual std::int64_t rows() const = 0;  ///< outputs of a linear, entries of a table, 1
  virtual std::int64_t cols() const = 0;  ///< inputs of a linear, width of a table, length
  virtual std::size_t bytes() const = 0;  ///< memory held beside the mapped file
};

/// What a weight is used for; decides its packing.
enum class WeightRole {
  kVector,        ///< norm weights and other f32 vectors
  kLinear,        ///< y = W x
  kHead,          ///< y = W x over the vocabulary: a draft head, an LM head that is not tied
  kTable,         ///< rows are gathered by token id; may stay in the mapped file
  kTableAndHead,  ///< gathered by token id and used as a linear (tied embedding)
  kExpert,        ///< a linear of one expert, for moe(); kUnimplemented where there is no moe()
  kTokenIds,      ///< [V] ids of CentroidHead, I32 or I64; kUnimplemented where that is not run
};

/// A weight [rows, cols] as a file holds it: a tensor and, where its values are scaled, the scales.
/// Not owned; host memory.
///
/// value(n, k) = tensor(n, k) * scales((n + first_row) / scale_rows, k / scale_cols) * factor
///
/// covers FP8 with a scale per output (scale_rows 1, scale_cols = cols) or per block, NVFP4 (scale
/// per 16 columns, factor = 1 / weight_global_scale or weight_scale_2), and the `.scale` companions
/// of GGUF files (scale_rows = rows, scale_cols = cols). spec/formats.md sections 2, 6 and 7.
struct WeightView {
  WeightView() = default;
  /// A tensor whose values are not scaled. Implicit: most weights are no more than that.
  WeightView(const core::TensorView& values) : tensor(values) {}

  /// Values [rows, cols] of any dtype, F8_E4M3 included. U8 means pairs of E2M1 codes: [rows,
  /// cols / 2], column 2i in the low half of byte i.
  core::TensorView tensor;
  /// [ceil((rows + first_row) / scale_rows), ceil(cols / scale_cols)] in F32, F16, BF16 or F8_E4M3,
  /// in any rank with that many elements; no data: all ones.
  core::TensorView scales;
  std::int64_t scale_rows = 0;
  std::int64_t scale_cols = 0;
  std::int64_t first_row = 0;  ///< rows of the first scales' block that are not in the tensor
  float factor = 1.0F;
  /// Columns of a row of activations that share a dynamic e4m3 scale, to which they are rounded
  /// before the product: cols for a scale per token, 128 for the block variant. 0: not rounded to
  /// e4m3; the backend chooses the precision of activations.
  int e4m3_group = 0;
  /// Of a kTable weight: the file that the tensor is a part of, from which rows can be read without
  /// mapping more of it. Null: the tensor is memory like any other.
  const formats::MappedFile* file = nullptr;

  bool is_scaled() const { return scales.data != nullptr || factor != 1.0F; }
  std::int64_t rows() const { return tensor.rows(); }
  std::int64_t cols() const {
    return tensor.dtype == core::DType::kU8 ? 2 * tensor.cols() : tensor.cols();
  }
  std::size_t bytes() const { return tensor.bytes() + (scales.data ? scales.bytes() : 0); }

  /// Rows [first, first + count).
  WeightView slice(std::int64_t first, std::int64_t count) const;

  /// Whether tensor, scales and factor fit together and have dtypes with float values. kDataLoss
  /// names the tensor and both shapes; kUnimplemented names a dtype. What follows needs a view
  /// that passes.
  core::Status check(std::string_view name) const;

  /// True if all values have one scale.
  bool has_one_scale() const {
    return scales.data == nullptr || (first_row + rows() <= scale_rows && cols() <= scale_cols);
  }
  /// The scale of value (n, k); 1 without scales.
  float scale(std::int64_t n, std::int64_t k) const;
  /// dst[0..cols) = row n of the tensor in f32, not scaled.
  void codes(std::int64_t n, std::span<float> dst) const;
  /// dst[0..cols) = row n in f32, products from left to right as written above.
  void values(std::int64_t n, std::span<float> dst) const;
};

/// The ids of a kTokenIds weight. kDataLoss unless every value is in [0, vocab), kUnimplemented for
/// another dtype than I32 and I64.
core::Result<std::vector<TokenId>> read_token_ids(const WeightView& view, int vocab,
                                                  std::string_view name);

}  // namespace tandem::kernels
