#pragma once

// What becomes of the sums of a matrix product: partial sums of tiles, or the largest outputs.

#include "tandem/kernels/cuda/gemm.h"
#include "tandem/kernels/cuda/reduce.cuh"

namespace tandem::kernels::cuda {

/// x [rows, K] times up to three matrices. Units are (tile, superblock) pairs, cut into contiguous
/// runs.
struct GemmArguments {
  TileRange first, second, third;
  const uint4* x;
  float* partials;
  int num_tiles, superblocks, runs, x_tiles, max_rows, unit_bytes;
  bool whole_tiles, in_pairs;
  LargestOutputs largest;
  int stages = 0, runs_each = 1;  // of a CTA
};

/// The part of a CTA's first run while its second one goes on with the tile. In local memory, since
/// a thread that has 64 sums has no registers for 64 more.
template <int NT>
class KeptSums {
 public:
  /// acc times scales, to be kept. Empties acc.
  __device__ void keep(float2 scales, float (&acc)[NT][4]) {
#pragma unroll
    for (int i = 0; i < 4 * NT; ++i) {
      kept_[i] = acc[i / 4][i % 4] * (i % 4 < 2 ? scales.x : scales.y);
      acc[i / 4][i % 4] = 0.0f;
    }
    has_some_ = true;
  }
  /// Adds what was kept, if anything, and returns what the sums in acc are to be times from now on.
  __device__ float2 add_to(float2 scales, float (&acc)[NT][4]) {
    if (!has_some_) return scales;
#pragma unroll
    for (int i = 0; i < 4 * NT; ++i) {
      float& sum = acc[i / 4][i % 4];
      sum = kept_[i] + sum * (i % 4 < 2 ? scales.x : scales.y);
    }
    has_some_ = false;
    return {1.0f, 1.0f};
  }

 private:
  volatile float kept_[4 * NT];
  bool has_some_ = false;
};
template <>
class KeptSums<0> {};

template <int NT>
__device__ void store_tile(const GemmArguments& g, int slot, int first_row, int n, int lane,
                           float2 scales, float (&acc)[NT][4]) {
  float* out = g.partials + static_cast<std::size_t>(slot) * g.max_rows * kTileRows + n;
#pragma unroll
  for (int t = 0; t < NT; ++t) {
    const int row = first_row + 8 * t + 2 * (lane % 4);
    if (row < g.max_rows) {
      out[row * kTileRows] = acc[t][0] * scales.x;
      out[row * kTileRows + 8] = acc[t][2] * scales.y;
    }
    if (row + 1 < g.max_rows) {
      out[(row + 1) * kTileRows] = acc[t][1] * scales.x;
      out[(row + 1) * kTileRows + 8] = acc[t][3] * scales.y;
    }
    acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
  }
}

/// The likeliest ids of a lane's rows. Ids come in ascending order, so that the first of equal ones
/// stays.
template <int NT>
struct Largest {
  float value[NT][2];
  int id[NT][2];

  __device__ void begin() {
#pragma unroll
    for (int i = 0; i < 2 * NT; ++i) {
      value[i / 2][i % 2] = -INFINITY;
      id[i / 2][i % 2] = 0;
    }
  }
  __device__ void take(const LargestOutputs& out, int n, float2 scales, const float (&acc)[NT][4]) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int candidate = n + 8 * upper;
      if (candidate >= out.vocab) continue;
      if (out.suppressed != nullptr && (out.suppressed[candidate / 32] >> (candidate % 32) & 1))
        continue;
#pragma unroll
      for (int i = 0; i < 2 * NT; ++i) {
        const float v = acc[i / 2][i % 2 + 2 * upper] * (upper ? scales.y : scales.x);
        if (v > value[i / 2][i % 2]) {
          value[i / 2][i % 2] = v;
          id[i / 2][i % 2] = candidate;
        }
      }
    }
  }
  /// `share` of `shares` of the outputs, eight warps' each.
  __device__ void store(const LargestOutputs& out, int shares, int share, int first_row, int lane) {
#pragma unroll
    for (int i = 0; i < 2 * NT; ++i) {
      unsigned long long key = order_key(value[i / 2][i % 2], id[i / 2][i % 2]);
      for (int offset = 4; offset < 32; offset *= 2) {
        const unsigned long long other = __shfl_xor_sync(0xffffffffu, key, offset);
        key = other > key ? other : key;
      }
      const std::size_t row = first_row + i / 2 * 8 + 2 * (lane % 4) + i % 2;
      if (lane < 4) out.keys[(row * shares + share) * 8 + threadIdx.x / 32] = key;
    }
  }
};

}  // namespace tandem::kernels::cuda
