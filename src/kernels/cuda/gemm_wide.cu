// y = W x for many rows: wgmma m64nNk16, weights as A from registers, 64 or 128 rows of activations
// as B in shared memory. Two warpgroups have a brick each; while the tensor cores work on one
// k-step, a warp expands the next. Each sum has the bits of mma.sync (docs/performance.md, M1), and
// the cuts along K are the same.

#include "tandem/kernels/cuda/gemm_schedule.cuh"
#include "tandem/kernels/cuda/wgmma.cuh"

namespace tandem::kernels::cuda {
namespace {

template <BrickKind kKind, int NT>
__device__ void multiply_unit(const std::uint8_t* brick, const std::uint8_t* x, int warp, int lane,
                              float (&acc)[NT][4]) {
  BrickReader<kKind> reader;
  reader.begin(brick, warp, lane);
  std::uint32_t a[2][4];  // the k-step at work and the next one
#pragma unroll
  for (int step = 0; step < 16; ++step) {
    reader.fragment(step, a[step % 2]);
    wgmma_fence();
    wgmma_rs<8 * NT>(reinterpret_cast<float(&)[4 * NT]>(acc), a[step % 2],
                     wgmma_descriptor(x + 256 * step, 128, 4096));
    wgmma_commit();
    wgmma_wait<1>();
  }
  wgmma_wait<0>();
}

template <int NT, bool kLargestOnly>
__global__ void __launch_bounds__(kMathThreads + 32, NT == 8 ? 2 : 1) wide_kernel(GemmArguments g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
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
    const std::uint8_t* x = stage + g.unit_bytes;
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
#endif
}

template <int NT, bool kLargestOnly>
bool launch_schedule(GemmArguments g, int ctas, int rows, cudaStream_t stream) {
  const int stage_bytes = g.unit_bytes + NT * 4096;
  g.stages = std::min(kMaxStages, stage_budget().shared / stage_bytes);
  if (g.stages < 2) g.stages = std::min(kMaxStages, stage_budget().alone / stage_bytes);
  if (g.stages < 2) return false;
  const dim3 grid(static_cast<unsigned>(ctas),
                  static_cast<unsigned>((rows + NT * 8 - 1) / (NT * 8)));
  launch(wide_kernel<NT, kLargestOnly>, grid, kMathThreads + 32,
         static_cast<std::size_t>(g.stages) * stage_bytes, stream, g);
  return true;
}

bool has_wgmma() {
  static const bool has = [] {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major == 9;
  }();
  return has;
}

}  // namespace

bool launch_wide(const GemmArguments& g, int ctas, int rows, bool largest_only,
                 cudaStream_t stream) {
  if (!has_wgmma()) return false;
  const bool is_wide = rows > 64;
  if (largest_only) {
    return (is_wide && launch_schedule<16, true>(g, ctas, rows, stream)) ||
           launch_schedule<8, true>(g, ctas, rows, stream);
  }
  return (is_wide && launch_schedule<16, false>(g, ctas, rows, stream)) ||
         launch_schedule<8, false>(g, ctas, rows, stream);
}

core::Status prepare_wide() {
  if (!has_wgmma()) return {};
  const auto attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  const int bytes = stage_budget().alone;
  TANDEM_CUDA(cudaFuncSetAttribute(wide_kernel<8, false>, attribute, bytes));
  TANDEM_CUDA(cudaFuncSetAttribute(wide_kernel<8, true>, attribute, bytes));
  TANDEM_CUDA(cudaFuncSetAttribute(wide_kernel<16, false>, attribute, bytes));
  TANDEM_CUDA(cudaFuncSetAttribute(wide_kernel<16, true>, attribute, bytes));
  return {};
}

}  // namespace tandem::kernels::cuda
