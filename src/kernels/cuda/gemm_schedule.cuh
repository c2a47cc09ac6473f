#pragma once

// What the schedules of a matrix product share: everything but the instruction. The (tile,
// superblock) units are cut into runs, which are frozen; a CTA owns one run or two in a row,
// streams its units through a ring of stages and stores the sums of each tile of each run.

#include <algorithm>

#include "tandem/kernels/cuda/bricks.cuh"
#include "tandem/kernels/cuda/gemm_output.cuh"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/pipeline.cuh"

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

/// wgmma, for many rows; false where the device or the weights' form has no such schedule.
bool launch_wide(const GemmArguments& g, int rows, bool largest_only, cudaStream_t stream);
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
  const int first = blockIdx.x * g.runs / gridDim.x, last = (blockIdx.x + 1) * g.runs / gridDim.x;
  return {first, run_begin(g, first), run_begin(g, last)};
}

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

/// Streams the CTA's bricks and activations into the ring: a warp, each of whose lanes fills one
/// stage at first. Weights depend on nobody: the first bricks are on their way before the kernel
/// that makes the activations has ended.
template <int NT>
__device__ void load_units(const GemmArguments& g, Share share, std::uint8_t* smem,
                           std::uint64_t* full, std::uint64_t* empty) {
  const int stage_bytes = g.unit_bytes + NT * 4096, lane = threadIdx.x % 32;
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
  const int stage_bytes = g.unit_bytes + NT * 4096;
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
  float acc[NT][4] = {};
  Largest<kLargestOnly ? NT : 1> largest;
  largest.begin();
  RingPlace at;
  int tile = share.begin / g.superblocks, sb = share.begin % g.superblocks;
  int run = share.first_run, run_end = run_begin(g, run + 1);
  float2 scales = output_scales(g, tile, first_output);
  for (int u = share.begin; u < share.end; ++u) {
    const BrickKind kind = range_of(g, tile).kind;
    const int s = at.stage;
    mbarrier_wait(&full[s], at.parity);
    at.advance(g.stages);
    const std::uint8_t* x = smem + s * stage_bytes + g.unit_bytes;
    const std::uint8_t* brick = smem + s * stage_bytes + side * brick_bytes(kind);
    switch (kind) {
      case BrickKind::kQ4K:
        Schedule::template multiply<BrickKind::kQ4K, NT>(brick, x, warp, lane, acc);
        break;
      case BrickKind::kQ6K:
        Schedule::template multiply<BrickKind::kQ6K, NT>(brick, x, warp, lane, acc);
        break;
      case BrickKind::kQ8:
        Schedule::template multiply<BrickKind::kQ8, NT>(brick, x, warp, lane, acc);
        break;
      case BrickKind::kF8:
        Schedule::template multiply<BrickKind::kF8, NT>(brick, x, warp, lane, acc);
        break;
      case BrickKind::kFp4:
        Schedule::template multiply<BrickKind::kFp4, NT>(brick, x, warp, lane, acc);
        break;
      case BrickKind::kF16:
        Schedule::template multiply<BrickKind::kF16, NT>(brick, x, warp, lane, acc);
        break;
      case BrickKind::kE4m3:  // dense_products.cu
        break;
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&empty[s]);
    const bool ends_tile = ++sb == g.superblocks;
    if (!ends_tile && u + 1 != run_end) continue;
    if constexpr (kLargestOnly) {
      largest.take(g.largest, tile * kTileRows + first_output, scales, acc);
#pragma unroll
      for (int t = 0; t < NT; ++t) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
    } else {
      const int slot = g.whole_tiles ? tile : run + tile;
      store_tile<NT>(g, slot, first_row, first_output, lane, scales, acc);
    }
    if (u + 1 == run_end) run_end = run_begin(g, ++run + 1);
    if (!ends_tile) continue;
    sb = 0;
    ++tile;
    scales = output_scales(g, tile, first_output);
  }
  if constexpr (kLargestOnly) largest.store(g.largest, g.runs, share.first_run, first_row, lane);
}

/// A launch of `kernel`, whose CTAs have NT * 8 rows, on as many stages as fit; false if two do
/// not. A CTA that is alone on its SM takes two runs, so that it goes on where another would start.
template <int NT, typename Kernel>
bool launch_run(Kernel kernel, GemmArguments g, int rows, cudaStream_t stream) {
  const int stage_bytes = g.unit_bytes + NT * 4096;
  g.stages = std::min(kMaxStages, stage_budget().shared / stage_bytes);
  const bool is_alone = g.stages < 2;
  if (is_alone) g.stages = std::min(kMaxStages, stage_budget().alone / stage_bytes);
  if (g.stages < 2) return false;
  const bool takes_two = is_alone && g.largest.keys == nullptr;  // keys are those of a run
  const dim3 grid(static_cast<unsigned>(takes_two ? (g.runs + 1) / 2 : g.runs),
                  static_cast<unsigned>((rows + NT * 8 - 1) / (NT * 8)));
  launch(kernel, grid, kMathThreads + 32, static_cast<std::size_t>(g.stages) * stage_bytes, stream,
         g);
  return true;
}

}  // namespace tandem::kernels::cuda
