// Experts: a block of warps multiplies 128 outputs of one expert by all rows that chose it, up to
// 32 at a time. Weights come straight from memory: few rows choose an expert, so that bytes are the
// bound, and the number of rows is known on the device alone.

#include <algorithm>

#include "tandem/core/check.h"
#include "tandem/kernels/cuda/bricks.cuh"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/moe.h"
#include "tandem/kernels/cuda/reduce.cuh"
#include "tandem/kernels/op_weights.h"

namespace tandem::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kGroupOutputs = 16;  // of a warp
constexpr int kTiles = 4;          // of 8 entries each
constexpr int kListThreads = 1024;
constexpr int kMixThreads = 512;
constexpr float kGateScale = 64.0f;  // as geglu() stores its products

// ---- routing ------------------------------------------------------------------------------------

// A warp a row.
__global__ void route_kernel(Partials scores, float score_scale, const float* expert_scale,
                             ExpertArguments a) {
  __shared__ float logits[kMaxExperts];
  __shared__ bool is_chosen[kMaxExperts];
  after_previous();
  const int row = blockIdx.x, lane = threadIdx.x;
  for (int e = lane; e < a.experts; e += 32) {
    const float4 four = sum_parts(scores, row, e / kTileRows, e % kTileRows / 4 * 4);
    const float values[4] = {four.x, four.y, four.z, four.w};
    logits[e] = values[e % 4] * score_scale;
    is_chosen[e] = false;
  }
  __syncwarp();
  float largest = 0.0f;
  for (int i = 0; i < a.top_k; ++i) {
    unsigned long long best = 0;
    for (int e = lane; e < a.experts; e += 32) {
      const unsigned long long key = is_chosen[e] ? 0 : order_key(logits[e], e);
      best = key > best ? key : best;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      const unsigned long long other = __shfl_xor_sync(0xffffffffu, best, offset);
      best = other > best ? other : best;
    }
    const int chosen = id_of_key(best);
    if (i == 0) largest = logits[chosen];
    if (lane == 0) is_chosen[chosen] = true;
    __syncwarp();
  }
  if (lane != 0) return;
  float sum = 0.0f;
  int entry = row * a.top_k;
  for (int e = 0; e < a.experts; ++e) {
    if (!is_chosen[e]) continue;
    const float weight = expf(logits[e] - largest);
    sum += weight;
    a.chosen[entry] = e;
    a.weights[entry++] = weight;
  }
  for (int i = row * a.top_k; i < entry; ++i) {
    const float of_expert = expert_scale == nullptr ? 1.0f : expert_scale[a.chosen[i]];
    a.weights[i] = a.weights[i] / sum * of_expert;
  }
}

// One block. The order of an expert's entries differs from run to run; no bit depends on it.
__global__ void __launch_bounds__(kListThreads) list_kernel(ExpertArguments a, int entries) {
  __shared__ int counts[kMaxExperts], places[kMaxExperts];
  after_previous();
  for (int e = threadIdx.x; e < a.experts; e += kListThreads) counts[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < entries; i += kListThreads) atomicAdd(&counts[a.chosen[i]], 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    int sum = 0;
    for (int e = 0; e < a.experts; ++e) {
      a.offsets[e] = places[e] = sum;
      sum += counts[e];
    }
    a.offsets[a.experts] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < entries; i += kListThreads) {
    a.entries[atomicAdd(&places[a.chosen[i]], 1)] = i;
  }
}

// ---- products -----------------------------------------------------------------------------------

/// Where a lane reads its column of each tile of inputs.
struct Columns {
  const half* at[kTiles];  // null: nothing
  std::size_t stride;      // of superblocks
};

template <BrickKind kKind>
__device__ void multiply_group(const MatrixView& w, int group, const Columns& x,
                               float (&acc)[kTiles][4]) {
  const int lane = threadIdx.x % 32, superblocks = (w.cols + kBrickCols - 1) / kBrickCols;
  for (int sb = 0; sb < superblocks; ++sb) {
    const std::size_t unit = static_cast<std::size_t>(group / 8) * superblocks + sb;
    BrickReader<kKind> reader;
    reader.begin(w.bricks + (unit * 2 + group % 8 / 4) * brick_bytes(kKind), group % 4, lane);
#pragma unroll
    for (int step = 0; step < 16; ++step) {
      std::uint32_t a[4];
      if (step % 4 == 0) reader.load(step / 4);
      reader.fragment(step % 4, a);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (!__any_sync(0xffffffffu, x.at[t] != nullptr)) break;
        std::uint32_t b[2] = {};
        if (x.at[t] != nullptr) {
          const half* at = x.at[t] + sb * x.stride + 128 * step + 2 * (lane % 4);
          b[0] = *reinterpret_cast<const std::uint32_t*>(at);
          b[1] = *reinterpret_cast<const std::uint32_t*>(at + 64);
        }
        mma_m16n8k16(acc[t], a, b[0], b[1]);
      }
    }
  }
}

__device__ void multiply_group(const MatrixView& w, int group, const Columns& x,
                               float (&acc)[kTiles][4]) {
  switch (w.kind) {
    case BrickKind::kQ4K:
      return multiply_group<BrickKind::kQ4K>(w, group, x, acc);
    case BrickKind::kQ6K:
      return multiply_group<BrickKind::kQ6K>(w, group, x, acc);
    case BrickKind::kQ8:
      return multiply_group<BrickKind::kQ8>(w, group, x, acc);
    case BrickKind::kF8:
      return multiply_group<BrickKind::kF8>(w, group, x, acc);
    case BrickKind::kFp4:
      return multiply_group<BrickKind::kFp4>(w, group, x, acc);
    case BrickKind::kF16:
      return multiply_group<BrickKind::kF16>(w, group, x, acc);
    case BrickKind::kE4m3:  // of linears alone
      break;
  }
}

/// A warp's share of an expert's product: 16 outputs, and its entries, up to 32 at a time.
struct Work {
  int begin, end, group;
  int outputs;
};

__device__ Work work_of(const ExpertArguments& a, int outputs) {
  const int group = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int expert = blockIdx.y;
  if (group * kGroupOutputs >= outputs) return {0, 0, group, outputs};
  return {a.offsets[expert], a.offsets[expert + 1], group, outputs};
}

/// The inputs of entries [first, ..): rows of x are `entry / divisor`.
__device__ Columns columns_of(const ExpertArguments& a, const Work& work, int first,
                              const HalfRows& x, int divisor) {
  Columns columns;
  columns.stride = static_cast<std::size_t>(x.row_tiles) * 2048;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int i = first + 8 * t + lane / 4;
    const int row = i < work.end ? a.entries[i] / divisor : 0;
    columns.at[t] = i < work.end ? x.data + activation_index(row, 0, x.row_tiles) : nullptr;
  }
  return columns;
}

/// Calls body(entry, output, sum index) for every sum of this lane that counts.
template <typename Body>
__device__ void each_sum(const ExpertArguments& a, const Work& work, int first, Body body) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = first + 8 * t + 2 * (lane % 4) + j % 2;
      const int output = work.group * kGroupOutputs + lane / 4 + j / 2 * 8;
      if (i < work.end && output < work.outputs) body(a.entries[i], output, t, j);
    }
  }
}

__device__ float output_scale(const MatrixView& w, int output) {
  return brick_unit(w.kind) * (w.row_scales == nullptr ? 1.0f : w.row_scales[output]);
}

__global__ void __launch_bounds__(32 * kWarps)
    gate_kernel(ExpertArguments a, HalfRows x, HalfRows out, std::int32_t* broken) {
  after_previous();
  const Work work = work_of(a, a.ffn);
  const ExpertViews w = a.views[blockIdx.y];
  for (int first = work.begin; first < work.end; first += 8 * kTiles) {
    const Columns columns = columns_of(a, work, first, x, a.top_k);
    float gate[kTiles][4] = {}, up[kTiles][4] = {};
    multiply_group(w.gate, work.group, columns, gate);
    multiply_group(w.up, work.group, columns, up);
    each_sum(a, work, first, [&](int entry, int output, int t, int j) {
      const int row = entry / a.top_k;
      const float scale = x.scale[row];
      const float g = gate[t][j] * scale * output_scale(w.gate, output);
      const float u = up[t][j] * scale * output_scale(w.up, output);
      const float v = gelu_tanh(g) * u * (1.0f / kGateScale);
      if (!(fabsf(v) <= 65504.0f)) broken[row] = 1;
      out.data[activation_index(entry, output, out.row_tiles)] =
          __float2half_rn(fminf(fmaxf(v, -65504.0f), 65504.0f));
      if (output == 0) out.scale[entry] = kGateScale;
    });
  }
}

__global__ void __launch_bounds__(32 * kWarps)
    down_kernel(ExpertArguments a, HalfRows x, float* out) {
  after_previous();
  const Work work = work_of(a, a.width);
  const MatrixView w = a.views[blockIdx.y].down;
  for (int first = work.begin; first < work.end; first += 8 * kTiles) {
    const Columns columns = columns_of(a, work, first, x, 1);
    float sums[kTiles][4] = {};
    multiply_group(w, work.group, columns, sums);
    each_sum(a, work, first, [&](int entry, int output, int t, int j) {
      out[static_cast<std::size_t>(entry) * a.width + output] =
          sums[t][j] * x.scale[entry] * output_scale(w, output);
    });
  }
}

// A block a row.
__global__ void __launch_bounds__(kMixThreads)
    mix_kernel(ExpertArguments a, const float* out, const float* dense, const float* experts_norm,
               const float* post_norm, float eps, float scale, float* x) {
  extern __shared__ float mixed[];  // [E]
  __shared__ float scratch[2][32];
  after_previous();
  const int row = blockIdx.x, width = a.width;
  const std::size_t begin = static_cast<std::size_t>(row) * width;
  const auto inverse_rms = [&](float squares, float* fresh) {
    return 1.0f / sqrtf(block_sum_once(squares, fresh) / static_cast<float>(width) + eps);
  };
  float squares = 0.0f;
  for (int c = threadIdx.x; c < width; c += kMixThreads) {
    float sum = 0.0f;
    for (int i = row * a.top_k; i < (row + 1) * a.top_k; ++i) {
      sum += a.weights[i] * out[static_cast<std::size_t>(i) * width + c];
    }
    mixed[c] = sum;
    squares += sum * sum;
  }
  const float experts_inverse = inverse_rms(squares, scratch[0]);
  squares = 0.0f;
  for (int c = threadIdx.x; c < width; c += kMixThreads) {  // its own columns
    mixed[c] = dense[begin + c] + mixed[c] * experts_inverse * experts_norm[c];
    squares += mixed[c] * mixed[c];
  }
  const float inverse = inverse_rms(squares, scratch[1]);
  for (int c = threadIdx.x; c < width; c += kMixThreads) {
    x[begin + c] = (x[begin + c] + mixed[c] * inverse * post_norm[c]) * scale;
  }
}

dim3 expert_grid(const ExpertArguments& a, int outputs) {
  constexpr int kOutputs = kWarps * kGroupOutputs;
  return {static_cast<unsigned>((outputs + kOutputs - 1) / kOutputs),
          static_cast<unsigned>(a.experts)};
}

}  // namespace

void route_rows(const Partials& scores, float score_scale, const float* expert_scale, int rows,
                const ExpertArguments& a, cudaStream_t stream) {
  launch(route_kernel, dim3(static_cast<unsigned>(rows)), 32, 0, stream, scores, score_scale,
         expert_scale, a);
  launch(list_kernel, dim3(1), kListThreads, 0, stream, a, rows * a.top_k);
}

void expert_gates(const ExpertArguments& a, const HalfRows& x, const HalfRows& out,
                  std::int32_t* broken, cudaStream_t stream) {
  launch(gate_kernel, expert_grid(a, a.ffn), 32 * kWarps, 0, stream, a, x, out, broken);
}

void expert_downs(const ExpertArguments& a, const HalfRows& x, float* out, cudaStream_t stream) {
  launch(down_kernel, expert_grid(a, a.width), 32 * kWarps, 0, stream, a, x, out);
}

void mix_experts(const ExpertArguments& a, const float* out, const float* dense,
                 const float* experts_norm, const float* post_norm, float eps, float scale,
                 int rows, float* x, cudaStream_t stream) {
  TANDEM_CHECK(a.width <= 12000, "a row fits shared memory");
  launch(mix_kernel, dim3(static_cast<unsigned>(rows)), kMixThreads,
         static_cast<std::size_t>(a.width) * sizeof(float), stream, a, out, dense, experts_norm,
         post_norm, eps, scale, x);
}

}  // namespace tandem::kernels::cuda
