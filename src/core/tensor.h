#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tandem/core/dtype.h"

namespace tandem::core {

/// A tensor as it lies in a mapped file: row-major, tightly packed, not owned, host memory.
/// shape[0] is the slowest dimension, so a linear weight [out, in] has shape {out, in} and each of
/// its rows is `row_bytes(dtype, in)` long. `data` may be misaligned. Valid while the file is open.
struct TensorView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<std::int64_t, 4> shape = {1, 1, 1, 1};

  /// Elements of one row (the fastest dimension).
  std::int64_t cols() const { return rank == 0 ? 1 : shape[static_cast<std::size_t>(rank - 1)]; }
  /// Number of rows: the product of all other dimensions.
  std::int64_t rows() const {
    std::int64_t n = 1;
    for (int i = 0; i + 1 < rank; ++i) n *= shape[static_cast<std::size_t>(i)];
    return n;
  }
  std::int64_t elements() const { return rows() * cols(); }
  std::size_t bytes() const { return static_cast<std::size_t>(rows()) * row_bytes(dtype, cols()); }
  const std::byte* row(std::int64_t r) const {
    return data + static_cast<std::size_t>(r) * row_bytes(dtype, cols());
  }
};

}  // namespace tandem::core
