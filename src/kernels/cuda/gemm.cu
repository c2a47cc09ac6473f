// y = W x for bricks of any kind, for few rows: mma.sync m16n8k16, weights as A, up to 64 rows of
// activations as B.
//
// A CTA owns a contiguous run of (tile, superblock) units; eight math warps work on the two bricks
// of a unit (16 outputs each), a ninth streams bricks and activations into a ring of stages with
// bulk copies. Bound: bytes for up to about 16 rows, expansion and tensor cores above. Two CTAs
// share an SM. Measured: docs/performance.md.

#include "tandem/kernels/cuda/gemm_schedule.cuh"

namespace tandem::kernels::cuda {

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

namespace {

// From here on wgmma is faster, whose shape does not depend on how many of its rows are used.
constexpr int kNarrowRows = 32;

/// The B fragments of two k-steps: four core matrices of 8 rows x 8 K, a row of one from each
/// lane's address.
__device__ uint4 load_fragments(const uint4* at) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(smem_address(at)));
  return v;
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
      const uint4 b = load_fragments(x + (t * 8 + pair) * 32 + lane);
      mma_m16n8k16(acc[t], low, b.x, b.y);
      mma_m16n8k16(acc[t], high, b.z, b.w);
    }
  }
}

template <int NT, bool kLargestOnly>
__global__ void __launch_bounds__(kMathThreads + 32, 2) gemm_kernel(GemmArguments g) {
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
    if (threadIdx.x == kMathThreads) {
      load_units<NT>(g, run, smem, full, empty);
    } else {
      after_previous();
    }
    return;
  }

  after_previous();
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, side = threadIdx.x / 128;
  const int first_output = 64 * side + 16 * warp + lane / 4;
  float acc[NT][4] = {};
  Largest<kLargestOnly ? NT : 1> largest;
  largest.begin();
  RingPlace at;
  int tile = run.begin / g.superblocks, sb = run.begin % g.superblocks;
  for (int u = run.begin; u < run.end; ++u) {
    const BrickKind kind = range_of(g, tile).kind;
    const int s = at.stage;
    mbarrier_wait(&full[s], at.parity);
    at.advance(g.stages);
    const std::uint8_t* stage = smem + s * stage_bytes;
    const std::uint8_t* brick = stage + side * brick_bytes(kind);
    const uint4* x = reinterpret_cast<const uint4*>(stage + g.unit_bytes);
    switch (kind) {
      case BrickKind::kQ4K:
        multiply_unit<BrickKind::kQ4K, NT>(brick, x, warp, lane, acc);
        break;
      case BrickKind::kQ6K:
        multiply_unit<BrickKind::kQ6K, NT>(brick, x, warp, lane, acc);
        break;
      case BrickKind::kQ8:
        multiply_unit<BrickKind::kQ8, NT>(brick, x, warp, lane, acc);
        break;
      case BrickKind::kF16:
        multiply_unit<BrickKind::kF16, NT>(brick, x, warp, lane, acc);
        break;
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&empty[s]);
    const bool ends_tile = ++sb == g.superblocks;
    if (!ends_tile && u + 1 != run.end) continue;
    if constexpr (kLargestOnly) {
      largest.take(g.largest, tile * kTileRows + first_output, acc);
#pragma unroll
      for (int t = 0; t < NT; ++t) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
    } else {
      store_tile<NT>(g, tile, first_row, first_output, lane, acc);
    }
    sb = 0;
    ++tile;
  }
  if constexpr (kLargestOnly)
    largest.store(g.largest, first_row, static_cast<int>(threadIdx.x) / 32, lane);
}

template <int NT, bool kLargestOnly>
void launch_schedule(GemmArguments g, int ctas, int rows, cudaStream_t stream) {
  const int stage_bytes = g.unit_bytes + NT * 4096;
  g.stages = std::min(kMaxStages, stage_budget().shared / stage_bytes);
  if (g.stages < 2) g.stages = std::min(kMaxStages, stage_budget().alone / stage_bytes);
  const dim3 grid(static_cast<unsigned>(ctas),
                  static_cast<unsigned>((rows + NT * 8 - 1) / (NT * 8)));
  launch(gemm_kernel<NT, kLargestOnly>, grid, kMathThreads + 32,
         static_cast<std::size_t>(g.stages) * stage_bytes, stream, g);
}

template <bool kLargestOnly>
void launch_gemm(const GemmArguments& g, int ctas, int rows, cudaStream_t stream) {
  if (rows > kNarrowRows && launch_wide(g, ctas, rows, kLargestOnly, stream)) return;
  if (rows <= 8) {
    launch_schedule<1, kLargestOnly>(g, ctas, rows, stream);
  } else if (rows <= 16) {
    launch_schedule<2, kLargestOnly>(g, ctas, rows, stream);
  } else if (rows <= 32) {
    launch_schedule<4, kLargestOnly>(g, ctas, rows, stream);
  } else {
    launch_schedule<8, kLargestOnly>(g, ctas, rows, stream);
  }
}

template <int NT>
core::Status prepare_schedule() {
  const int bytes = stage_budget().alone;
  TANDEM_CUDA(cudaFuncSetAttribute(gemm_kernel<NT, false>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  TANDEM_CUDA(cudaFuncSetAttribute(gemm_kernel<NT, true>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  return {};
}

}  // namespace

core::Status prepare_gemm() {
  TANDEM_TRY(prepare_schedule<1>());
  TANDEM_TRY(prepare_schedule<2>());
  TANDEM_TRY(prepare_schedule<4>());
  TANDEM_TRY(prepare_schedule<8>());
  return prepare_wide();
}

core::Result<GemmGroup> GemmGroup::create(const std::vector<MatrixView>& matrices, int num_ctas,
                                          bool whole_tiles) {
  GemmGroup group;
  group.superblocks_ = matrices.front().superblocks();
  group.whole_tiles_ = whole_tiles;
  TANDEM_CHECK(matrices.size() <= kMaxGroup, "a group has few matrices");
  for (const MatrixView& m : matrices) {
    TANDEM_CHECK(m.superblocks() == group.superblocks_, "matrices of a group share their input");
    const int unit_bytes = 2 * brick_bytes(m.kind);
    group.ranges_[static_cast<std::size_t>(group.num_matrices_++)] = {m.bricks, group.num_tiles_,
                                                                      m.kind, unit_bytes};
    group.unit_bytes_ = std::max(group.unit_bytes_, unit_bytes);
    group.num_tiles_ += m.tiles();
  }
  const long long units =
      static_cast<long long>(whole_tiles ? 1 : group.superblocks_) * group.num_tiles_;
  group.ctas_ = static_cast<int>(std::min<long long>(num_ctas, units));
  std::vector<TileParts> parts;
  for (int t = 0; t < group.num_tiles_; ++t) {
    // CTA c runs the units [units c / ctas, units (c + 1) / ctas).
    const auto owner = [&](long long u) {
      return static_cast<int>(((u + 1) * group.ctas_ - 1) / units);
    };
    const int first = owner(static_cast<long long>(t) * group.superblocks_);
    const int last = owner(static_cast<long long>(t + 1) * group.superblocks_ - 1);
    parts.push_back(whole_tiles ? TileParts{t, 1} : TileParts{first + t, last - first + 1});
  }
  group.slots_ = parts.back().first_slot + parts.back().count;
  TANDEM_ASSIGN(group.parts_, DeviceBuffer::copy_of(parts));
  return core::Result<GemmGroup>(std::move(group));
}

Partials GemmGroup::run(const HalfRows& x, int rows, float* partials, int max_rows,
                        cudaStream_t stream) const {
  TANDEM_CHECK((x.cols + kBrickCols - 1) / kBrickCols == superblocks_,
               "the input has another width");
  launch_gemm<false>({ranges_[0],
                      ranges_[1],
                      ranges_[2],
                      reinterpret_cast<const uint4*>(x.data),
                      partials,
                      num_tiles_,
                      superblocks_,
                      x.row_tiles,
                      max_rows,
                      unit_bytes_,
                      0,
                      whole_tiles_,
                      {}},
                     ctas_, rows, stream);
  return {partials, parts_.as<TileParts>(), x.scale, max_rows};
}

void GemmGroup::run_largest(const HalfRows& x, int rows, const LargestOutputs& out,
                            cudaStream_t stream) const {
  TANDEM_CHECK(whole_tiles_ && num_matrices_ == 1, "largest outputs are those of one matrix");
  launch_gemm<true>(
      {ranges_[0], ranges_[1], ranges_[2], reinterpret_cast<const uint4*>(x.data), nullptr,
       num_tiles_, superblocks_, x.row_tiles, 0, unit_bytes_, 0, whole_tiles_, out},
      ctas_, rows, stream);
}

}  // namespace tandem::kernels::cuda
