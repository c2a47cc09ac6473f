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
    96;  // beyond, separate kernels, which use more of the device, are as fast
// So many clusters of 10 blocks find SMs of their own, and must: two that share some wait for each
// other in every exchange.
constexpr int kClustersAlone = 6;
constexpr int kMostRanks = 16;
constexpr int kExchanges = 3;           // of sums over whole rows
constexpr int kSlice = kBrickCols;      // columns of a block, and the most that P may be
constexpr int kSumStride = kSlice + 4;  // against bank conflicts
constexpr int kMostFinished = 15 * 24;  // outputs of the gate, in whole octets of every rank
constexpr int kHalfSteps = kBrickCols / 16 / 2;

struct PleArguments {
  PleBlock block;
  float* x;
  int rows, cols;
  int gate_octets;     // of the gate's outputs, that a block finishes
  int inverse_octets;  // 2^16 / gate_octets, rounded up
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
  float parts[kMostFinished * kRows];  // of gate outputs: [rank][of this block][row]
  SumAndLargest inbox[kExchanges][kRows][2 * kMostRanks];  // two warps' sums of each block
  float post_norm[kSlice], norm[kSlice];
  float input_scale[kRows];
  std::uint64_t gate_arrived, projection_arrived;                      // weights
  std::uint64_t sums_sent[kExchanges][kRows], parts_sent, gated_sent;  // messages of the cluster
};
constexpr int kSharedBytes = (sizeof(Shared) + 127) / 128 * 128;

/// This thread's four columns of a row: two warps a row.
struct Place {
  int first_row, rows;  // of the cluster
  int r, k, row, col;   // within the block, and in x
  bool is_row, is_inside;
  __device__ explicit Place(const PleArguments& a)
      : first_row(blockIdx.y * kRows),
        rows(min(kRows, a.rows - first_row)),
        r(threadIdx.x / 64),
        k(4 * (threadIdx.x % 64)),
        row(first_row + r),
        col(kSlice * blockIdx.x + k),
        is_row(r < rows),
        is_inside(is_row && col < a.cols) {}
};

/// Says how many bytes each barrier stands for. One warp, before the cluster's only barrier.
__device__ void expect_messages(Shared& s, int share, int rows) {
  const int ranks = gridDim.x, lane = threadIdx.x % 32;
  const int mine = max(0, min(share, kSlice - static_cast<int>(blockIdx.x) * share));
  const auto expect = [](std::uint64_t* barrier, int bytes) {
    mbarrier_init(barrier, 1);
    fence_barrier_init();
    mbarrier_expect(barrier, bytes);
  };
  if (lane < kExchanges * kRows) {
    expect(&s.sums_sent[lane / kRows][lane % kRows],
           2 * ranks * static_cast<int>(sizeof(SumAndLargest)));
  } else if (lane == kExchanges * kRows) {
    expect(&s.parts_sent, ranks * mine * ((rows + 1) / 2) * static_cast<int>(sizeof(float2)));
    expect(&s.gated_sent, rows * kSlice * static_cast<int>(sizeof(half)));
  }
}

/// Sums over whole rows, of which each block has its share: two warps a row.
__device__ void send_sums(SumAndLargest v, Shared& s, const Place& at, int which) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const SumAndLargest mine = over_warp(v);
  if (!at.is_row || lane >= gridDim.x) return;
  send(remote_address(&s.inbox[which][at.r][2 * blockIdx.x + warp % 2], lane),
       remote_address(&s.sums_sent[which][at.r], lane), mine.sum, mine.largest);
}
__device__ SumAndLargest receive_sums(Shared& s, const Place& at, int which) {
  const int lane = threadIdx.x % 32;
  if (!at.is_row) return {};
  wait_for_messages(&s.sums_sent[which][at.r]);
  return over_warp(lane < 2 * gridDim.x ? s.inbox[which][at.r][lane] : SumAndLargest{});
}

/// Index of (row, k) in a B operand of 8 rows x 256 K.
__device__ int operand_index(int row, int k) {
  return k / 8 * 64 + row * 8 + k % 8;
}

/// 16 outputs a warp of four bricks times eight rows, in the order and with the bits of
/// MmaSync::multiply(). Half of the weights becomes fp16 while the rows are still on their way.
class SliceProduct {
 public:
  /// Warps beyond `tiles` tiles have no outputs: their sums are 0.
  __device__ SliceProduct(BrickKind kind, const std::uint8_t* bricks, int tiles)
      : kind_(kind),
        brick_(bricks + threadIdx.x / 128 * brick_bytes(kind)),
        has_outputs_(static_cast<int>(threadIdx.x / 256) < tiles) {}

  __device__ void begin(std::uint64_t* arrived) {
    mbarrier_wait(arrived, 0);
    if (has_outputs_) expand<false>(nullptr);
  }
  /// sums(): of outputs n and, the last two, n + 8; of two rows each (mma.sync's C fragment).
  __device__ void finish(const std::uint8_t* rows) {
    if (!has_outputs_) return;
    const uint4* x = reinterpret_cast<const uint4*>(rows) + threadIdx.x % 32;
    expand<true>(x);
#pragma unroll
    for (int step = 0; step < kHalfSteps; step += 2) multiply(x, kHalfSteps + step);
    for (float& sum : sums_) sum *= brick_unit(kind_);
  }
  __device__ const float (&sums() const)[4] {
    return sums_;
  }

 private:
  template <bool kIsSecond>
  __device__ void expand(const uint4* x) {
    switch (kind_) {
      case BrickKind::kQ4K:
        return expand_as<BrickKind::kQ4K, kIsSecond>(x);
      case BrickKind::kQ6K:
        return expand_as<BrickKind::kQ6K, kIsSecond>(x);
      case BrickKind::kQ8:
        return expand_as<BrickKind::kQ8, kIsSecond>(x);
      default:
        return;  // refused by ple_block_rows()
    }
  }
  /// The second half takes the place of the first, step by step as that is multiplied.
  template <BrickKind kKind, bool kIsSecond>
  __device__ void expand_as(const uint4* x) {
    BrickReader<kKind> reader;
    reader.begin(brick_, threadIdx.x / 32 % 4, threadIdx.x % 32);
    if (kIsSecond) reader.fetch(kBrickChunks / 2);
#pragma unroll
    for (int step = 0; step < kHalfSteps; step += 2) {
      if (step % 4 == 0) reader.load((kIsSecond ? kBrickChunks / 2 : 0) + step / 4);
      if (kIsSecond) multiply(x, step);
      reader.fragment(step % 4, fragments_[step]);
      reader.fragment(step % 4 + 1, fragments_[step + 1]);
    }
  }
  __device__ void multiply(const uint4* x, int step) {
    const uint4 b = load_fragments(x + step / 2 * 32);
    mma_m16n8k16(sums_, fragments_[step % kHalfSteps], b.x, b.y);
    mma_m16n8k16(sums_, fragments_[step % kHalfSteps + 1], b.z, b.w);
  }

  BrickKind kind_;
  const std::uint8_t* brick_;
  bool has_outputs_;
  std::uint32_t fragments_[kHalfSteps][4];  // half of a brick's columns
  float sums_[4] = {};
};

/// Starts the way of both matrices and of two norms into shared memory.
__device__ void load_weights(const PleArguments& a, std::uint8_t* gate, std::uint8_t* projection,
                             Shared& s) {
  const PleBlock& b = a.block;
  const int rank = blockIdx.x;
  const int unit = 2 * brick_bytes(b.gate.kind), last = 2 * brick_bytes(b.projection.kind);
  const int tiles = b.gate.tiles(), outputs = min(2, b.projection.tiles() - 2 * rank);
  const int norm_bytes = min(kSlice, a.cols - kSlice * rank) * static_cast<int>(sizeof(float));
  mbarrier_init(&s.gate_arrived, 1);
  mbarrier_init(&s.projection_arrived, 1);
  fence_barrier_init();
  mbarrier_expect(&s.gate_arrived, tiles * unit);
  for (int t = 0; t < tiles; ++t) {
    const std::size_t at = static_cast<std::size_t>(t) * b.gate.superblocks() + rank;
    bulk_copy(gate + t * unit, b.gate.bricks + at * unit, unit, &s.gate_arrived);
  }
  mbarrier_expect(&s.projection_arrived, outputs * last + (a.norm ? 2 : 1) * norm_bytes);
  bulk_copy(projection, b.projection.bricks + static_cast<std::size_t>(2 * rank) * last,
            outputs * last, &s.projection_arrived);
  bulk_copy(s.post_norm, b.post_norm + kSlice * rank, norm_bytes, &s.projection_arrived);
  if (a.norm) bulk_copy(s.norm, a.norm + kSlice * rank, norm_bytes, &s.projection_arrived);
}

/// x as the gate's operand, with the power-of-two scale that residual_norm() gives its row.
__device__ void store_operand(const PleArguments& a, Shared& s, const Place& at, float4 x,
                              float scale) {
  if (at.is_inside && !(sum_of_squares(x) <= 3.0e38f)) a.broken[at.row] = 1;
  const float4 scaled = x * inverse_power(scale);
  half2* to =
      reinterpret_cast<half2*>(reinterpret_cast<half*>(s.input) + operand_index(at.r, at.k));
  to[0] = __floats2half2_rn(scaled.x, scaled.y);
  to[1] = __floats2half2_rn(scaled.z, scaled.w);
  if (at.k == 0) s.input_scale[at.r] = scale;
  __syncthreads();
}

/// Hands every block the sums of its share of the gate's outputs, two rows a message. An octet of
/// outputs is of one block.
__device__ void send_parts(const PleArguments& a, Shared& s, const Place& at,
                           const float (&sums)[4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = 2 * (lane % 4);
  if (row >= at.rows) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int octet = 2 * warp + i, rank = octet * a.inverse_octets >> 16;
    const int n = 8 * ((blockIdx.x - rank) * a.gate_octets + octet) + lane / 4;
    send(remote_address(&s.parts[n * kRows + row], rank), remote_address(&s.parts_sent, rank),
         sums[2 * i], sums[2 * i + 1]);
  }
}

/// The input from the per-layer embeddings for value i of the block's share, [output][row].
__device__ float ple_input(const PleArguments& a, const Place& at, int i) {
  const int share = 8 * a.gate_octets, n = static_cast<int>(blockIdx.x) * share + i / kRows;
  if (i >= share * kRows || n >= a.block.gate.rows || i % kRows >= at.rows) return 0.0f;
  return a.block.ple[static_cast<std::size_t>(at.first_row + i % kRows) * a.block.ple_stride + n];
}

/// Adds the parts of this block's gate outputs in ascending K and hands every block the gated
/// values, four of a row a message. Stored / 64, saturating, as geglu() does. `input`: of value
/// threadIdx.x.
__device__ void send_gated(const PleArguments& a, Shared& s, const Place& at, float input) {
  const int ranks = gridDim.x, share = 8 * a.gate_octets, quarter = threadIdx.x / 8 % 4;
  const int r = threadIdx.x % kRows;
  for (int i = threadIdx.x; i < share * kRows; i += kThreads) {
    const int n = static_cast<int>(blockIdx.x) * share + i / kRows;
    if (n >= kSlice) return;
    if (i >= kThreads) input = ple_input(a, at, i);
    wait_for_messages(&s.parts_sent);
    float gate = 0;
#pragma unroll 5
    for (int rank = 0; rank < ranks; ++rank) gate += s.parts[rank * share * kRows + i];
    float value = gelu_tanh(gate * s.input_scale[r]) * input * (1.0f / kGateScale);
    if (r < at.rows && !(fabsf(value) <= 65504.0f)) a.broken[at.first_row + r] = 1;
    value = fminf(fmaxf(value, -65504.0f), 65504.0f);
    const float other = __shfl_xor_sync(0xffffffffu, value, 8);
    const std::uint32_t two =
        as_bits(quarter & 1 ? __floats2half2_rn(other, value) : __floats2half2_rn(value, other));
    const std::uint32_t two_more = __shfl_xor_sync(0xffffffffu, two, 16);
    const uint2 four = quarter & 2 ? uint2{two_more, two} : uint2{two, two_more};
    if (r >= at.rows) continue;
    const half* to = reinterpret_cast<half*>(s.gated) + operand_index(r, n / 4 * 4);
    for (int rank = quarter; rank < ranks; rank += 4) {
      send(remote_address(to, rank), remote_address(&s.gated_sent, rank), four);
    }
  }
}

/// The sums of the projection at this thread's place.
__device__ float4 at_place(const Place& at, Shared& s, const float (&sums)[4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int n = 16 * warp + lane / 4, row = 2 * (lane % 4);
  s.sums[row][n] = sums[0];
  s.sums[row + 1][n] = sums[1];
  s.sums[row][n + 8] = sums[2];
  s.sums[row + 1][n + 8] = sums[3];
  __syncthreads();
  return at.is_inside ? load4(&s.sums[at.r][at.k]) * kGateScale : float4{};
}

/// x with what was pending, which is all that the block waits for, as the operand of `gate`.
/// `input`: ple_input() of this thread.
__device__ float4 begin_row(const PleArguments& a, Shared& s, const Place& at, SliceProduct& gate,
                            float& input) {
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
  const float most_normed = most_after_norm(norm, a.cols);
  if (has_delta) input = ple_input(a, at, threadIdx.x);
  cluster_begin();  // the others' shared memory is there
  wait_for_previous();
  if (!has_delta) input = ple_input(a, at, threadIdx.x);
  if (at.is_inside) {
    if (has_delta) {
      delta = sum_parts(before.delta, parts, at.row, at.col % kTileRows);
    } else {
      old = load4(x);
    }
  }
  const float most = largest_of(old) + (before.post_norm ? most_normed : largest_of(delta));
  send_sums({sum_of_squares(delta), most}, s, at, 0);
  gate.begin(&s.gate_arrived);
  const SumAndLargest all = receive_sums(s, at, 0);
  if (before.post_norm) delta = delta * inverse_rms(all.sum, a.cols, a.eps) * norm;
  const float4 v = (before.replace ? delta : old + delta) * before.scale;
  store_operand(a, s, at, v, row_scale(all.largest * fabsf(before.scale)));
  return v;
}

__global__ void __launch_bounds__(kThreads, 2) ple_block_kernel(PleArguments a) {
  extern __shared__ __align__(128) std::uint8_t smem[];
  let_next_start();
  Shared& s = *reinterpret_cast<Shared*>(smem);
  std::uint8_t* gate_bricks = smem + kSharedBytes;
  std::uint8_t* projection_bricks =
      gate_bricks + 2 * a.block.gate.tiles() * brick_bytes(a.block.gate.kind);
  const Place at(a);
  if (threadIdx.x == 0) load_weights(a, gate_bricks, projection_bricks, s);
  if (threadIdx.x / 32 == 1) expect_messages(s, 8 * a.gate_octets, at.rows);
  SliceProduct gate(a.block.gate.kind, gate_bricks, a.block.gate.tiles());
  SliceProduct projection(a.block.projection.kind, projection_bricks,
                          a.block.projection.tiles() - 2 * static_cast<int>(blockIdx.x));
  float input = 0.0f;
  float4 x = begin_row(a, s, at, gate, input);
  gate.finish(s.input);
  send_parts(a, s, at, gate.sums());
  send_gated(a, s, at, input);
  projection.begin(&s.projection_arrived);
  wait_for_messages(&s.gated_sent);
  projection.finish(s.gated);
  const float4 delta = at_place(at, s, projection.sums());
  send_sums({sum_of_squares(delta), 0}, s, at, 1);
  const float squares_of_delta = receive_sums(s, at, 1).sum;
  x = (x + delta * inverse_rms(squares_of_delta, a.cols, a.eps) * load4(s.post_norm + at.k)) *
      a.block.scale;
  if (!at.is_inside) x = {};  // beyond the last column the norms are whatever was there
  const float squares = sum_of_squares(x);
  const float4 old = x;
  if (a.norm && at.is_inside) x = x * load4(s.norm + at.k);
  send_sums({squares, largest_of(x)}, s, at, 2);
  if (at.is_inside) store4(a.x + static_cast<std::size_t>(at.row) * a.cols + at.col, old);
  const SumAndLargest all = receive_sums(s, at, 2);
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

/// A launch of some clusters; `attributes` must live until it is made.
cudaLaunchConfig_t configuration(const MatrixView& gate, const MatrixView& projection, int clusters,
                                 cudaStream_t stream, cudaLaunchAttribute (&attributes)[2]) {
  const dim3 grid(static_cast<unsigned>(gate.superblocks()), static_cast<unsigned>(clusters));
  int bytes = shared_bytes(gate, projection);
  if (clusters <= kClustersAlone) {
    int device = 0, all = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    bytes = std::max(bytes, all / 2);  // with what the system takes, more than half
  }
  return cluster_launch(gate.superblocks(), grid, kThreads, static_cast<std::size_t>(bytes), stream,
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
  // Where blocks have SMs of their own, a cluster needs more of them than where they share some.
  const auto placed = [&](int launched) {
    cudaLaunchAttribute attributes[2] = {};
    const auto config = configuration(gate, projection, launched, nullptr, attributes);
    int most_active = 0;
    return cudaOccupancyMaxActiveClusters(&most_active, ple_block_kernel, &config) == cudaSuccess
               ? most_active
               : 0;
  };
  const bool is_placed =
      cudaFuncSetAttribute(ple_block_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most) ==
          cudaSuccess &&
      cudaFuncSetAttribute(ple_block_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) ==
          cudaSuccess &&
      placed(1) > 0;
  if (is_placed) clusters = placed(kClustersAlone + 1);
  cudaGetLastError();  // a refusal is an answer
  return std::min(clusters * kRows, kMostRows);
}

void ple_block(const PleBlock& b, float* x, int rows, int cols, float eps, const float* norm,
               const HalfRows& out, float* plain, std::int32_t* broken, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2] = {};
  const int ranks = b.gate.superblocks(), octets = (kSlice / 8 + ranks - 1) / ranks;
  const cudaLaunchConfig_t config =
      configuration(b.gate, b.projection, (rows + kRows - 1) / kRows, stream, attributes);
  cudaLaunchKernelEx(&config, ple_block_kernel,
                     PleArguments{b, x, rows, cols, octets, ((1 << 16) + octets - 1) / octets, eps,
                                  norm, out, plain, broken});
}

}  // namespace tandem::kernels::cuda
