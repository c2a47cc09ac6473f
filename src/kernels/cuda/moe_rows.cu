// Rows of mixture-of-experts layers: the inputs of their branches, who goes to which expert, and
// the sum of it all.

#include <climits>

#include "tandem/core/check.h"
#include "tandem/kernels/cuda/e4m3.cuh"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/moe.h"
#include "tandem/kernels/cuda/reduce.cuh"
#include "tandem/kernels/cuda/row_math.cuh"

namespace tandem::kernels::cuda {
namespace {

constexpr int kMostRowThreads = 1024;
constexpr int kRouteWarps = 8;  // a row each

/// Over the block, in one fixed order. `scratch`: nobody has used it before.
__device__ float2 block_sums(float2 v, float2 (&scratch)[32]) {
  v = {warp_sum(v.x), warp_sum(v.y)};
  const int lane = threadIdx.x % 32;
  if (lane == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  v = lane < blockDim.x / 32 ? scratch[lane] : float2{};
  return {warp_sum(v.x), warp_sum(v.y)};
}

/// body(i, c) for each of the thread's kQuads times four columns c.
template <int kQuads, typename Body>
__device__ void each_quad(int cols, Body body) {
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int c = 4 * static_cast<int>(threadIdx.x + i * blockDim.x);
    if (c < cols) body(i, c);
  }
}

/// Four columns of v, whose row's largest magnitude is given, as out.form says.
__device__ void store_input(const HalfRows& out, int row, int col, float4 v, float largest) {
  const bool is_e4m3 = is_e4m3_rows(out.form);
  const float scale = is_e4m3 ? e4m3_scale(largest) : row_scale(largest);
  if (is_e4m3) {
    store_e4m3(out, row, col, v, scale);
  } else {
    store_half4(out, row, col, v * inverse_power(scale));
  }
  if (col == 0) out.scale[row] = scale;
}

// ---- inputs -------------------------------------------------------------------------------------

constexpr int kInputs = 3;
struct ExpertInputs {
  NormedRows of[kInputs];
};

/// A row that is done: `squares` of it, and per output the largest of it times the norm.
struct RowExtent {
  float squares;
  float largest[kInputs];
};
__device__ RowExtent over_block(RowExtent v, RowExtent (&scratch)[32]) {
  const auto over_warp = [&v] {
    v.squares = warp_sum(v.squares);
#pragma unroll
    for (int n = 0; n < kInputs; ++n) {
      for (int offset = 16; offset > 0; offset /= 2) {
        v.largest[n] = fmaxf(v.largest[n], __shfl_xor_sync(0xffffffffu, v.largest[n], offset));
      }
    }
  };
  over_warp();
  const int lane = threadIdx.x % 32;
  if (lane == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  v = lane < blockDim.x / 32 ? scratch[lane] : RowExtent{};
  over_warp();
  return v;
}

// A block a row. x is older than the kernel before where something is pending.
template <int kQuads>
__global__ void __launch_bounds__(kMostRowThreads)
    inputs_kernel(Residual residual, float* x, int cols, float eps, ExpertInputs inputs,
                  std::int32_t* broken) {
  __shared__ float2 scratch[32];
  __shared__ RowExtent extents[32];
  let_next_start();
  const int row = blockIdx.x;
  float* const x_row = x + static_cast<std::size_t>(row) * cols;
  const bool has_delta = residual.delta.data != nullptr;
  float4 v[kQuads] = {}, old[kQuads] = {};
  if (has_delta && !residual.replace) {
    each_quad<kQuads>(cols, [&](int i, int c) { old[i] = load4(x_row + c); });
  }
  wait_for_previous();
  if (!has_delta) {
    each_quad<kQuads>(cols, [&](int i, int c) { v[i] = load4(x_row + c); });
  } else {
    float squares = 0.0f;
    each_quad<kQuads>(cols, [&](int i, int c) {
      v[i] = sum_parts(residual.delta, row, residual.first_tile + c / kTileRows, c % kTileRows);
      squares += sum_of_squares(v[i]);
    });
    const float inverse =
        residual.post_norm ? inverse_rms(block_sums({squares, 0.0f}, scratch).x, cols, eps) : 1.0f;
    each_quad<kQuads>(cols, [&](int i, int c) {
      if (residual.post_norm) v[i] = v[i] * inverse * load4(residual.post_norm + c);
      v[i] = (old[i] + v[i]) * residual.scale;
      store4(x_row + c, v[i]);
    });
  }
  RowExtent mine = {};
  each_quad<kQuads>(cols, [&](int i, int c) {
    mine.squares += sum_of_squares(v[i]);
#pragma unroll
    for (int n = 0; n < kInputs; ++n) {
      mine.largest[n] = fmaxf(mine.largest[n], largest_of(v[i] * load4(inputs.of[n].norm + c)));
    }
  });
  const RowExtent all = over_block(mine, extents);
  if (!(all.squares <= 3.0e38f) && threadIdx.x == 0) broken[row] = 1;
  const float inverse = inverse_rms(all.squares, cols, eps);
  each_quad<kQuads>(cols, [&](int i, int c) {
#pragma unroll
    for (int n = 0; n < kInputs; ++n) {
      const NormedRows& to = inputs.of[n];
      store_input(to.out, row, c, v[i] * load4(to.norm + c) * inverse, all.largest[n] * inverse);
    }
  });
}

// ---- routing ------------------------------------------------------------------------------------

/// A warp chooses the experts of a row. `logits`: [experts] rounded up to whole fours.
__device__ void route_row(const Partials& scores, float score_scale, const float* expert_scale,
                          const ExpertArguments& a, int row, float* logits) {
  const int lane = threadIdx.x % 32, first = row * a.top_k;
  for (int e = 4 * lane; e < a.experts; e += 128) {
    store4(logits + e, sum_parts(scores, row, e / kTileRows, e % kTileRows) * score_scale);
  }
  __syncwarp();
  std::uint32_t chosen = 0;  // bit j: expert 32 j + lane
  float largest = 0.0f;
  for (int i = 0; i < a.top_k; ++i) {
    std::uint32_t best = 0, id = INT_MAX;
    for (int e = lane; e < a.experts; e += 32) {
      const auto key = static_cast<std::uint32_t>(order_key(logits[e], 0) >> 32);
      const bool is_free = !(chosen >> (e / 32) & 1);
      if (is_free && (key > best || id == INT_MAX)) {
        best = key;
        id = e;
      }
    }
    const std::uint32_t most = __reduce_max_sync(0xffffffffu, id == INT_MAX ? 0 : best);
    const std::uint32_t expert = __reduce_min_sync(0xffffffffu, best == most ? id : INT_MAX);
    if (i == 0) largest = logits[expert];
    if (expert % 32 == lane) chosen |= 1u << (expert / 32);
  }
  // The chosen ones' weights move to the front, in ascending order of the experts.
  const auto each_chosen = [&](auto&& body) {
    int place = 0;
    for (int e = lane; e < a.experts + lane; e += 32) {
      const bool is_chosen = chosen >> (e / 32) & 1;
      const std::uint32_t all = __ballot_sync(0xffffffffu, is_chosen);
      body(is_chosen, e, place + __popc(all & ((1u << lane) - 1)));
      place += __popc(all);
    }
  };
  each_chosen([&](bool is_chosen, int e, int place) {
    const float weight = is_chosen ? expf(logits[e] - largest) : 0.0f;
    __syncwarp();
    if (is_chosen) logits[place] = weight;
  });
  __syncwarp();
  float sum = 0.0f;
  for (int i = 0; i < a.top_k; ++i) sum += logits[i];
  each_chosen([&](bool is_chosen, int e, int place) {
    if (!is_chosen) return;
    a.chosen[first + place] = e;
    a.weights[first + place] =
        logits[place] / sum * (expert_scale == nullptr ? 1.0f : expert_scale[e]);
  });
}

/// A block lists the entries of each expert. Their order differs from run to run; no bit depends on
/// it. `places`: [experts] of shared memory.
__device__ void list_entries(const ExpertArguments& a, int entries, int* places) {
  const int lane = threadIdx.x % 32;
  for (int e = threadIdx.x; e < a.experts; e += blockDim.x) places[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < entries; i += blockDim.x) {
    atomicAdd(&places[__ldcg(&a.chosen[i])], 1);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    int begin = 0, active = 0;
    for (int e = lane; e < a.experts + lane; e += 32) {
      const int count = e < a.experts ? places[e] : 0;
      int sum = count;
      for (int offset = 1; offset < 32; offset *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, sum, offset);
        if (lane >= offset) sum += before;
      }
      const int first = begin + sum - count;
      const std::uint32_t all = __ballot_sync(0xffffffffu, count > 0);
      if (count > 0) {
        a.active[active + __popc(all & ((1u << lane) - 1))] = {e, first, first + count};
      }
      if (e < a.experts) places[e] = first;
      begin += __shfl_sync(0xffffffffu, sum, 31);
      active += __popc(all);
    }
    for (int i = active + lane; i < a.experts; i += 32) a.active[i] = {};
  }
  __syncthreads();
  for (int i = threadIdx.x; i < entries; i += blockDim.x) {
    a.entries[atomicAdd(&places[__ldcg(&a.chosen[i])], 1)] = i;
  }
}

// The last block to arrive lists what all have chosen.
__global__ void __launch_bounds__(32 * kRouteWarps)
    route_kernel(Partials scores, float score_scale, const float* expert_scale, int rows,
                 ExpertArguments a) {
  extern __shared__ __align__(16) float logits[];
  __shared__ bool is_last;
  after_previous();
  const int warp = threadIdx.x / 32, row = blockIdx.x * kRouteWarps + warp;
  if (row < rows) {
    route_row(scores, score_scale, expert_scale, a, row, logits + warp * ((a.experts + 3) / 4 * 4));
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(a.arrived, 1) + 1 == static_cast<int>(gridDim.x);
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  if (threadIdx.x == 0) *a.arrived = 0;
  list_entries(a, rows * a.top_k, reinterpret_cast<int*>(logits));
}

// ---- the sum ------------------------------------------------------------------------------------

// A block a row. x and the experts' outputs are older than the kernel before.
template <int kQuads>
__global__ void __launch_bounds__(kMostRowThreads)
    mix_kernel(ExpertMix mix, float* x, float eps, const float* norm, HalfRows out, float* plain,
               std::int32_t* broken) {
  __shared__ float2 scratch[3][32];
  __shared__ SumAndLargest extents[32];
  let_next_start();
  const ExpertArguments& a = mix.experts;
  const int row = blockIdx.x, cols = a.width, lane = threadIdx.x % 32;
  float* const x_row = x + static_cast<std::size_t>(row) * cols;
  float4 v[kQuads] = {}, routed[kQuads] = {}, old[kQuads] = {};
  float2 squares = {};
  each_quad<kQuads>(cols, [&](int i, int c) {
    old[i] = load4(x_row + c);
#pragma unroll 4
    for (int entry = row * a.top_k; entry < (row + 1) * a.top_k; ++entry) {
      routed[i] = routed[i] +
                  load4(mix.out + static_cast<std::size_t>(entry) * cols + c) * a.weights[entry];
    }
    squares.x += sum_of_squares(routed[i]);
  });
  wait_for_previous();
  each_quad<kQuads>(cols, [&](int i, int c) {
    v[i] = sum_parts(mix.dense, row, c / kTileRows, c % kTileRows);
    squares.y += sum_of_squares(v[i]);
  });
  const float2 both = block_sums(squares, scratch[0]);
  const float of_routed = inverse_rms(both.x, cols, eps), of_dense = inverse_rms(both.y, cols, eps);
  float sum = 0.0f;
  each_quad<kQuads>(cols, [&](int i, int c) {
    v[i] = v[i] * of_dense * load4(mix.dense_norm + c) +
           routed[i] * of_routed * load4(mix.experts_norm + c);
    sum += sum_of_squares(v[i]);
  });
  const float post = inverse_rms(block_sums({sum, 0.0f}, scratch[1]).x, cols, eps);
  SumAndLargest mine = {};
  each_quad<kQuads>(cols, [&](int i, int c) {
    v[i] = (old[i] + v[i] * post * load4(mix.post_norm + c)) * mix.scale;
    store4(x_row + c, v[i]);
    mine.sum += sum_of_squares(v[i]);
    if (norm != nullptr) v[i] = v[i] * load4(norm + c);
    mine.largest = fmaxf(mine.largest, largest_of(v[i]));
  });
  if (out.data == nullptr && plain == nullptr) return;
  mine = over_warp(mine);
  if (lane == 0) extents[threadIdx.x / 32] = mine;
  __syncthreads();
  const SumAndLargest all = over_warp(lane < blockDim.x / 32 ? extents[lane] : SumAndLargest{});
  if (!(all.sum <= 3.0e38f) && threadIdx.x == 0) broken[row] = 1;
  const float inverse = norm != nullptr ? inverse_rms(all.sum, cols, eps) : 1.0f;
  each_quad<kQuads>(cols, [&](int i, int c) {
    v[i] = v[i] * inverse;
    if (plain != nullptr) store4(plain + static_cast<std::size_t>(row) * cols + c, v[i]);
    if (out.data != nullptr) store_input(out, row, c, v[i], all.largest * inverse);
  });
}

/// Threads of a row of `cols` with so many columns each, in whole warps.
unsigned row_threads(int cols, int quads) {
  return static_cast<unsigned>((cols + 128 * quads - 1) / (128 * quads) * 32);
}

}  // namespace

void expert_inputs(const Residual& residual, float* x, int rows, int cols, float eps,
                   const NormedRows& dense, const NormedRows& router, const NormedRows& experts,
                   std::int32_t* broken, cudaStream_t stream) {
  TANDEM_CHECK(cols <= 8 * kMostRowThreads, "rows are at most 8192 wide");
  const int quads = cols <= 4 * kMostRowThreads ? 1 : 2;
  launch(quads == 1 ? inputs_kernel<1> : inputs_kernel<2>, dim3(static_cast<unsigned>(rows)),
         row_threads(cols, quads), 0, stream, residual, x, cols, eps,
         ExpertInputs{{dense, router, experts}}, broken);
}

void route_rows(const Partials& scores, float score_scale, const float* expert_scale, int rows,
                const ExpertArguments& a, cudaStream_t stream) {
  const std::size_t padded = static_cast<std::size_t>(a.experts + 3) / 4 * 4;
  launch(route_kernel, dim3(static_cast<unsigned>((rows + kRouteWarps - 1) / kRouteWarps)),
         32 * kRouteWarps, padded * kRouteWarps * sizeof(float), stream, scores, score_scale,
         expert_scale, rows, a);
}

void mix_experts(const ExpertMix& mix, float* x, int rows, float eps, const float* norm,
                 const HalfRows& out, float* plain, std::int32_t* broken, cudaStream_t stream) {
  const int cols = mix.experts.width, quads = cols <= 4 * kMostRowThreads ? 1 : 2;
  launch(quads == 1 ? mix_kernel<1> : mix_kernel<2>, dim3(static_cast<unsigned>(rows)),
         row_threads(cols, quads), 0, stream, mix, x, eps, norm, out, plain, broken);
}

}  // namespace tandem::kernels::cuda
