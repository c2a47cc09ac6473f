#pragma once

// What the schedules of a matrix product share: the CTA's run of units, the ring of stages that a
// loader warp fills, and what becomes of the sums.

#include <algorithm>

#include "tandem/kernels/cuda/bricks.cuh"
#include "tandem/kernels/cuda/gemm.h"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/pipeline.cuh"
#include "tandem/kernels/cuda/reduce.cuh"

namespace tandem::kernels::cuda {

constexpr int kMathThreads = 256;
constexpr int kMaxStages = 4;
// Bricks that are fetched before the previous kernel has ended. More would delay that kernel's own
// loads.
constexpr int kEarlyStages = 1;

/// Shared memory for the stages: half an SM, so that two CTAs share it, or all that a CTA may have.
struct StageBudget {
  int shared = 0, alone = 0;
};
const StageBudget& stage_budget();

/// x [rows, K] times up to three matrices. Units are (tile, superblock) pairs, dealt to the CTAs of
/// a row block in contiguous runs.
struct GemmArguments {
  TileRange first, second, third;
  const uint4* x;
  float* partials;
  int num_tiles, superblocks, x_tiles, max_rows, unit_bytes, stages;
  bool whole_tiles;
  LargestOutputs largest;
};

/// wgmma, for many rows; false where the device or the weights' form has no such schedule.
bool launch_wide(const GemmArguments& g, int ctas, int rows, bool largest_only,
                 cudaStream_t stream);
core::Status prepare_wide();

/// The matrix that a tile belongs to. Arguments are at hand; a table in memory would cost a trip
/// before the first copy could start.
__device__ inline TileRange range_of(const GemmArguments& g, int tile) {
  TileRange range = g.first;
  if (tile >= g.second.first_tile) range = g.second;
  if (tile >= g.third.first_tile) range = g.third;
  return range;
}

struct Run {
  int begin, end;
};
__device__ inline Run cta_run(const GemmArguments& g) {
  const long long n = g.whole_tiles ? g.num_tiles : g.num_tiles * g.superblocks;
  const int scale = g.whole_tiles ? g.superblocks : 1;
  return {static_cast<int>(n * blockIdx.x / gridDim.x) * scale,
          static_cast<int>(n * (blockIdx.x + 1) / gridDim.x) * scale};
}

template <int NT>
__device__ void store_tile(const GemmArguments& g, int tile, int first_row, int n, int lane,
                           float (&acc)[NT][4]) {
  const int slot = g.whole_tiles ? tile : static_cast<int>(blockIdx.x) + tile;
  float* out = g.partials + static_cast<std::size_t>(slot) * g.max_rows * kTileRows + n;
#pragma unroll
  for (int t = 0; t < NT; ++t) {
    const int row = first_row + 8 * t + 2 * (lane % 4);
    if (row < g.max_rows) {
      out[row * kTileRows] = acc[t][0];
      out[row * kTileRows + 8] = acc[t][2];
    }
    if (row + 1 < g.max_rows) {
      out[(row + 1) * kTileRows] = acc[t][1];
      out[(row + 1) * kTileRows + 8] = acc[t][3];
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
  __device__ void take(const LargestOutputs& out, int n, const float (&acc)[NT][4]) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int candidate = n + 8 * upper;
      if (candidate >= out.vocab) continue;
      if (out.suppressed != nullptr && (out.suppressed[candidate / 32] >> (candidate % 32) & 1))
        continue;
#pragma unroll
      for (int i = 0; i < 2 * NT; ++i) {
        const float v = acc[i / 2][i % 2 + 2 * upper];
        if (v > value[i / 2][i % 2]) {
          value[i / 2][i % 2] = v;
          id[i / 2][i % 2] = candidate;
        }
      }
    }
  }
  __device__ void store(const LargestOutputs& out, int first_row, int warp, int lane) {
#pragma unroll
    for (int i = 0; i < 2 * NT; ++i) {
      unsigned long long key = order_key(value[i / 2][i % 2], id[i / 2][i % 2]);
      for (int offset = 4; offset < 32; offset *= 2) {
        const unsigned long long other = __shfl_xor_sync(0xffffffffu, key, offset);
        key = other > key ? other : key;
      }
      const std::size_t row = first_row + i / 2 * 8 + 2 * (lane % 4) + i % 2;
      if (lane < 4) out.keys[row * 8 * gridDim.x + 8 * blockIdx.x + warp] = key;
    }
  }
};

/// A place in the ring of stages: the stage, and the parity of its round.
struct RingPlace {
  int stage = 0, parity = 0;
  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Streams the CTA's bricks and activations into the ring. Weights depend on nobody: the first
/// bricks are on their way before the kernel that makes the activations has ended.
template <int NT>
__device__ void load_units(const GemmArguments& g, Run run, std::uint8_t* smem, std::uint64_t* full,
                           std::uint64_t* empty) {
  const int stage_bytes = g.unit_bytes + NT * 4096;
  const uint4* x = g.x + static_cast<std::size_t>(blockIdx.y) * NT * 256;
  const std::size_t x_stride = static_cast<std::size_t>(g.x_tiles) * 256;
  int tile = run.begin / g.superblocks, sb = run.begin % g.superblocks;
  const auto load_bricks = [&](int s) {
    const TileRange range = range_of(g, tile);
    const std::size_t unit = static_cast<std::size_t>(tile - range.first_tile) * g.superblocks + sb;
    mbarrier_expect(&full[s], range.unit_bytes + NT * 4096);
    bulk_copy(smem + s * stage_bytes, range.bricks + unit * range.unit_bytes, range.unit_bytes,
              &full[s]);
    if (++sb == g.superblocks) {
      sb = 0;
      ++tile;
    }
  };
  const auto load_rows = [&](int s, int superblock) {
    bulk_copy(smem + s * stage_bytes + g.unit_bytes, x + superblock * x_stride, NT * 4096,
              &full[s]);
  };
  const int ahead = min(g.stages, run.end - run.begin);
  int x_sb = sb;
  const auto next_x = [&] {
    const int current = x_sb;
    if (++x_sb == g.superblocks) x_sb = 0;
    return current;
  };
  const int early = min(ahead, kEarlyStages);
  for (int s = 0; s < early; ++s) load_bricks(s);
  after_previous();
  for (int s = 0; s < early; ++s) load_rows(s, next_x());
  for (int s = early; s < ahead; ++s) {
    load_bricks(s);
    load_rows(s, next_x());
  }
  RingPlace at;
  for (int u = run.begin + ahead; u < run.end; ++u) {
    mbarrier_wait(&empty[at.stage], at.parity);
    load_bricks(at.stage);
    load_rows(at.stage, next_x());
    at.advance(g.stages);
  }
}

}  // namespace tandem::kernels::cuda
