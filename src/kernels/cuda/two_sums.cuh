#pragma once

#include <algorithm>

#include "tandem/kernels/cuda/gemm.h"
#include "tandem/kernels/cuda/row_math.cuh"

namespace tandem::kernels::cuda {

/// Two sums of a row as sum_parts() makes them, with kAhead loads of both in flight at once.
/// Kernels of microseconds pay for code, not for loops: one for the parts that both have, one for
/// the rest.
template <int kAhead>
__device__ inline void sum_two_parts(const Partials& p, int row, TileParts first, int first_n,
                                     TileParts second, int second_n, float4& x, float4& y) {
  const std::size_t step = static_cast<std::size_t>(p.max_rows) * (kTileRows / 4);
  const auto begin = [&](TileParts parts, int n) {
    return reinterpret_cast<const float4*>(
        p.data + (static_cast<std::size_t>(parts.first_slot) * p.max_rows + row) * kTileRows + n);
  };
  const float4 *a = begin(first, first_n), *b = begin(second, second_n);
  const float scale = p.row_scale[row];
  const int both = min(first.count, second.count);
  x = y = {};
#pragma unroll 1
  for (int i = 0; i < both; i += kAhead) {
    float4 u[kAhead], v[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (i + j < both) {
        u[j] = a[(i + j) * step];
        v[j] = b[(i + j) * step];
      }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (i + j < both) {
        x = x + u[j];
        y = y + v[j];
      }
    }
  }
#pragma unroll 1
  for (int i = both; i < first.count; ++i) x = x + a[i * step];
#pragma unroll 1
  for (int i = both; i < second.count; ++i) y = y + b[i * step];
  x = x * scale;
  y = y * scale;
}

}  // namespace tandem::kernels::cuda
