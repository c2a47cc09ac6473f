// y = W x for bricks of any kind: mma.sync m16n8k16, weights as A, up to 64 rows of activations as B.
//
// A CTA owns a contiguous run of (tile, superblock) units; eight math warps work on the two bricks of a
// unit (16 outputs each), a ninth streams bricks and activations into a ring of stages with bulk copies.
// Bound: bytes for up to about 16 rows, expansion and tensor cores above. Two CTAs share an SM.
// Measured: docs/performance.md.

#include <algorithm>

#include "tandem/kernels/cuda/bricks.cuh"
#include "tandem/kernels/cuda/gemm.h"
#include "tandem/kernels/cuda/pipeline.cuh"

namespace tandem::kernels::cuda {
namespace {

constexpr int kMathThreads = 256;
constexpr int kMaxStages = 4;
// Shared memory for the stages: half an SM, so that two CTAs share it, or all that a CTA may have.
struct StageBudget {
  int shared = 0, alone = 0;
};
const StageBudget& stage_budget() {
  static const StageBudget budget = [] {
    int device = 0, per_sm = 0, per_block = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&per_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    cudaDeviceGetAttribute(&per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    const int reserved = 2048;  // barriers and the system's share
    return StageBudget{std::min(per_sm / 2, per_block) - reserved, per_block - reserved};
  }();
  return budget;
}

struct GemmArguments {
  const TileDesc* tiles;
  const TileParts* parts;
  const uint4* x;
  float* partials;
  int num_tiles, superblocks, x_tiles, max_rows, unit_bytes, stages;
  bool whole_tiles;
};

struct Run {
  int begin, end;
};
__device__ Run cta_run(const GemmArguments& g) {
  const long long n = g.whole_tiles ? g.num_tiles : g.num_tiles * g.superblocks;
  const int scale = g.whole_tiles ? g.superblocks : 1;
  return {static_cast<int>(n * blockIdx.x / gridDim.x) * scale,
          static_cast<int>(n * (blockIdx.x + 1) / gridDim.x) * scale};
}

template <BrickKind kKind, int NT>
__device__ void multiply_unit(const std::uint8_t* brick, const uint4* x, int warp, int lane,
                              float (&acc)[NT][4]) {
  BrickReader<kKind> reader;
  reader.begin(brick, warp, lane);
#pragma unroll
  for (int pair = 0; pair < 8; ++pair) {
    std::uint32_t low[4], high[4];
    reader.fragment(2 * pair, low);
    reader.fragment(2 * pair + 1, high);
#pragma unroll
    for (int t = 0; t < NT; ++t) {
      const uint4 b = x[(t * 8 + pair) * 32 + lane];
      mma_m16n8k16(acc[t], low, b.x, b.y);
      mma_m16n8k16(acc[t], high, b.z, b.w);
    }
  }
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

template <int NT>
__global__ void __launch_bounds__(kMathThreads + 32) gemm_kernel(GemmArguments g) {
  extern __shared__ __align__(128) std::uint8_t smem[];
  __shared__ std::uint64_t full[kMaxStages], empty[kMaxStages];
  const int first_row = blockIdx.y * NT * 8;
  const int stage_bytes = g.unit_bytes + NT * 4096;
  const Run run = cta_run(g);
  if (threadIdx.x == 0) {
    for (int i = 0; i < g.stages; ++i) {
      mbarrier_init(&full[i], 1);
      mbarrier_init(&empty[i], kMathThreads / 32);
    }
    fence_barrier_init();
  }
  __syncthreads();

  if (threadIdx.x >= kMathThreads) {
    if (threadIdx.x != kMathThreads) return;
    for (int u = run.begin; u < run.end; ++u) {
      const int i = u - run.begin, s = i % g.stages;
      if (i >= g.stages) mbarrier_wait(&empty[s], (i / g.stages - 1) & 1);
      const TileDesc tile = g.tiles[u / g.superblocks];
      const int sb = u % g.superblocks;
      std::uint8_t* stage = smem + s * stage_bytes;
      mbarrier_expect(&full[s], tile.unit_bytes + NT * 4096);
      bulk_copy(stage, tile.bricks + static_cast<std::size_t>(sb) * tile.unit_bytes, tile.unit_bytes,
                &full[s]);
      bulk_copy(stage + g.unit_bytes,
                g.x + (static_cast<std::size_t>(sb) * g.x_tiles + first_row / 8) * 256, NT * 4096,
                &full[s]);
    }
    return;
  }

  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, side = threadIdx.x / 128;
  float acc[NT][4] = {};
  for (int u = run.begin; u < run.end; ++u) {
    const int i = u - run.begin, s = i % g.stages;
    const int tile = u / g.superblocks;
    const BrickKind kind = g.tiles[tile].kind;
    mbarrier_wait(&full[s], (i / g.stages) & 1);
    const std::uint8_t* stage = smem + s * stage_bytes;
    const std::uint8_t* brick = stage + side * brick_bytes(kind);
    const uint4* x = reinterpret_cast<const uint4*>(stage + g.unit_bytes);
    switch (kind) {
      case BrickKind::kQ4K: multiply_unit<BrickKind::kQ4K, NT>(brick, x, warp, lane, acc); break;
      case BrickKind::kQ6K: multiply_unit<BrickKind::kQ6K, NT>(brick, x, warp, lane, acc); break;
      case BrickKind::kQ8: multiply_unit<BrickKind::kQ8, NT>(brick, x, warp, lane, acc); break;
      case BrickKind::kF16: multiply_unit<BrickKind::kF16, NT>(brick, x, warp, lane, acc); break;
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&empty[s]);
    if ((u + 1) % g.superblocks == 0 || u + 1 == run.end) {
      store_tile<NT>(g, tile, first_row, 64 * side + 16 * warp + lane / 4, lane, acc);
    }
  }
}

template <int NT>
void launch(GemmArguments g, int ctas, int rows, cudaStream_t stream) {
  const int stage_bytes = g.unit_bytes + NT * 4096;
  g.stages = std::min(kMaxStages, stage_budget().shared / stage_bytes);
  if (g.stages < 2) g.stages = std::min(kMaxStages, stage_budget().alone / stage_bytes);
  static const cudaError_t once = cudaFuncSetAttribute(
      gemm_kernel<NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, stage_budget().alone);
  (void)once;  // a failure shows at the launch
  const dim3 grid(static_cast<unsigned>(ctas), static_cast<unsigned>((rows + NT * 8 - 1) / (NT * 8)));
  gemm_kernel<NT><<<grid, kMathThreads + 32, static_cast<std::size_t>(g.stages) * stage_bytes, stream>>>(g);
}

}  // namespace

core::Result<GemmGroup> GemmGroup::create(const std::vector<MatrixView>& matrices, int num_ctas,
                                          bool whole_tiles) {
  GemmGroup group;
  group.superblocks_ = matrices.front().superblocks();
  group.whole_tiles_ = whole_tiles;
  std::vector<TileDesc> tiles;
  for (const MatrixView& m : matrices) {
    TANDEM_CHECK(m.superblocks() == group.superblocks_, "matrices of a group share their input");
    group.first_tile_.push_back(static_cast<int>(tiles.size()));
    const int unit_bytes = 2 * brick_bytes(m.kind);
    group.unit_bytes_ = std::max(group.unit_bytes_, unit_bytes);
    for (int t = 0; t < m.tiles(); ++t) {
      tiles.push_back({m.bricks + static_cast<std::size_t>(t) * group.superblocks_ * unit_bytes, m.kind,
                       unit_bytes});
    }
  }
  group.num_tiles_ = static_cast<int>(tiles.size());
  const long long units = static_cast<long long>(whole_tiles ? 1 : group.superblocks_) * group.num_tiles_;
  group.ctas_ = static_cast<int>(std::min<long long>(num_ctas, units));
  std::vector<TileParts> parts;
  for (int t = 0; t < group.num_tiles_; ++t) {
    // CTA c runs the units [units c / ctas, units (c + 1) / ctas).
    const auto owner = [&](long long u) { return static_cast<int>(((u + 1) * group.ctas_ - 1) / units); };
    const int first = owner(static_cast<long long>(t) * group.superblocks_);
    const int last = owner(static_cast<long long>(t + 1) * group.superblocks_ - 1);
    parts.push_back(whole_tiles ? TileParts{t, 1} : TileParts{first + t, last - first + 1});
  }
  group.slots_ = parts.back().first_slot + parts.back().count;
  TANDEM_ASSIGN(group.tiles_, DeviceBuffer::allocate(tiles.size() * sizeof(TileDesc)));
  TANDEM_ASSIGN(group.parts_, DeviceBuffer::allocate(parts.size() * sizeof(TileParts)));
  TANDEM_CUDA(cudaMemcpy(group.tiles_.as<void>(), tiles.data(), tiles.size() * sizeof(TileDesc),
                         cudaMemcpyHostToDevice));
  TANDEM_CUDA(cudaMemcpy(group.parts_.as<void>(), parts.data(), parts.size() * sizeof(TileParts),
                         cudaMemcpyHostToDevice));
  return core::Result<GemmGroup>(std::move(group));
}

Partials GemmGroup::run(const HalfRows& x, int rows, float* partials, int max_rows,
                        cudaStream_t stream) const {
  TANDEM_CHECK((x.cols + kBrickCols - 1) / kBrickCols == superblocks_, "the input has another width");
  const GemmArguments g = {tiles_.as<TileDesc>(), parts_.as<TileParts>(),
                           reinterpret_cast<const uint4*>(x.data), partials, num_tiles_, superblocks_,
                           x.row_tiles, max_rows, unit_bytes_, 0, whole_tiles_};
  if (rows <= 8) {
    launch<1>(g, ctas_, rows, stream);
  } else if (rows <= 16) {
    launch<2>(g, ctas_, rows, stream);
  } else if (rows <= 32) {
    launch<4>(g, ctas_, rows, stream);
  } else {
    launch<8>(g, ctas_, rows, stream);
  }
  return {partials, parts_.as<TileParts>(), x.scale, max_rows};
}

}  // namespace tandem::kernels::cuda
