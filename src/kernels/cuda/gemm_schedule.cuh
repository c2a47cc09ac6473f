#pragma once

// What the schedules of a matrix product share: everything but the instruction. The (tile,
// superblock) units are cut into runs, which are frozen; a CTA owns one run or two in a row,
// streams its units through a ring of stages and stores the sums of each tile of each run.

#include <algorithm>

#include "tandem/kernels/cuda/bricks.cuh"
#include "tandem/kernels/cuda/gemm_output.cuh"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/pipeline.cuh"
#include "tandem/kernels/cuda/stage_ring.cuh"

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
/// Bytes of a stage: a unit's weights, and its columns of row_tiles * 8 rows.
__host__ __device__ constexpr int stage_size(int unit_bytes, int row_tiles) {
  return unit_bytes + row_tiles * 4096;
}

/// How a product was launched: not at all, or with parts that are those of runs, or of pairs of
/// runs.
enum class Launched { kNot, kRuns, kPairs };
/// Whether a CTA of NT * 8 rows adds up the parts of its two runs.
template <int NT>
constexpr bool kAddsPairs = NT > 8;

/// Bricks of plain values, for any number of rows (dense_products.cu); false as below.
bool has_dense_schedule(const std::vector<MatrixView>& matrices);
/// Tiles that a pair of CTAs multiplies by the same rows at the same time.
constexpr int kPair = 2;
/// Their cuts, and where the parts of each tile lie.
struct DenseCuts {
  int runs = 0, slots = 0;
  std::vector<TileParts> parts;
};
DenseCuts dense_cuts(int num_tiles, int superblocks, int num_ctas, bool whole_tiles);
bool launch_dense(const GemmArguments& g, int rows, bool largest_only, cudaStream_t stream);
core::Status prepare_dense();

/// wgmma, for many rows; kNot where the device or the weights' form has no such schedule.
Launched launch_wide(const GemmArguments& g, int rows, bool largest_only, cudaStream_t stream);
core::Status prepare_wide();

/// The matrix that a tile belongs to. Arguments are at hand; a table in memory would cost a trip
/// before the first copy could start.
__device__ inline TileRange range_of(const GemmArguments& g, int tile) {
  TileRange range = g.first;
  if (tile >= g.second.first_tile) range = g.second;
  if (tile >= g.third.first_tile) range = g.third;
  return range;
}

/// What sums of outputs n and n + 8 of a tile are times, long before it is needed. Beyond the last
/// tile: none.
__device__ inline float2 output_scales(const GemmArguments& g, int tile, int n) {
  const TileRange range = range_of(g, tile);
  const float unit = brick_unit(range.kind);
  if (range.row_scales == nullptr || tile >= g.num_tiles) return {unit, unit};
  const float* scales = range.row_scales + (tile - range.first_tile) * kTileRows + n;
  return {unit * scales[0], unit * scales[8]};
}

/// First unit of a run, and with run + 1 its end.
__device__ inline int run_begin(const GemmArguments& g, int run) {
  return g.whole_tiles ? run * g.num_tiles / g.runs * g.superblocks
                       : run * (g.num_tiles * g.superblocks) / g.runs;
}
struct Share {
  int first_run, begin, end;  // begin and end in units
};
__device__ inline Share cta_share(const GemmArguments& g) {
  const int first = blockIdx.x * g.runs_each, last = min(first + g.runs_each, g.runs);
  return {first, run_begin(g, first), run_begin(g, last)};
}

/// Streams the CTA's bricks and activations into the ring: a warp, each of whose lanes fills one
/// stage at first. Weights depend on nobody: the first bricks are on their way before the kernel
/// that makes the activations has ended.
template <int NT>
__device__ void load_units(const GemmArguments& g, Share share, std::uint8_t* smem,
                           std::uint64_t* full, std::uint64_t* empty) {
  const int stage_bytes = stage_size(g.unit_bytes, NT), lane = threadIdx.x % 32;
  const uint4* x = g.x + static_cast<std::size_t>(blockIdx.y) * NT * 256;
  const std::size_t x_stride = static_cast<std::size_t>(g.x_tiles) * 256;
  const auto load_bricks = [&](int s, int tile, int sb) {
    const TileRange range = range_of(g, tile);
    const std::size_t unit = static_cast<std::size_t>(tile - range.first_tile) * g.superblocks + sb;
    mbarrier_expect(&full[s], range.unit_bytes + NT * 4096);
    bulk_copy(smem + s * stage_bytes, range.bricks + unit * range.unit_bytes, range.unit_bytes,
              &full[s]);
  };
  const auto load_rows = [&](int s, int sb) {
    bulk_copy(smem + s * stage_bytes + g.unit_bytes, x + sb * x_stride, NT * 4096, &full[s]);
  };
  const int ahead = min(g.stages, share.end - share.begin), early = min(ahead, kEarlyStages);
  const int unit = share.begin + lane;
  int tile = unit / g.superblocks, sb = unit - tile * g.superblocks;
  if (lane < early) load_bricks(lane, tile, sb);
  after_previous();
  if (lane < ahead) {
    load_rows(lane, sb);
    if (lane >= early) load_bricks(lane, tile, sb);
  }
  if (lane != 0) return;
  tile = (share.begin + ahead) / g.superblocks;
  sb = share.begin + ahead - tile * g.superblocks;
  RingPlace at;
  for (int u = share.begin + ahead; u < share.end; ++u) {
    mbarrier_wait(&empty[at.stage], at.parity);
    load_bricks(at.stage, tile, sb);
    load_rows(at.stage, sb);
    at.advance(g.stages);
    if (++sb == g.superblocks) {
      sb = 0;
      ++tile;
    }
  }
}

/// The CTA's share: a ninth warp streams bricks and activations, eight multiply the two bricks of a
/// unit, 16 outputs each, as Schedule::multiply<kind, NT> does.
template <typename Schedule, int NT, bool kLargestOnly>
__device__ void multiply_run(const GemmArguments& g) {
  extern __shared__ __align__(128) std::uint8_t smem[];
  __shared__ std::uint64_t full[kMaxStages], empty[kMaxStages];
  const int first_row = blockIdx.y * NT * 8;
  const Share share = cta_share(g);
  if (threadIdx.x == 0) {
    for (int i = 0; i < g.stages; ++i) {
      mbarrier_init(&full[i], 1);
      mbarrier_init(&empty[i], kMathThreads / 32);
    }
    fence_barrier_init();
  }
  __syncthreads();

  if (threadIdx.x >= kMathThreads) {
    load_units<NT>(g, share, smem, full, empty);
    return;
  }

  after_previous();
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, side = threadIdx.x / 128;
  const int first_output = 64 * side + 16 * warp + lane / 4;
  constexpr bool kAdds = kAddsPairs<NT> && !kLargestOnly;
  FilledStages ring = {smem, full, empty, g.stages, stage_size(g.unit_bytes, NT), g.unit_bytes};
  float acc[NT][4] = {};
  KeptSums<kAdds ? NT : 0> kept;
  Largest<kLargestOnly ? NT : 1> largest;
  largest.begin();
  int run = share.first_run, tile = share.begin / g.superblocks;
  for (int u = share.begin; u < share.end;) {
    const int tile_end = (tile + 1) * g.superblocks, run_end = run_begin(g, run + 1);
    const int end = min(tile_end, run_end);
    const float2 scales = output_scales(g, tile, first_output);
    multiply_units<Schedule, NT>(range_of(g, tile).kind, ring, end - u, side, warp, lane, acc);
    u = end;
    if constexpr (kLargestOnly) {
      largest.take(g.largest, tile * kTileRows + first_output, scales, acc);
#pragma unroll
      for (int t = 0; t < NT; ++t) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
    } else if constexpr (kAdds) {
      if (u != tile_end && u != share.end) {
        kept.keep(scales, acc);
      } else {
        const float2 factors = kept.add_to(scales, acc);
        const int slot = (g.whole_tiles ? 0 : static_cast<int>(blockIdx.x)) + tile;
        store_tile<NT>(g, slot, first_row, first_output, lane, factors, acc);
      }
    } else {
      const int slot = g.whole_tiles ? tile : run + tile;
      store_tile<NT>(g, slot, first_row, first_output, lane, scales, acc);
    }
    if (u == run_end) ++run;
    if (u == tile_end) ++tile;
  }
  if constexpr (kLargestOnly) largest.store(g.largest, g.runs, share.first_run, first_row, lane);
}

/// A launch of `kernel`, whose CTAs have NT * 8 rows, on as many stages as fit; kNot if `fewest` do
/// not.
/// A CTA that is alone on its SM takes two runs where there are more than SMs, so that it goes on
/// where another would start.
template <int NT, typename Kernel>
Launched launch_run(Kernel kernel, GemmArguments g, int rows, cudaStream_t stream, int fewest = 2) {
  const int stage_bytes = stage_size(g.unit_bytes, NT);
  g.stages = std::min(kMaxStages, stage_budget().shared / stage_bytes);
  const bool is_alone = g.stages < 2;
  if (is_alone) g.stages = std::min(kMaxStages, stage_budget().alone / stage_bytes);
  if (g.stages < fewest) return Launched::kNot;
  g.runs_each = is_alone && g.in_pairs ? 2 : 1;
  const dim3 grid(static_cast<unsigned>((g.runs + g.runs_each - 1) / g.runs_each),
                  static_cast<unsigned>((rows + NT * 8 - 1) / (NT * 8)));
  launch(kernel, grid, kMathThreads + 32, static_cast<std::size_t>(g.stages) * stage_bytes, stream,
         g);
  return kAddsPairs<NT> && g.runs_each == 2 ? Launched::kPairs : Launched::kRuns;
}

}  // namespace tandem::kernels::cuda
