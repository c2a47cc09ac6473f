// A layer's per-layer embeddings in one kernel instead of five: what is pending, the gate's
// product, the projection's, two norms and the residual, for eight rows a cluster.
//
// A cluster has one block for each 256 columns of E. Block i holds columns [256 i, 256 i + 256) of
// x in registers; they are the K of its share of the gate, whose sums all blocks add up in
// ascending order, and the outputs of its share of the projection. So only sums and gated values
// cross blocks, through shared memory, and both matrices are on their way before anything is waited
// for. Bound: latency (five exchanges in a cluster, two products of 256 x 256 a block).

#include "tandem/kernels/cuda/ple_block.h"

#include <algorithm>

#include "tandem/kernels/cuda/cluster.cuh"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/mma_sync.cuh"
#include "tandem/kernels/cuda/row_math.cuh"

namespace tandem::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kRows = 8;
constexpr int kMostRows =
    48;  // from here on separate kernels, which use more of the device, are faster
constexpr int kMostRanks = 16;
constexpr int kSlice = kBrickCols;      // columns of a block, and the most that P may be
constexpr int kSumStride = kSlice + 4;  // against bank conflicts

struct PleArguments {
  PleBlock block;
  float* x;
  int rows, cols;
  float eps;
  const float* norm;
  HalfRows out;
  float* plain;
  std::int32_t* broken;
};

struct Shared {
  std::uint8_t input[kRows * kSlice * 2];  // B operands: this block's columns of x,
  std::uint8_t gated[kRows * kSlice * 2];  // and all gated values
  float sums[kRows][kSumStride];
  float parts[kRows * (kSlice + 2 * kMostRanks)];  // of this block's gate outputs, from all blocks
  SumAndLargest inbox[4][kRows][2 * kMostRanks];   // two warps' sums of each block
  float input_scale[kRows];
  std::uint64_t gate_arrived, projection_arrived;      // weights
  std::uint64_t sums_sent[4], parts_sent, gated_sent;  // messages of the cluster
};
constexpr int kSharedBytes = (sizeof(Shared) + 127) / 128 * 128;

/// Outputs of the gate that a block finishes: an even number, so that they travel in pairs.
__device__ int gate_share() {
  return (kSlice / 2 + gridDim.x - 1) / gridDim.x * 2;
}

/// Says how many bytes each barrier stands for. One thread, before the cluster's only barrier.
__device__ void expect_messages(Shared& s) {
  const int ranks = gridDim.x, share = gate_share();
  const int mine = max(0, min(share, kSlice - static_cast<int>(blockIdx.x) * share));
  const auto expect = [](std::uint64_t* barrier, int bytes) {
    mbarrier_init(barrier, 1);
    fence_barrier_init();
    mbarrier_expect(barrier, bytes);
  };
  for (std::uint64_t& barrier : s.sums_sent) {
    expect(&barrier, kRows * 2 * ranks * static_cast<int>(sizeof(SumAndLargest)));
  }
  expect(&s.parts_sent, ranks * kRows * mine * static_cast<int>(sizeof(float)));
  expect(&s.gated_sent, static_cast<int>(sizeof(s.gated)));
}

/// Over whole rows, of which each block has its share: two warps a row. Not inlined four times:
/// kernels of microseconds pay for the code that they fetch.
__device__ __noinline__ SumAndLargest exchange(SumAndLargest v, Shared& s, int which) {
  const int ranks = gridDim.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  SumAndLargest* row = s.inbox[which][warp / 2];
  const SumAndLargest mine = over_warp(v);
  if (lane < ranks) {
    send(remote_address(&row[2 * blockIdx.x + warp % 2], lane),
         remote_address(&s.sums_sent[which], lane), mine.sum, mine.largest);
  }
  wait_for_messages(&s.sums_sent[which]);
  return over_warp(lane < 2 * ranks ? row[lane] : SumAndLargest{});
}

/// sums[row][output] = 16 outputs a warp of the four bricks at `bricks` times the rows of `b`.
__device__ void multiply_slice(BrickKind kind, const std::uint8_t* bricks, const std::uint8_t* b,
                               float (*sums)[kSumStride]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::uint8_t* brick = bricks + warp / 4 * brick_bytes(kind);
  float acc[1][4] = {};
  switch (kind) {
    case BrickKind::kQ4K:
      MmaSync::multiply<BrickKind::kQ4K, 1>(brick, b, warp % 4, lane, acc);
      break;
    case BrickKind::kQ6K:
      MmaSync::multiply<BrickKind::kQ6K, 1>(brick, b, warp % 4, lane, acc);
      break;
    case BrickKind::kQ8:
      MmaSync::multiply<BrickKind::kQ8, 1>(brick, b, warp % 4, lane, acc);
      break;
    default:
      break;  // refused by ple_block_rows()
  }
  const int n = 16 * warp + lane / 4, row = 2 * (lane % 4);
  const float unit = brick_unit(kind);
  sums[row][n] = acc[0][0] * unit;
  sums[row + 1][n] = acc[0][1] * unit;
  sums[row][n + 8] = acc[0][2] * unit;
  sums[row + 1][n + 8] = acc[0][3] * unit;
}

/// Index of (row, k) in a B operand of 8 rows x 256 K.
__device__ int operand_index(int row, int k) {
  return k / 8 * 64 + row * 8 + k % 8;
}

/// Starts both matrices' way into shared memory.
__device__ void load_weights(const PleBlock& b, std::uint8_t* gate, std::uint8_t* projection,
                             Shared& s) {
  const int rank = blockIdx.x;
  const int unit = 2 * brick_bytes(b.gate.kind), last = 2 * brick_bytes(b.projection.kind);
  const int tiles = b.gate.tiles(), outputs = min(2, b.projection.tiles() - 2 * rank);
  mbarrier_init(&s.gate_arrived, 1);
  mbarrier_init(&s.projection_arrived, 1);
  fence_barrier_init();
  mbarrier_expect(&s.gate_arrived, tiles * unit);
  for (int t = 0; t < tiles; ++t) {
    const std::size_t at = static_cast<std::size_t>(t) * b.gate.superblocks() + rank;
    bulk_copy(gate + t * unit, b.gate.bricks + at * unit, unit, &s.gate_arrived);
  }
  mbarrier_expect(&s.projection_arrived, outputs * last);
  bulk_copy(projection, b.projection.bricks + static_cast<std::size_t>(2 * rank) * last,
            outputs * last, &s.projection_arrived);
}

/// This thread's four columns of a row: two warps a row.
struct Place {
  int r, k, row, col;  // within the block, and in x
  bool is_inside;
  __device__ explicit Place(const PleArguments& a)
      : r(threadIdx.x / 64),
        k(4 * (threadIdx.x % 64)),
        row(blockIdx.y * kRows + r),
        col(kSlice * blockIdx.x + k),
        is_inside(col < a.cols && row < a.rows) {}
};

/// x as the gate's operand, with the power-of-two scale that residual_norm() gives its row.
__device__ void store_operand(const PleArguments& a, Shared& s, const Place& at, float4 x) {
  const SumAndLargest all = exchange({sum_of_squares(x), largest_of(x)}, s, 3);
  if (at.is_inside && !(all.sum <= 3.0e38f)) a.broken[at.row] = 1;
  const float scale = row_scale(all.largest);
  const float4 scaled = x * inverse_power(scale);
  half2* to =
      reinterpret_cast<half2*>(reinterpret_cast<half*>(s.input) + operand_index(at.r, at.k));
  to[0] = __floats2half2_rn(scaled.x, scaled.y);
  to[1] = __floats2half2_rn(scaled.z, scaled.w);
  if (at.k == 0) s.input_scale[at.r] = scale;
  __syncthreads();
}

/// Hands every block its share of this block's gate sums, a pair of columns a message.
__device__ void send_parts(const PleArguments& a, Shared& s, const Place& at) {
  const int share = gate_share();
  float4 v = {};
  if (at.k < a.block.gate.tiles() * kTileRows) {
    v = load4(&s.sums[at.r][at.k]);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int n = at.k + 2 * i, rank = n / share;
    const float* to = &s.parts[(blockIdx.x * kRows + at.r) * share + n % share];
    send(remote_address(to, rank), remote_address(&s.parts_sent, rank), i ? v.z : v.x,
         i ? v.w : v.y);
  }
}

/// Adds the parts of this block's gate outputs in ascending K and hands every block the gated
/// values. Stored / 64, saturating, as geglu() does.
__device__ void send_gated(const PleArguments& a, Shared& s) {
  const int ranks = gridDim.x, share = gate_share();
  for (int i = threadIdx.x; i < kRows * share / 2; i += kThreads) {
    const int r = i / (share / 2), pair = i % (share / 2) * 2, n = blockIdx.x * share + pair;
    const int row = blockIdx.y * kRows + r;
    if (n >= kSlice) continue;
    const float* inputs = a.block.ple + static_cast<std::size_t>(row) * a.block.ple_stride + n;
    float input[2] = {}, gate[2] = {};
    for (int j = 0; j < 2; ++j) {
      if (row < a.rows && n + j < a.block.gate.rows) input[j] = inputs[j];
    }
    wait_for_messages(&s.parts_sent);
#pragma unroll 2
    for (int rank = 0; rank < ranks; ++rank) {
      const float* part = &s.parts[(rank * kRows + r) * share + pair];
      gate[0] += part[0];
      gate[1] += part[1];
    }
    float value[2];
    for (int j = 0; j < 2; ++j) {
      value[j] = gelu_tanh(gate[j] * s.input_scale[r]) * input[j] * (1.0f / kGateScale);
      if (!(fabsf(value[j]) <= 65504.0f)) a.broken[row] = 1;
      value[j] = fminf(fmaxf(value[j], -65504.0f), 65504.0f);
    }
    const half* to = reinterpret_cast<half*>(s.gated) + operand_index(r, n);
#pragma unroll 1
    for (int rank = 0; rank < ranks; ++rank) {
      send(remote_address(to, rank), remote_address(&s.gated_sent, rank),
           __floats2half2_rn(value[0], value[1]));
    }
  }
}

/// From x to the gated values in every block.
__device__ void run_gate(const PleArguments& a, Shared& s, const Place& at,
                         const std::uint8_t* bricks, float4 x) {
  store_operand(a, s, at, x);
  if (static_cast<int>(threadIdx.x / 256) < a.block.gate.tiles()) {
    mbarrier_wait(&s.gate_arrived, 0);
    multiply_slice(a.block.gate.kind, bricks, s.input, s.sums);
  }
  __syncthreads();
  send_parts(a, s, at);
  send_gated(a, s);
  wait_for_messages(&s.gated_sent);
}

/// The sums of the projection at this thread's place.
__device__ float4 run_projection(const PleArguments& a, Shared& s, const Place& at,
                                 const std::uint8_t* bricks) {
  if (static_cast<int>(2 * blockIdx.x + threadIdx.x / 256) < a.block.projection.tiles()) {
    mbarrier_wait(&s.projection_arrived, 0);
    multiply_slice(a.block.projection.kind, bricks, s.gated, s.sums);
  }
  __syncthreads();
  return load4(&s.sums[at.r][at.k]) * kGateScale;
}

/// x with what was pending, which is all that the block waits for.
__device__ float4 begin_row(const PleArguments& a, Shared& s, const Place& at) {
  const Residual& before = a.block.before;
  const bool has_delta = before.delta.data != nullptr;
  float4 old = {}, norm = {}, delta = {};
  TileParts parts = {};
  const float* x = a.x + static_cast<std::size_t>(at.row) * a.cols + at.col;
  if (at.is_inside && has_delta) {
    parts = before.delta.parts[before.first_tile + at.col / kTileRows];
    if (before.post_norm) norm = load4(before.post_norm + at.col);
    if (!before.replace) old = load4(x);  // two kernels old or older
  }
  cluster_begin();  // the others' shared memory is there
  wait_for_previous();
  if (!has_delta) return at.is_inside ? load4(x) : old;
  if (at.is_inside) delta = sum_parts(before.delta, parts, at.row, at.col % kTileRows);
  if (before.post_norm) {
    const SumAndLargest all = exchange({sum_of_squares(delta), 0}, s, 0);
    delta = delta * inverse_rms(all.sum, a.cols, a.eps) * norm;
  }
  return (before.replace ? delta : old + delta) * before.scale;
}

__global__ void __launch_bounds__(kThreads, 2) ple_block_kernel(PleArguments a) {
  extern __shared__ __align__(128) std::uint8_t smem[];
  let_next_start();
  Shared& s = *reinterpret_cast<Shared*>(smem);
  std::uint8_t* gate = smem + kSharedBytes;
  std::uint8_t* projection = gate + 2 * a.block.gate.tiles() * brick_bytes(a.block.gate.kind);
  if (threadIdx.x == 0) load_weights(a.block, gate, projection, s);
  if (threadIdx.x == 32) expect_messages(s);
  const Place at(a);
  float4 x = begin_row(a, s, at);
  run_gate(a, s, at, gate, x);
  float4 delta = run_projection(a, s, at, projection);
  float4 norm = {1, 1, 1, 1}, next_norm = {1, 1, 1, 1};
  if (at.is_inside) {
    norm = load4(a.block.post_norm + at.col);
    if (a.norm) next_norm = load4(a.norm + at.col);
  } else {
    delta = {};
  }
  const float squares_of_delta = exchange({sum_of_squares(delta), 0}, s, 1).sum;
  x = (x + delta * inverse_rms(squares_of_delta, a.cols, a.eps) * norm) * a.block.scale;
  if (at.is_inside) store4(a.x + static_cast<std::size_t>(at.row) * a.cols + at.col, x);
  const float squares = sum_of_squares(x);
  x = x * next_norm;
  const SumAndLargest all = exchange({squares, largest_of(x)}, s, 2);
  if (!at.is_inside) return;
  if (!(all.sum <= 3.0e38f)) a.broken[at.row] = 1;
  const float inverse = a.norm ? inverse_rms(all.sum, a.cols, a.eps) : 1.0f;
  const float scale = row_scale(all.largest * inverse);
  x = x * inverse;
  if (a.plain) store4(a.plain + static_cast<std::size_t>(at.row) * a.cols + at.col, x);
  if (a.out.data == nullptr) return;
  store_half4(a.out, at.row, at.col, x * inverse_power(scale));
  if (at.col == 0) a.out.scale[at.row] = scale;
}

bool has_schedule(const MatrixView& w) {
  const bool is_built =
      w.kind == BrickKind::kQ4K || w.kind == BrickKind::kQ6K || w.kind == BrickKind::kQ8;
  return is_built && w.row_scales == nullptr && w.input == InputForm::kHalf;
}

int shared_bytes(const MatrixView& gate, const MatrixView& projection) {
  return kSharedBytes + 2 * gate.tiles() * brick_bytes(gate.kind) +
         4 * brick_bytes(projection.kind);
}

/// A launch of a cluster for each kRows rows; `attributes` must live until it is made.
cudaLaunchConfig_t configuration(const MatrixView& gate, const MatrixView& projection, int rows,
                                 cudaStream_t stream, cudaLaunchAttribute (&attributes)[2]) {
  const dim3 grid(static_cast<unsigned>(gate.superblocks()),
                  static_cast<unsigned>((rows + kRows - 1) / kRows));
  return cluster_launch(gate.superblocks(), grid, kThreads,
                        static_cast<std::size_t>(shared_bytes(gate, projection)), stream,
                        attributes);
}

}  // namespace

int ple_block_rows(const MatrixView& gate, const MatrixView& projection) {
  int device = 0, most = 0, clusters = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (gate.rows > kSlice || gate.superblocks() < 2 || gate.superblocks() > kMostRanks ||
      !has_schedule(gate) || !has_schedule(projection) || shared_bytes(gate, projection) > most) {
    return 0;
  }
  cudaLaunchAttribute attributes[2] = {};
  const cudaLaunchConfig_t config = configuration(gate, projection, 1, nullptr, attributes);
  const bool is_placed =
      cudaFuncSetAttribute(ple_block_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most) ==
          cudaSuccess &&
      cudaFuncSetAttribute(ple_block_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) ==
          cudaSuccess &&
      cudaOccupancyMaxActiveClusters(&clusters, ple_block_kernel, &config) == cudaSuccess;
  cudaGetLastError();  // a refusal is an answer
  return is_placed ? std::min(clusters * kRows, kMostRows) : 0;
}

void ple_block(const PleBlock& b, float* x, int rows, int cols, float eps, const float* norm,
               const HalfRows& out, float* plain, std::int32_t* broken, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2] = {};
  const cudaLaunchConfig_t config = configuration(b.gate, b.projection, rows, stream, attributes);
  cudaLaunchKernelEx(&config, ple_block_kernel,
                     PleArguments{b, x, rows, cols, eps, norm, out, plain, broken});
}

}  // namespace tandem::kernels::cuda
