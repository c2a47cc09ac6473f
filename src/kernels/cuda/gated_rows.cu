#include "tandem/kernels/cuda/gated_rows.h"

#include <algorithm>

#include "tandem/core/check.h"
#include "tandem/core/checked_math.h"
#include "tandem/kernels/cuda/cluster.cuh"
#include "tandem/kernels/cuda/e4m3.cuh"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/two_sums.cuh"

namespace tandem::kernels::cuda {
namespace {

constexpr int kMostRanks = 8;  // blocks of a row: a cluster, which shares the row's largest value
constexpr int kMostThreads = 320;
constexpr int kMostQuads = 2560;  // of columns, of a block: its values wait in shared memory
constexpr int kMostTiles = kMostGatedCols / kTileRows;
constexpr int kWantedBlocks = 256;  // two an SM
static_assert(kMostRanks * kMostQuads * 4 >= kMostGatedCols);

/// kPle: `up` is what the per-layer embeddings give.
template <bool kPle>
__global__ void __launch_bounds__(kMostThreads, 2)
    gated_rows_kernel(Partials p, int up_tile, const float* ple, int ple_stride, int cols,
                      HalfRows out, std::int32_t* broken) {
  extern __shared__ float4 values[];
  __shared__ TileParts gate_parts[kMostTiles], up_parts[kMostTiles];
  __shared__ float scratch[32];
  __shared__ float2 inbox[kMostRanks];
  __shared__ std::uint64_t sent;
  let_next_start();
  const int row = blockIdx.y, ranks = gridDim.x, quads = (cols + 3) / 4;
  const int share = (quads + ranks - 1) / ranks, first = static_cast<int>(blockIdx.x) * share;
  const int count = min(share, quads - first);
  for (int i = threadIdx.x; i < (cols + kTileRows - 1) / kTileRows; i += blockDim.x) {
    gate_parts[i] = p.parts[i];
    if (!kPle) up_parts[i] = p.parts[up_tile + i];
  }
  if (threadIdx.x == 0) {
    mbarrier_init(&sent, 1);
    fence_barrier_init();
    mbarrier_expect(&sent, ranks * static_cast<int>(sizeof(float2)));
  }
  __syncthreads();
  cluster_begin();
  wait_for_previous();
  float largest = 0.0f;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int c = 4 * (first + i), tile = c / kTileRows, n = c % kTileRows;
    float4 gate, up;
    if constexpr (kPle) {
      up = load4(ple + static_cast<std::size_t>(row) * ple_stride + c);
      gate = sum_parts(p, gate_parts[tile], row, n);
    } else {
      sum_two_parts<4>(p, row, gate_parts[tile], n, up_parts[tile], n, gate, up);
    }
    const float4 v = gelu4(gate) * up;
    values[i] = v;
    if (!(largest_of(v) <= 3.0e38f)) broken[row] = 1;
    largest = fmaxf(largest, largest_of(v));
  }
  largest = block_max(largest, scratch);
  if (ranks > 1) {  // a block alone is no cluster to send messages in
    const int rank = static_cast<int>(threadIdx.x);
    if (rank < ranks) {
      send(remote_address(&inbox[blockIdx.x], rank), remote_address(&sent, rank), largest, 0.0f);
    }
    wait_for_messages(&sent);
    for (int i = 0; i < ranks; ++i) largest = fmaxf(largest, inbox[i].x);
  }
  const float scale = e4m3_scale(largest);
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    store_e4m3(out, row, 4 * (first + i), values[i], scale);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) out.scale[row] = scale;
}

}  // namespace

void gated_rows(const Partials& p, int up_tile, const float* ple, int ple_stride, int rows,
                int cols, const HalfRows& out, std::int32_t* broken, cudaStream_t stream) {
  TANDEM_CHECK(cols <= kMostGatedCols, "a row fits its blocks");
  // As many blocks as have a quad a thread, but no more than the device holds at once.
  const int quads = (cols + 3) / 4;
  int ranks = kMostRanks;
  while (ranks > 1 && quads <= ranks / 2 * kMostQuads &&
         (ranks * rows > kWantedBlocks || quads <= ranks / 2 * 128)) {
    ranks /= 2;
  }
  const int share = (quads + ranks - 1) / ranks;
  const int passes = (share + kMostThreads - 1) / kMostThreads;
  const int threads = core::round_up((share + passes - 1) / passes, 32);
  cudaLaunchAttribute attributes[2] = {};
  const cudaLaunchConfig_t config =
      cluster_launch(ranks, dim3(static_cast<unsigned>(ranks), static_cast<unsigned>(rows)),
                     static_cast<unsigned>(threads),
                     static_cast<std::size_t>(share) * sizeof(float4), stream, attributes);
  const auto kernel = ple == nullptr ? gated_rows_kernel<false> : gated_rows_kernel<true>;
  cudaLaunchKernelEx(&config, kernel, p, up_tile, ple, ple_stride, cols, out, broken);
}

}  // namespace tandem::kernels::cuda
