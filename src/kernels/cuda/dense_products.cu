// y = W x for bricks of plain values, e4m3 codes or fp16: nothing is expanded, both operands of
// wgmma lie in shared memory as copies bring them, for any number of rows.
//
// Units are (pair of tiles, superblock); a pair of CTAs has a run of them, a tile each, in strips:
// 128 outputs x 128 bytes of K, 16 KB, and the same columns of its rows, 1 KB for eight. Two
// warpgroups multiply 64 outputs each; a ninth warp copies. There is a CTA for each SM. Up to 64
// rows it leaves room for one of the next kernel, whose first strips are then on their way early;
// above, the pair is a cluster and each brings half of the rows to both, because what the SMs read
// from L2 is the bound then. Bound with fewer: bytes of the weights.
//
// Sums of e4m3 products lose what lies 13 binary places below the largest one of an instruction
// (docs/kernels.md), so each strip is summed from zero and added to f32 sums: an order that no
// number of rows changes.

#include <array>

#include "tandem/core/check.h"
#include "tandem/kernels/cuda/cluster.cuh"
#include "tandem/kernels/cuda/gemm_schedule.cuh"
#include "tandem/kernels/cuda/wgmma_dense.cuh"

namespace tandem::kernels::cuda {
namespace {

constexpr int kSides = kTileRows / kBrickRows;
constexpr int kMostDenseStages = 8;
constexpr int kDenseThreads = kMathThreads + 32;
template <int NT>
constexpr bool kSharesRows = NT > 8;
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

/// The pair's run, in units.
struct DenseShare {
  int run, rank, begin, end;

  __device__ explicit DenseShare(const GemmArguments& g)
      : run(static_cast<int>(blockIdx.x) / kPair),
        rank(static_cast<int>(blockIdx.x) % kPair),
        begin(first_unit(g, run)),
        end(first_unit(g, run + 1)) {}

 private:
  __device__ static int first_unit(const GemmArguments& g, int run) {
    const int pairs = (g.num_tiles + kPair - 1) / kPair;
    return g.whole_tiles ? run * pairs / g.runs * g.superblocks
                         : run * (pairs * g.superblocks) / g.runs;
  }
};

/// A CTA's way through its strips.
template <BrickKind kKind>
struct StripAt {
  int tile, sb, strip = 0;  // the second tile of the last pair need not exist

  __device__ StripAt(const GemmArguments& g, const DenseShare& share)
      : tile(share.begin / g.superblocks * kPair + share.rank), sb(share.begin % g.superblocks) {}
  /// True at the end of a unit.
  __device__ bool advance(const GemmArguments& g) {
    if (++strip < strips_of(kKind)) return false;
    strip = 0;
    if (++sb == g.superblocks) {
      sb = 0;
      tile += kPair;
    }
    return true;
  }
};

/// Streams strips and rows into the ring: a warp, whose lanes share a stage's copies.
template <BrickKind kKind, int NT>
__device__ void load_strips(const GemmArguments& g, const DenseShare& share, std::uint8_t* smem,
                            std::uint64_t* full, std::uint64_t* empty) {
  constexpr int kStrips = strips_of(kKind), kBytes = dense_stage_bytes(NT);
  constexpr int kMine = kSharesRows<NT> ? NT / kPair : NT;  // tiles of rows that this CTA brings
  const int lane = threadIdx.x % 32, count = (share.end - share.begin) * kStrips;
  const int first_tile = kSharesRows<NT> ? share.rank * kMine : 0;
  const auto* x = reinterpret_cast<const std::uint8_t*>(g.x);
  const auto load_weights = [&](const StripAt<kKind>& at, int s) {
    if (lane == 0) mbarrier_expect(&full[s], kBytes);
    __syncwarp();
    if (lane >= kSides) return;
    const int tile = min(at.tile, g.num_tiles - 1);
    const TileRange range = range_of(g, tile);
    const std::size_t unit =
        static_cast<std::size_t>(tile - range.first_tile) * g.superblocks + at.sb;
    bulk_copy(smem + s * kBytes + lane * kStripBytes,
              range.bricks + (unit * kSides + lane) * brick_bytes(kKind) + at.strip * kStripBytes,
              kStripBytes, &full[s]);
  };
  const auto copy_rows = [&](std::uint8_t* to, std::size_t from, int bytes, std::uint64_t* bar) {
    if constexpr (kSharesRows<NT>) {
      bulk_copy_to((1 << kPair) - 1, to, x + from * 1024, bytes, bar);
    } else {
      bulk_copy(to, x + from * 1024, bytes, bar);
    }
  };
  const auto load_rows = [&](const StripAt<kKind>& at, int s) {
    std::uint8_t* to = smem + s * kBytes + kSides * kStripBytes + first_tile * 1024;
    const int first = static_cast<int>(blockIdx.y) * NT + first_tile;
    if constexpr (kKind == BrickKind::kE4m3) {  // rows lie in strips, too
      const std::size_t strip = static_cast<std::size_t>(at.sb * kStrips + at.strip);
      if (lane == 0) copy_rows(to, strip * g.x_tiles + first, kMine * 1024, &full[s]);
    } else if (lane < kMine) {  // of 256 columns
      const std::size_t tile = static_cast<std::size_t>(at.sb) * g.x_tiles + first + lane;
      copy_rows(to + lane * 1024, tile * kStrips + at.strip, 1024, &full[s]);
    }
  };
  StripAt<kKind> early_at(g, share), at = early_at;
  const int early = min(kEarlyStrips<NT>, count);
  for (int i = 0; i < early; ++i) {
    load_weights(early_at, i);
    early_at.advance(g);
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

/// Hands stages back, by each warp that multiplies and to all that fill them: not the last ones,
/// for which nobody waits any more, so that no block counts at one that has ended.
template <bool kShared>
struct Releases {
  std::uint64_t* empty;
  int left;

  __device__ void operator()(int stage) {
    if (--left < 0) return;
    const int lane = threadIdx.x % 32;
    if constexpr (kShared) {
      if (lane < kPair) arrive_at(remote_address(&empty[stage], lane));
    } else if (lane == 0) {
      mbarrier_arrive(&empty[stage]);
    }
  }
};

/// A strip's product: of e4m3 codes alone, of fp16 values added to `acc`. The other warpgroup is at
/// work while this one waits; products that stayed at work in a loop with branches would be
/// serialized by the compiler, one instruction after another (C7518).
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
  wgmma_wait<0>();
}

/// Sums of a run's part of a tile, strip after strip.
template <BrickKind kKind, int NT>
struct StripSums;

template <int NT>
struct StripSums<BrickKind::kE4m3, NT> {
  float acc[NT][4] = {};
  float fresh[NT][4];

  template <typename Release>
  __device__ void add(const std::uint8_t* weights, const std::uint8_t* rows, Release release) {
    multiply_strip<BrickKind::kE4m3, NT>(weights, rows, fresh);
    release();
#pragma unroll
    for (int i = 0; i < 4 * NT; ++i) acc[i / 4][i % 4] += fresh[i / 4][i % 4];
  }
};

template <int NT>
struct StripSums<BrickKind::kF16, NT> {
  float acc[NT][4] = {};

  template <typename Release>
  __device__ void add(const std::uint8_t* weights, const std::uint8_t* rows, Release release) {
    multiply_strip<BrickKind::kF16, NT>(weights, rows, acc);
    release();
  }
};

/// Where the part that `run` has of a tile lies: those of each tile in a row.
[[maybe_unused]] __device__ int dense_slot(const GemmArguments& g, int run, int tile) {
  const int pairs = (g.num_tiles + kPair - 1) / kPair;
  return g.whole_tiles ? tile : tile % kPair * (g.runs + pairs - 1) + run + tile / kPair;
}

/// The eight warps that multiply.
template <BrickKind kKind, int NT, bool kLargestOnly>
__device__ void multiply_strips(const GemmArguments& g, const DenseShare& share,
                                const std::uint8_t* smem, std::uint64_t* full,
                                std::uint64_t* empty) {
  constexpr int kBytes = dense_stage_bytes(NT);
  const int lane = threadIdx.x % 32, side = threadIdx.x / 128;
  const int first_output = 64 * side + 16 * (threadIdx.x / 32 % 4) + lane / 4;
  const int first_row = static_cast<int>(blockIdx.y) * NT * 8;
  const int units = share.end - share.begin;
  Releases<kSharesRows<NT>> release = {empty, units * strips_of(kKind) - g.stages};
  StripSums<kKind, NT> sums;
  Largest<kLargestOnly ? NT : 1> largest;
  largest.begin();
  StripAt<kKind> at(g, share);
  RingPlace place;
  float2 scales = output_scales(g, at.tile, first_output);
  for (int u = 0; u < units;) {
    mbarrier_wait(&full[place.stage], place.parity);
    const std::uint8_t* stage = smem + place.stage * kBytes;
    sums.add(stage + side * kStripBytes, stage + kSides * kStripBytes,
             [&] { release(place.stage); });
    place.advance(g.stages);
    const int tile = at.tile;
    if (!at.advance(g)) continue;
    ++u;
    if (at.tile == tile && u < units) continue;
    const bool exists = tile < g.num_tiles;
    if constexpr (kLargestOnly) {
      if (exists) largest.take(g.largest, tile * kTileRows + first_output, scales, sums.acc);
#pragma unroll
      for (int i = 0; i < 4 * NT; ++i) sums.acc[i / 4][i % 4] = 0.0f;
    } else if (exists) {
      store_tile<NT>(g, dense_slot(g, share.run, tile), first_row, first_output, lane, scales,
                     sums.acc);
    }
    scales = output_scales(g, at.tile, first_output);
  }
  if constexpr (kLargestOnly) {
    largest.store(g.largest, kPair * g.runs, static_cast<int>(blockIdx.x), first_row, lane);
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
    const int releases = kMathThreads / 32 * (kSharesRows<NT> ? kPair : 1);
    for (int i = 0; i < g.stages; ++i) {
      mbarrier_init(&full[i], 1);
      mbarrier_init(&empty[i], releases);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if constexpr (kSharesRows<NT>) cluster_begin();
  const DenseShare share(g);
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
  auto kernel = dense_kernel<kKind, NT, false>;
  if constexpr (kKind == BrickKind::kF16) {  // heads are not packed as kE4m3
    if (largest_only) kernel = dense_kernel<kKind, NT, true>;
  }
  cudaLaunchAttribute attributes[2] = {};
  const cudaLaunchConfig_t config =
      cluster_launch(kSharesRows<NT> ? kPair : 1,
                     dim3(static_cast<unsigned>(kPair * g.runs),
                          static_cast<unsigned>((rows + NT * 8 - 1) / (NT * 8))),
                     kDenseThreads, static_cast<std::size_t>(g.stages) * dense_stage_bytes(NT),
                     stream, attributes);
  cudaLaunchKernelEx(&config, kernel, g);
}

/// Tiles of eight rows of a CTA: as many as there are, up to 128 rows, but where CTAs are few so
/// many that all SMs have work.
int row_tiles(int ctas, int rows) {
  constexpr std::array<int, 6> kRowTiles = {1, 2, 4, 8, 12, 16};
  const int blocks = (rows + kRowBlock - 1) / kRowBlock, each = (rows + blocks - 1) / blocks;
  const auto* tiles = std::find_if(kRowTiles.begin(), kRowTiles.end() - 1,
                                   [each](int nt) { return each <= 8 * nt; });
  const auto doubled = [&](int nt) {
    return 2 * ctas * ((rows + 8 * nt - 1) / (8 * nt));
  };
  while (tiles != kRowTiles.begin() && doubled(*tiles) <= num_sms()) --tiles;
  return *tiles;
}

template <BrickKind kKind>
void launch_kind(const GemmArguments& g, int rows, bool largest_only, cudaStream_t stream) {
  switch (row_tiles(kPair * g.runs, rows)) {
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

DenseCuts dense_cuts(int num_tiles, int superblocks, int num_ctas, bool whole_tiles) {
  DenseCuts cuts;
  const int pairs = (num_tiles + kPair - 1) / kPair;
  const long long units = static_cast<long long>(whole_tiles ? 1 : superblocks) * pairs;
  const long long most = std::min<long long>(num_ctas / 2 / kPair, units);  // of two CTAs an SM
  const long long longest = (units + most - 1) / most;
  // Runs of one unit beside runs of two end no sooner than fewer runs of two, with fewer parts.
  cuts.runs = static_cast<int>(longest == 2 ? (units + 1) / 2 : most);
  TANDEM_CHECK(units * (cuts.runs + 2) < std::numeric_limits<int>::max(),
               "units times runs is an int");
  const auto owner = [&](long long u) {
    return static_cast<int>(((u + 1) * cuts.runs - 1) / units);
  };
  const int slots = cuts.runs + pairs - 1;  // of the first tiles of pairs, then of the second
  for (int t = 0; t < num_tiles; ++t) {
    const int pair = t / kPair, first = owner(static_cast<long long>(pair) * superblocks),
              last = owner(static_cast<long long>(pair + 1) * superblocks - 1);
    cuts.parts.push_back(whole_tiles ? TileParts{t, 1}
                                     : TileParts{t % kPair * slots + first + pair,
                                                 static_cast<std::int16_t>(last - first + 1)});
  }
  cuts.slots = whole_tiles ? num_tiles : kPair * slots;
  return cuts;
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
