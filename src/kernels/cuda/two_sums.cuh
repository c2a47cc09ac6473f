#pragma once

#include <algorithm>

#include "tandem/kernels/cuda/gemm.h"
#include "tandem/kernels/cuda/row_math.cuh"

namespace tandem::kernels::cuda {

/// Two sums of a row as sum_parts() makes them, with kAhead loads of both in flight at once.
template <int kAhead>
__device__ inline void sum_two_parts(const Partials& p, int row, TileParts first, int first_n,
                                     TileParts second, int second_n, float4& x, float4& y) {
  QuadParts a(p, first, row, first_n), b(p, second, row, second_n);
  const float scale = p.row_scale[row];
  x = y = {};
  float4 u[kAhead], v[kAhead];
#pragma unroll 1
  for (; max(a.left, b.left) > 0; a.left -= kAhead, b.left -= kAhead) {
    a.take(u);
    b.take(v);
    add_parts(p.in_pairs, u, a.left, x);
    add_parts(p.in_pairs, v, b.left, y);
  }
  x = x * scale;
  y = y * scale;
}

}  // namespace tandem::kernels::cuda
