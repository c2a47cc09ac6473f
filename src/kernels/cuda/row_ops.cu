#include <algorithm>

#include "tandem/core/check.h"
#include "tandem/kernels/cuda/e4m3.cuh"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/reduce.cuh"
#include "tandem/kernels/cuda/row_math.cuh"
#include "tandem/kernels/cuda/row_ops.h"
#include "tandem/kernels/cuda/two_sums.cuh"

namespace tandem::kernels::cuda {
namespace {

constexpr int kRowThreads = 256;
/// Threads of a row at most. One quad each where they suffice, or two, whose parts are loaded at
/// the same time: sums of more take their trips in turn.
__host__ __device__ constexpr int most_row_threads(int quads) {
  return quads == 1 ? 640 : 512;
}
constexpr int kGateThreads = 128;

constexpr int kRowWarps = 64;  // shares of 128 columns

/// Over the block's row: one sum for each 128 columns, then over those, so that the bits do not
/// depend on how many columns a thread has (ple_block.cu adds in the same order). `scratch`:
/// nobody has used it before.
template <int kQuads>
__device__ SumAndLargest row_sum(const SumAndLargest (&v)[kQuads], SumAndLargest* scratch) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const SumAndLargest share = over_warp(v[i]);
    if (lane == 0) scratch[threadIdx.x / 32 + i * warps] = share;
  }
  __syncthreads();
  SumAndLargest all = lane < kQuads * warps ? scratch[lane] : SumAndLargest{};
  if (kQuads * warps > 32 && lane + 32 < kQuads * warps) {
    all.sum += scratch[lane + 32].sum;
    all.largest = fmaxf(all.largest, scratch[lane + 32].largest);
  }
  return over_warp(all);
}

/// What a row's scale comes from: its largest value, or that rounded up to one of e4m3's, or, of
/// rows without a norm, a bound that is known as early as the sum of squares is (ple_block.cu
/// scales alike).
enum class ScaleOf { kLargest, kE4m3, kBound };

// A block a row, kQuads times four columns a thread. Short code: a kernel of microseconds pays for
// every line of instructions that it fetches. x was written two kernels ago or earlier where
// something is pending, so that only the sums are waited for.
template <int kQuads, ScaleOf kScaleOf>
__global__ void __launch_bounds__(most_row_threads(kQuads))
    residual_norm_kernel(Residual residual, float* x, int cols, float eps, const float* norm,
                         HalfRows out, float* plain, std::int32_t* broken) {
  __shared__ SumAndLargest scratch[kRowWarps], both[kRowWarps];
  let_next_start();
  const int row = blockIdx.x;
  float* x_row = x + static_cast<std::size_t>(row) * cols;
  constexpr bool kE4m3 = kScaleOf == ScaleOf::kE4m3, kBound = kScaleOf == ScaleOf::kBound;
  const bool has_delta = kBound || residual.delta.data != nullptr;
  TileParts parts[kQuads] = {};
  float most[kBound ? kQuads : 1] = {};
  float4 v[kQuads] = {}, old[kQuads] = {}, post_norm[kQuads] = {}, weight[kQuads] = {};
  const auto each = [&](auto&& body) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int c = 4 * static_cast<int>(threadIdx.x + i * blockDim.x);
      if (c < cols) body(i, c);
    }
  };
  each([&](int i, int c) {
    if (has_delta) parts[i] = residual.delta.parts[residual.first_tile + c / kTileRows];
    if (residual.post_norm) post_norm[i] = load4(residual.post_norm + c);
    if constexpr (kBound) most[i] = most_after_norm(post_norm[i], cols);
    if (norm) weight[i] = load4(norm + c);
    if (has_delta && !residual.replace) old[i] = load4(x_row + c);
  });
  wait_for_previous();
  if (!has_delta) {
    each([&](int i, int c) { v[i] = load4(x_row + c); });
  } else {
    SumAndLargest squares[kQuads] = {};
    if constexpr (kQuads == 2) {  // a quad beyond the row has no parts
      const int c = 4 * static_cast<int>(threadIdx.x), next = c + 4 * static_cast<int>(blockDim.x);
      sum_two_parts<6>(residual.delta, row, parts[0], c % kTileRows, parts[1], next % kTileRows,
                       v[0], v[1]);
    } else {
      each([&](int i, int c) { v[i] = sum_parts(residual.delta, parts[i], row, c % kTileRows); });
    }
    each([&](int i, int) {
      squares[i].sum = sum_of_squares(v[i]);
      if constexpr (kBound) {
        squares[i].largest = largest_of(old[i]) + (residual.post_norm ? most[i] : largest_of(v[i]));
      }
    });
    SumAndLargest sums = {};
    if (kBound || residual.post_norm) sums = row_sum<kQuads>(squares, scratch);
    const float inverse = residual.post_norm ? inverse_rms(sums.sum, cols, eps) : 1.0f;
    each([&](int i, int c) {
      if (residual.post_norm) v[i] = v[i] * inverse * post_norm[i];
      if (!residual.replace) v[i] = old[i] + v[i];
      v[i] = v[i] * residual.scale;
      store4(x_row + c, v[i]);
    });
    if constexpr (kBound) {
      const float scale = row_scale(sums.largest * fabsf(residual.scale));
      each([&](int i, int c) {
        if (!(sum_of_squares(v[i]) <= 3.0e38f)) broken[row] = 1;
        store_half4(out, row, c, v[i] * inverse_power(scale));
      });
      if (threadIdx.x == 0) out.scale[row] = scale;
      return;
    }
  }
  if (out.data == nullptr && plain == nullptr) return;
  SumAndLargest mine[kQuads] = {};
  each([&](int i, int) {
    mine[i].sum = sum_of_squares(v[i]);
    if (norm) v[i] = v[i] * weight[i];
    mine[i].largest = largest_of(v[i]);
  });
  const SumAndLargest all = row_sum<kQuads>(mine, both);
  if (!(all.sum <= 3.0e38f) && threadIdx.x == 0) broken[row] = 1;
  const float inverse = norm ? inverse_rms(all.sum, cols, eps) : 1.0f;
  const float largest = all.largest * inverse;
  const float scale = kE4m3 ? e4m3_scale(largest) : row_scale(largest);
  each([&](int i, int c) {
    v[i] = v[i] * inverse;
    if (plain != nullptr) store4(plain + static_cast<std::size_t>(row) * cols + c, v[i]);
    if (kE4m3) {
      store_e4m3(out, row, c, v[i], scale);
    } else if (out.data != nullptr) {
      store_half4(out, row, c, v[i] * inverse_power(scale));
    }
  });
  if (out.data != nullptr && threadIdx.x == 0) out.scale[row] = scale;
}

// Eight blocks an SM: registers for fewer would leave L2 waiting.
__global__ void __launch_bounds__(kGateThreads, 8)
    geglu_kernel(Partials p, int up_tile, int cols, HalfRows out, std::int32_t* broken) {
  let_next_start();
  const int row = blockIdx.y, c = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  const bool is_inside = c < cols;
  const TileParts gate_parts = is_inside ? p.parts[c / kTileRows] : TileParts{};
  const TileParts up_parts = is_inside ? p.parts[up_tile + c / kTileRows] : TileParts{};
  wait_for_previous();
  if (!is_inside) return;
  float4 gate, up;
  sum_two_parts<4>(p, row, gate_parts, c % kTileRows, up_parts, c % kTileRows, gate, up);
  store_gated(out, row, c, gelu4(gate) * up, broken);
}

// The per-layer input is older than the product before it.
__global__ void gated_ple_kernel(Partials p, const float* ple, int ple_stride, int cols,
                                 HalfRows out, std::int32_t* broken) {
  let_next_start();
  const int row = blockIdx.y, c = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  const bool is_inside = c < cols;
  const TileParts parts = is_inside ? p.parts[c / kTileRows] : TileParts{};
  float4 input = {};
  if (is_inside) input = load4(ple + static_cast<std::size_t>(row) * ple_stride + c);
  wait_for_previous();
  if (!is_inside) return;
  const float4 gate = sum_parts(p, parts, row, c % kTileRows);
  store_gated(out, row, c, gelu4(gate) * input, broken);
}

// A block a (layer, row); width / 4 threads, at least a warp.
__global__ void combine_ple_kernel(Partials p, const float* norm, float input_scale, float eps,
                                   int layers, int width, float* ple) {
  __shared__ float scratch[32];
  after_previous();
  const int row = blockIdx.y, layer = blockIdx.x, c = 4 * threadIdx.x, n = layer * width + c;
  float4 v = {};
  if (c < width) v = sum_parts(p, row, n / kTileRows, n % kTileRows) * input_scale;
  const float inverse = inverse_rms(block_sum_once(sum_of_squares(v), scratch), width, eps);
  if (c >= width) return;
  float* at = ple + (static_cast<std::size_t>(row) * layers + layer) * width + c;
  store4(at, (v * inverse * load4(norm + c) + load4(at)) * 0.70710678118654752f);
}

__global__ void concat_kernel(const float* embedding, const float* hidden, const DeviceRow* rows,
                              int cols, HalfRows out) {
  __shared__ float scratch[32];
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.x;
  const float* e = embedding + static_cast<std::size_t>(row) * cols;
  const float* u = hidden + static_cast<std::size_t>(rows[row].slot) * cols;
  float largest = 0;
  for (int c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
    largest = fmaxf(largest, fmaxf(largest_of(load4(e + c)), largest_of(load4(u + c))));
  }
  const float scale = row_scale(block_max(largest, scratch));
  for (int c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
    store_half4(out, row, c, load4(e + c) * inverse_power(scale));
    store_half4(out, row, cols + c, load4(u + c) * inverse_power(scale));
  }
  if (threadIdx.x == 0) out.scale[row] = scale;
}

__global__ void store_hidden_kernel(Partials p, const DeviceRow* rows, int cols, float* dst) {
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.x;
  float* to = dst + static_cast<std::size_t>(rows[row].slot) * cols;
  for (int c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
    store4(to + c, sum_parts(p, row, c / kTileRows, c % kTileRows));
  }
}

unsigned int blocks(int n, int per) {
  return static_cast<unsigned int>((n + per - 1) / per);
}

}  // namespace

void residual_norm(const Residual& residual, float* x, int rows, int cols, float eps,
                   const float* norm, const HalfRows& out, float* plain, std::int32_t* broken,
                   cudaStream_t stream) {
  TANDEM_CHECK(cols <= 32 * kRowWarps * 4, "rows are at most 8192 wide");
  const int quads = cols <= 4 * most_row_threads(1) ? 1 : cols <= 8 * most_row_threads(2) ? 2 : 4;
  const auto choose = [&]<ScaleOf kScaleOf>() {
    return quads == 1   ? residual_norm_kernel<1, kScaleOf>
           : quads == 2 ? residual_norm_kernel<2, kScaleOf>
                        : residual_norm_kernel<4, kScaleOf>;
  };
  const bool is_bounded = residual.delta.data && !norm && out.data && !plain;
  const auto kernel = is_e4m3_rows(out.form) ? choose.operator()<ScaleOf::kE4m3>()
                      : is_bounded           ? choose.operator()<ScaleOf::kBound>()
                                             : choose.operator()<ScaleOf::kLargest>();
  launch(kernel, dim3(rows), blocks(cols, 128 * quads) * 32, 0, stream, residual, x, cols, eps,
         norm, out, plain, broken);
}

void geglu(const Partials& p, int up_tile, int rows, int cols, const HalfRows& out,
           std::int32_t* broken, cudaStream_t stream) {
  launch(geglu_kernel, dim3(blocks(cols, 4 * kGateThreads), rows), kGateThreads, 0, stream, p,
         up_tile, cols, out, broken);
}

void gated_ple(const Partials& p, const float* ple, int ple_stride, int rows, int cols,
               const HalfRows& out, std::int32_t* broken, cudaStream_t stream) {
  launch(gated_ple_kernel, dim3(blocks(cols, 4 * kGateThreads), rows), kGateThreads, 0, stream, p,
         ple, ple_stride, cols, out, broken);
}

void combine_ple(const Partials& p, const float* norm, float input_scale, float eps, int rows,
                 int layers, int width, float* ple, cudaStream_t stream) {
  launch(combine_ple_kernel, dim3(layers, rows), blocks(width, 128) * 32, 0, stream, p, norm,
         input_scale, eps, layers, width, ple);
}

void concat_draft_input(const float* embedding, const float* hidden, const DeviceRow* rows,
                        int num_rows, int cols, const HalfRows& out, cudaStream_t stream) {
  launch(concat_kernel, dim3(num_rows), kRowThreads, 0, stream, embedding, hidden, rows, cols, out);
}

void store_hidden(const Partials& p, const DeviceRow* rows, int num_rows, int cols, float* dst,
                  cudaStream_t stream) {
  launch(store_hidden_kernel, dim3(num_rows), kRowThreads, 0, stream, p, rows, cols, dst);
}

}  // namespace tandem::kernels::cuda
