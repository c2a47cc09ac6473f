// y = W x for many rows: wgmma m64nNk16, weights as A from registers, 32, 64, 96 or 128 rows of
// activations as B in shared memory. Two warpgroups have a brick each; while the tensor cores work
// on one k-step, a warp expands the next. Each sum has the bits of mma.sync
// (docs/performance-gpu.md, M1), and the cuts along K are the same.

#include "tandem/kernels/cuda/gemm_schedule.cuh"
#include "tandem/kernels/cuda/wgmma.cuh"

namespace tandem::kernels::cuda {
namespace {

struct Wgmma {
  template <BrickKind kKind, int NT>
  __device__ static void multiply(const std::uint8_t* brick, const std::uint8_t* x, int warp,
                                  int lane, float (&acc)[NT][4]) {
    BrickReader<kKind> reader;
    reader.begin(brick, warp, lane);
    const std::uint64_t b = wgmma_descriptor(x, 128, 4096);
    constexpr int kStepStride = 256 / 16;  // of k-steps in a descriptor
    // The k-steps at work and the next ones: one is long enough for 64 rows and more.
    constexpr int kSteps = NT >= 8 ? 1 : 2;
    std::uint32_t a[2][kSteps][4];
#pragma unroll
    for (int chunk = 0; chunk < kBrickChunks; ++chunk) {
      reader.load(chunk);
#pragma unroll
      for (int i = 0; i < 4 / kSteps; ++i) {
#pragma unroll
        for (int j = 0; j < kSteps; ++j) reader.fragment(i * kSteps + j, a[i % 2][j]);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < kSteps; ++j) {
          wgmma_rs<8 * NT>(reinterpret_cast<float(&)[4 * NT]>(acc), a[i % 2][j],
                           b + kStepStride * (4 * chunk + i * kSteps + j));
        }
        wgmma_commit();
        wgmma_wait<1>();
      }
    }
    wgmma_wait<0>();
  }
};

template <int NT, bool kLargestOnly>
__global__ void __launch_bounds__(kMathThreads + 32, NT <= 8 ? 2 : 1) wide_kernel(GemmArguments g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  multiply_run<Wgmma, NT, kLargestOnly>(g);
#endif
}

template <int NT>
Launched launch_rows(const GemmArguments& g, int rows, bool largest_only, cudaStream_t stream) {
  return launch_run<NT>(largest_only ? wide_kernel<NT, true> : wide_kernel<NT, false>, g, rows,
                        stream);
}

template <int NT>
core::Status prepare_rows() {
  const auto attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  const int bytes = stage_budget().alone;
  TANDEM_CUDA(cudaFuncSetAttribute(wide_kernel<NT, false>, attribute, bytes));
  TANDEM_CUDA(cudaFuncSetAttribute(wide_kernel<NT, true>, attribute, bytes));
  return {};
}

}  // namespace

bool has_wgmma() {
  static const bool has = [] {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major == 9;
  }();
  return has;
}

Launched launch_wide(const GemmArguments& g, int rows, bool largest_only, cudaStream_t stream) {
  if (!has_wgmma()) return Launched::kNot;
  if (rows <= 32) return launch_rows<4>(g, rows, largest_only, stream);
  if (rows > 64) {
    const int blocks = (rows + kRowBlock - 1) / kRowBlock, each = (rows + blocks - 1) / blocks;
    const Launched launched = each <= 96 ? launch_rows<12>(g, rows, largest_only, stream)
                                         : launch_rows<16>(g, rows, largest_only, stream);
    if (launched != Launched::kNot) return launched;
  }
  return launch_rows<8>(g, rows, largest_only, stream);
}

core::Status prepare_wide() {
  if (!has_wgmma()) return {};
  TANDEM_TRY(prepare_rows<4>());
  TANDEM_TRY(prepare_rows<8>());
  TANDEM_TRY(prepare_rows<12>());
  return prepare_rows<16>();
}

}  // namespace tandem::kernels::cuda
