// y = W x for bricks of plain values, e4m3 codes or fp16: nothing is expanded, both operands of
// wgmma lie in shared memory as copies bring them, for any number of rows.
//
// A CTA has a share of the units like every schedule (gemm_schedule.cuh), in strips: 128 outputs x
// 128 bytes of K, 16 KB, and the same columns of its rows, 1 KB for eight. Two warpgroups multiply
// 64 outputs each; a ninth warp copies. There is a CTA for each SM; up to 64 rows it leaves room
// for one of the next kernel, whose first strip is then on its way early. Bound: bytes up to 128
// rows.
//
// Sums of e4m3 products lose what lies 13 binary places below the largest one of an instruction
// (docs/kernels.md), so each strip is summed from zero and added to f32 sums: an order that no
// number of rows changes.

#include <array>

#include "tandem/kernels/cuda/gemm_schedule.cuh"
#include "tandem/kernels/cuda/wgmma_dense.cuh"

namespace tandem::kernels::cuda {
namespace {

constexpr int kSides = kTileRows / kBrickRows;
constexpr int kMostDenseStages = 8;
constexpr int kDenseThreads = kMathThreads + 32;
/// Fetched before the previous kernel has ended. A CTA that fills its SM starts late, and then they
/// only delay its rows.
template <int NT>
constexpr int kEarlyStrips = NT > 8 ? 1 : 3;

[[maybe_unused]] __host__ __device__ constexpr int strips_of(BrickKind kind) {
  return brick_bytes(kind) / kStripBytes;
}
__host__ __device__ constexpr int dense_stage_bytes(int row_tiles) {
  return kSides * kStripBytes + row_tiles * 1024;
}

/// A CTA's way through its strips.
template <BrickKind kKind>
struct StripAt {
  int tile, sb, strip = 0;

  __device__ StripAt(const GemmArguments& g, int unit)
      : tile(unit / g.superblocks), sb(unit % g.superblocks) {}
  /// True at the end of a unit.
  __device__ bool advance(const GemmArguments& g) {
    if (++strip < strips_of(kKind)) return false;
    strip = 0;
    if (++sb == g.superblocks) {
      sb = 0;
      ++tile;
    }
    return true;
  }
};

/// Streams strips and rows into the ring: a warp, whose lanes share a stage's copies.
template <BrickKind kKind, int NT>
__device__ void load_strips(const GemmArguments& g, Share share, std::uint8_t* smem,
                            std::uint64_t* full, std::uint64_t* empty) {
  constexpr int kStrips = strips_of(kKind), kBytes = dense_stage_bytes(NT);
  const int lane = threadIdx.x % 32, count = (share.end - share.begin) * kStrips;
  const auto* x = reinterpret_cast<const std::uint8_t*>(g.x);
  const auto load_weights = [&](const StripAt<kKind>& at, int s) {
    if (lane == 0) mbarrier_expect(&full[s], kBytes);
    __syncwarp();
    if (lane >= kSides) return;
    const TileRange range = range_of(g, at.tile);
    const std::size_t unit =
        static_cast<std::size_t>(at.tile - range.first_tile) * g.superblocks + at.sb;
    bulk_copy(smem + s * kBytes + lane * kStripBytes,
              range.bricks + (unit * kSides + lane) * brick_bytes(kKind) + at.strip * kStripBytes,
              kStripBytes, &full[s]);
  };
  const auto load_rows = [&](const StripAt<kKind>& at, int s) {
    std::uint8_t* to = smem + s * kBytes + kSides * kStripBytes;
    const int first = static_cast<int>(blockIdx.y) * NT;
    if constexpr (kKind == BrickKind::kE4m3) {  // rows lie in strips, too
      const std::size_t from = static_cast<std::size_t>(at.sb * kStrips + at.strip) * g.x_tiles;
      if (lane == 0) bulk_copy(to, x + (from + first) * 1024, NT * 1024, &full[s]);
    } else if (lane < NT) {  // of 256 columns
      const std::size_t from = static_cast<std::size_t>(at.sb) * g.x_tiles + first + lane;
      bulk_copy(to + lane * 1024, x + (from * kStrips + at.strip) * 1024, 1024, &full[s]);
    }
  };
  StripAt<kKind> first(g, share.begin), at = first;
  const int early = min(kEarlyStrips<NT>, count);
  for (int i = 0; i < early; ++i) {
    load_weights(first, i);
    first.advance(g);
  }
  after_previous();
  RingPlace place;
  for (int i = 0; i < count; ++i) {
    if (i >= g.stages) mbarrier_wait(&empty[place.stage], place.parity ^ 1);
    if (i >= early) load_weights(at, place.stage);
    load_rows(at, place.stage);
    at.advance(g);
    place.advance(g.stages);
  }
}

/// A strip's product: of e4m3 codes alone, of fp16 values added to `acc`. It is at work on return.
template <BrickKind kKind, int NT>
__device__ void multiply_strip(const std::uint8_t* weights, const std::uint8_t* rows,
                               float (&acc)[NT][4]) {
  const std::uint64_t a = wgmma_descriptor(weights, 128, 1024);
  const std::uint64_t b = wgmma_descriptor(rows, 128, 1024);
  constexpr int kStep = 256 / 16;  // of an instruction's K, in a descriptor
  wgmma_fence();
  WgmmaDense<kKind, kKind == BrickKind::kF16, 8 * NT>::run(acc, a, b);
#pragma unroll
  for (int i = 1; i < 4; ++i) {
    WgmmaDense<kKind, true, 8 * NT>::run(acc, a + i * kStep, b + i * kStep);
  }
  wgmma_commit();
}

/// Sums of a run's part of a tile, strip after strip.
template <BrickKind kKind, int NT>
struct StripSums;

template <int NT>
struct StripSums<BrickKind::kE4m3, NT> {
  float acc[NT][4] = {};
  float fresh[NT][4];

  __device__ void add(const std::uint8_t* weights, const std::uint8_t* rows, std::uint64_t* empty,
                      int stage) {
    multiply_strip<BrickKind::kE4m3, NT>(weights, rows, fresh);
    wgmma_wait<0>();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&empty[stage]);
#pragma unroll
    for (int i = 0; i < 4 * NT; ++i) acc[i / 4][i % 4] += fresh[i / 4][i % 4];
  }
  __device__ void finish(std::uint64_t*) {}
};

/// One product stays at work while the next one's stage is waited for.
template <int NT>
struct StripSums<BrickKind::kF16, NT> {
  float acc[NT][4] = {};
  int at_work = -1;

  __device__ void add(const std::uint8_t* weights, const std::uint8_t* rows, std::uint64_t* empty,
                      int stage) {
    multiply_strip<BrickKind::kF16, NT>(weights, rows, acc);
    wgmma_wait<1>();
    release(empty);
    at_work = stage;
  }
  __device__ void finish(std::uint64_t* empty) {
    wgmma_wait<0>();
    release(empty);
    at_work = -1;
  }
  __device__ void release(std::uint64_t* empty) const {
    if (at_work >= 0 && threadIdx.x % 32 == 0) mbarrier_arrive(&empty[at_work]);
  }
};

/// The eight warps that multiply.
template <BrickKind kKind, int NT, bool kLargestOnly>
__device__ void multiply_strips(const GemmArguments& g, Share share, const std::uint8_t* smem,
                                std::uint64_t* full, std::uint64_t* empty) {
  constexpr int kBytes = dense_stage_bytes(NT);
  const int lane = threadIdx.x % 32, side = threadIdx.x / 128;
  const int first_output = 64 * side + 16 * (threadIdx.x / 32 % 4) + lane / 4;
  const int first_row = static_cast<int>(blockIdx.y) * NT * 8;
  StripSums<kKind, NT> sums;
  Largest<kLargestOnly ? NT : 1> largest;
  largest.begin();
  StripAt<kKind> at(g, share.begin);
  RingPlace place;
  int run = share.first_run, run_end = run_begin(g, run + 1);
  float2 scales = output_scales(g, at.tile, first_output);
  for (int u = share.begin; u < share.end;) {
    mbarrier_wait(&full[place.stage], place.parity);
    const std::uint8_t* stage = smem + place.stage * kBytes;
    sums.add(stage + side * kStripBytes, stage + kSides * kStripBytes, empty, place.stage);
    place.advance(g.stages);
    const int tile = at.tile;
    if (!at.advance(g)) continue;
    const bool ends_run = ++u == run_end;
    if (at.tile == tile && !ends_run) continue;
    sums.finish(empty);
    if constexpr (kLargestOnly) {
      largest.take(g.largest, tile * kTileRows + first_output, scales, sums.acc);
#pragma unroll
      for (int i = 0; i < 4 * NT; ++i) sums.acc[i / 4][i % 4] = 0.0f;
      if (ends_run) {
        largest.store(g, run, first_row, lane);
        largest.begin();
      }
    } else {
      store_tile<NT>(g, run, tile, first_row, first_output, lane, scales, sums.acc);
    }
    if (ends_run) run_end = run_begin(g, ++run + 1);
    if (at.tile != tile) scales = output_scales(g, at.tile, first_output);
  }
}

int num_sms() {
  static const int count = [] {
    int device = 0, sms = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    return sms;
  }();
  return count;
}

template <BrickKind kKind, int NT, bool kLargestOnly>
__global__ void __launch_bounds__(kDenseThreads, NT <= 8 ? 2 : 1) dense_kernel(GemmArguments g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) std::uint8_t smem[];
  __shared__ std::uint64_t full[kMostDenseStages], empty[kMostDenseStages];
  if (threadIdx.x == 0) {
    for (int i = 0; i < g.stages; ++i) {
      mbarrier_init(&full[i], 1);
      mbarrier_init(&empty[i], kMathThreads / 32);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const Share share = cta_share(g);
  if (threadIdx.x >= kMathThreads) {
    load_strips<kKind, NT>(g, share, smem, full, empty);
  } else {
    after_previous();
    multiply_strips<kKind, NT, kLargestOnly>(g, share, smem, full, empty);
  }
#endif
}

template <BrickKind kKind, int NT>
void launch_strips(GemmArguments g, int rows, bool largest_only, cudaStream_t stream) {
  const bool is_alone = NT > 8 || largest_only;
  const int budget = is_alone ? stage_budget().alone : stage_budget().shared;
  g.stages = std::min(kMostDenseStages, budget / dense_stage_bytes(NT));
  const dim3 grid(static_cast<unsigned>(g.runs),
                  static_cast<unsigned>((rows + NT * 8 - 1) / (NT * 8)));
  const std::size_t shared = static_cast<std::size_t>(g.stages) * dense_stage_bytes(NT);
  if constexpr (kKind == BrickKind::kF16) {  // heads are not packed as kE4m3
    if (largest_only) {
      launch(dense_kernel<kKind, NT, true>, grid, kDenseThreads, shared, stream, g);
      return;
    }
  }
  launch(dense_kernel<kKind, NT, false>, grid, kDenseThreads, shared, stream, g);
}

/// Tiles of eight rows of a CTA: as many as there are, up to 128 rows, but where runs are few so
/// many that all SMs have work.
int row_tiles(int runs, int rows) {
  constexpr std::array<int, 6> kRowTiles = {1, 2, 4, 8, 12, 16};
  const int blocks = (rows + kRowBlock - 1) / kRowBlock, each = (rows + blocks - 1) / blocks;
  const auto* tiles = std::find_if(kRowTiles.begin(), kRowTiles.end() - 1,
                                   [each](int nt) { return each <= 8 * nt; });
  const auto doubled = [&](int nt) {
    return 2 * runs * ((rows + 8 * nt - 1) / (8 * nt));
  };
  while (tiles != kRowTiles.begin() && doubled(*tiles) <= num_sms()) --tiles;
  return *tiles;
}

template <BrickKind kKind>
void launch_kind(const GemmArguments& g, int rows, bool largest_only, cudaStream_t stream) {
  switch (row_tiles(g.runs, rows)) {
    case 1:
      return launch_strips<kKind, 1>(g, rows, largest_only, stream);
    case 2:
      return launch_strips<kKind, 2>(g, rows, largest_only, stream);
    case 4:
      return launch_strips<kKind, 4>(g, rows, largest_only, stream);
    case 8:
      return launch_strips<kKind, 8>(g, rows, largest_only, stream);
    case 12:
      return launch_strips<kKind, 12>(g, rows, largest_only, stream);
    default:
      return launch_strips<kKind, 16>(g, rows, largest_only, stream);
  }
}

template <BrickKind kKind, int... kRowTiles>
core::Status prepare_kind() {
  cudaError_t error = cudaSuccess;
  const auto prepare = [&](auto kernel) {
    const cudaError_t result = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, stage_budget().alone);
    if (error == cudaSuccess) error = result;
  };
  (prepare(dense_kernel<kKind, kRowTiles, false>), ...);
  if constexpr (kKind == BrickKind::kF16) (prepare(dense_kernel<kKind, kRowTiles, true>), ...);
  TANDEM_CUDA(error);
  return {};
}

}  // namespace

bool has_dense_schedule(const std::vector<MatrixView>& matrices) {
  const BrickKind kind = matrices.front().kind;
  const bool is_plain = kind == BrickKind::kE4m3 || kind == BrickKind::kF16;
  return is_plain && has_wgmma() &&
         std::all_of(matrices.begin(), matrices.end(),
                     [&](const auto& m) { return m.kind == kind; });
}

bool launch_dense(const GemmArguments& g, int rows, bool largest_only, cudaStream_t stream) {
  const BrickKind kind = g.first.kind;
  const auto is_other = [&](const TileRange& range) {
    return range.bricks != nullptr && range.kind != kind;
  };
  if (!has_wgmma() || is_other(g.second) || is_other(g.third)) return false;
  if (kind == BrickKind::kE4m3) {
    launch_kind<BrickKind::kE4m3>(g, rows, largest_only, stream);
  } else if (kind == BrickKind::kF16) {
    launch_kind<BrickKind::kF16>(g, rows, largest_only, stream);
  } else {
    return false;
  }
  return true;
}

core::Status prepare_dense() {
  if (!has_wgmma()) return {};
  TANDEM_TRY((prepare_kind<BrickKind::kE4m3, 1, 2, 4, 8, 12, 16>()));
  return prepare_kind<BrickKind::kF16, 1, 2, 4, 8, 12, 16>();
}

}  // namespace tandem::kernels::cuda
