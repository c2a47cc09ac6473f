#include <algorithm>

#include "tandem/core/check.h"
#include "tandem/kernels/cuda/e4m3.cuh"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/reduce.cuh"
#include "tandem/kernels/cuda/row_math.cuh"
#include "tandem/kernels/cuda/row_ops.h"

namespace tandem::kernels::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int kMostRowThreads = 512;
constexpr int kGateThreads = 128;

/// Four columns rounded to e4m3.
__device__ void store_codes4(const HalfRows& out, int row, int col, float4 v, float scale) {
  *reinterpret_cast<uint2*>(out.data + activation_index(row, col, out.row_tiles)) = {
      e4m3_pair(v.x, v.y, scale, 1.0f), e4m3_pair(v.z, v.w, scale, 1.0f)};
}

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

// A block a row, kQuads times four columns a thread. Short code: a kernel of microseconds pays for
// every line of instructions that it fetches. x was written two kernels ago or earlier where
// something is pending, so that only the sums are waited for.
template <int kQuads, bool kE4m3>
__global__ void __launch_bounds__(kMostRowThreads)
    residual_norm_kernel(Residual residual, float* x, int cols, float eps, const float* norm,
                         HalfRows out, float* plain, std::int32_t* broken) {
  __shared__ SumAndLargest scratch[kRowWarps], both[kRowWarps];
  let_next_start();
  const int row = blockIdx.x;
  float* x_row = x + static_cast<std::size_t>(row) * cols;
  const bool has_delta = residual.delta.data != nullptr;
  TileParts parts[kQuads] = {};
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
    if (norm) weight[i] = load4(norm + c);
    if (has_delta && !residual.replace) old[i] = load4(x_row + c);
  });
  wait_for_previous();
  if (!has_delta) {
    each([&](int i, int c) { v[i] = load4(x_row + c); });
  } else {
    SumAndLargest squares[kQuads] = {};
    each([&](int i, int c) {
      v[i] = sum_parts(residual.delta, parts[i], row, c % kTileRows);
      squares[i].sum = sum_of_squares(v[i]);
    });
    const float inverse =
        residual.post_norm
            ? 1.0f / sqrtf(row_sum<kQuads>(squares, scratch).sum / static_cast<float>(cols) + eps)
            : 1.0f;
    each([&](int i, int c) {
      if (residual.post_norm) v[i] = v[i] * inverse * post_norm[i];
      if (!residual.replace) v[i] = old[i] + v[i];
      v[i] = v[i] * residual.scale;
      store4(x_row + c, v[i]);
    });
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
  const float inverse = norm ? 1.0f / sqrtf(all.sum / static_cast<float>(cols) + eps) : 1.0f;
  const float largest = all.largest * inverse;
  const float scale = kE4m3 ? e4m3_scale(largest) : row_scale(largest);
  each([&](int i, int c) {
    v[i] = v[i] * inverse;
    if (plain != nullptr) store4(plain + static_cast<std::size_t>(row) * cols + c, v[i]);
    if (kE4m3) {
      store_codes4(out, row, c, v[i], scale);
    } else if (out.data != nullptr) {
      store_half4(out, row, c, v[i] * (1.0f / scale));
    }
  });
  if (out.data != nullptr && threadIdx.x == 0) out.scale[row] = scale;
}

__global__ void geglu_kernel(Partials p, int up_tile, int cols, HalfRows out,
                             std::int32_t* broken) {
  let_next_start();
  const int row = blockIdx.y, c = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  const bool is_inside = c < cols;
  const TileParts gate_parts = is_inside ? p.parts[c / kTileRows] : TileParts{};
  const TileParts up_parts = is_inside ? p.parts[up_tile + c / kTileRows] : TileParts{};
  wait_for_previous();
  if (!is_inside) return;
  const float4 gate = sum_parts(p, gate_parts, row, c % kTileRows);
  const float4 up = sum_parts(p, up_parts, row, c % kTileRows);
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
  const float inverse =
      1.0f / sqrtf(block_sum_once(sum_of_squares(v), scratch) / static_cast<float>(width) + eps);
  if (c >= width) return;
  float* at = ple + (static_cast<std::size_t>(row) * layers + layer) * width + c;
  store4(at, (v * inverse * load4(norm + c) + load4(at)) * 0.70710678118654752f);
}

__global__ void concat_kernel(const float* embedding, const float* hidden, const DeviceRow* rows,
                              int cols, HalfRows out) {
  __shared__ float scratch[32];
  after_previous();
  const int row = blockIdx.x;
  const float* e = embedding + static_cast<std::size_t>(row) * cols;
  const float* u = hidden + static_cast<std::size_t>(rows[row].slot) * cols;
  float largest = 0;
  for (int c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
    largest = fmaxf(largest, fmaxf(largest_of(load4(e + c)), largest_of(load4(u + c))));
  }
  const float scale = row_scale(block_max(largest, scratch));
  for (int c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
    store_half4(out, row, c, load4(e + c) * (1.0f / scale));
    store_half4(out, row, cols + c, load4(u + c) * (1.0f / scale));
  }
  if (threadIdx.x == 0) out.scale[row] = scale;
}

__global__ void store_hidden_kernel(Partials p, const DeviceRow* rows, int cols, float* dst) {
  after_previous();
  const int row = blockIdx.x;
  float* to = dst + static_cast<std::size_t>(rows[row].slot) * cols;
  for (int c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
    store4(to + c, sum_parts(p, row, c / kTileRows, c % kTileRows));
  }
}

/// Position of `dim` in a q row: the two k-steps that a lane reads at once lie together.
__device__ int q_index(int dim) {
  return dim / 32 * 32 + dim % 8 / 2 * 8 + dim / 16 % 2 * 4 + dim % 16 / 8 * 2 + dim % 2;
}

enum class HeadRole { kQuery, kKey, kValue };

/// Four neighbouring dimensions, from `dim` on, of a head that is done.
__device__ void store_head(HeadRole role, half* to, int key, int dim, int head_size, float4 v) {
  const half2 pairs[2] = {__floats2half2_rn(v.x, v.y), __floats2half2_rn(v.z, v.w)};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = dim + 2 * i;
    if (role == HeadRole::kQuery) {
      *reinterpret_cast<half2*>(to + q_index(at)) = pairs[i];
    } else if (role == HeadRole::kKey) {
      *reinterpret_cast<half2*>(to + k_index(key, at, head_size)) = pairs[i];
    } else {
      to[kPageTokens * head_size + v_index(key, at)] = __low2half(pairs[i]);
      to[kPageTokens * head_size + v_index(key, at + 1)] = __high2half(pairs[i]);
    }
  }
}

/// What is not finite would spoil the rows that see it behind their mask, too: it becomes 0.
__device__ float4 storable(float4 v, bool& fits) {
  const auto one = [&fits](float x) {
    const bool is_small = fabsf(x) <= 65504.0f;
    fits = fits && is_small;
    return is_small ? x : 0.0f;
  };
  return {one(v.x), one(v.y), one(v.z), one(v.w)};
}

// One block a (row, head), heads in the order q, k, v, of up to 512 dimensions. A thread has four
// dimensions of the first half and their RoPE partners in the second. All but the sums is at hand
// before the product has ended.
__global__ void __launch_bounds__(64)
    qkv_kernel(Partials p, HeadLayout layout, const float* q_norm, const float* k_norm,
               const float2* rope, const DeviceRow* rows, int q_rows, KvView kv, float eps, half* q,
               std::int32_t* broken) {
  __shared__ float scratch[32];
  let_next_start();
  const int row = blockIdx.x, d = layout.head_size;
  int head = blockIdx.y;
  HeadRole role = HeadRole::kQuery;
  if (head >= layout.heads + layout.kv_heads) {
    role = HeadRole::kValue;
    head -= layout.heads + layout.kv_heads;
  } else if (head >= layout.heads) {
    role = HeadRole::kKey;
    head -= layout.heads;
  }
  const bool from_k = role == HeadRole::kKey || (role == HeadRole::kValue && layout.value_is_key);
  const int first_tile = role == HeadRole::kQuery ? 0 : from_k ? layout.k_tile : layout.v_tile;
  const int dim = 4 * static_cast<int>(threadIdx.x), n = head * d + dim;
  const bool is_inside = dim < d / 2;
  const float* norm = role == HeadRole::kQuery ? q_norm : k_norm;
  TileParts low_parts = {}, high_parts = {};
  float4 low_norm = {1, 1, 1, 1}, high_norm = {1, 1, 1, 1}, turns[2] = {};
  if (is_inside) {
    low_parts = p.parts[first_tile + n / kTileRows];
    high_parts = p.parts[first_tile + (n + d / 2) / kTileRows];
    if (role != HeadRole::kValue) {
      low_norm = load4(norm + dim);
      high_norm = load4(norm + dim + d / 2);
      const float2* at = rope + static_cast<std::size_t>(row) * (d / 2) + dim;  // cos, sin
      turns[0] = load4(&at[0].x);
      turns[1] = load4(&at[2].x);
    }
  }
  const DeviceRow info = rows[row];
  half* to = q + (static_cast<std::size_t>(row) * layout.heads + head) * d;
  if (role != HeadRole::kQuery) {
    const PageId page = kv.tables[info.span * kv.table_stride + info.position / kPageTokens];
    to = reinterpret_cast<half*>(kv.pages + static_cast<std::size_t>(page) * kv.page_bytes +
                                 kv.layer_offset) +
         static_cast<std::size_t>(head) * 2 * kPageTokens * d;
  }
  wait_for_previous();
  float4 low = {}, high = {};
  if (is_inside && (role != HeadRole::kQuery || row < q_rows)) {
    low = sum_parts(p, low_parts, row, n % kTileRows);
    high = sum_parts(p, high_parts, row, (n + d / 2) % kTileRows);
  }
  if (role == HeadRole::kQuery && row >= q_rows) return;
  const float squares = sum_of_squares(low) + sum_of_squares(high);
  const float inverse =
      1.0f / sqrtf(block_sum_once(squares, scratch) / static_cast<float>(d) + eps);
  if (!is_inside) return;
  low = low * inverse;
  high = high * inverse;
  if (role != HeadRole::kValue) {
    const float4 a = low * low_norm, b = high * high_norm;
    const float4 c = {turns[0].x, turns[0].z, turns[1].x, turns[1].z};
    const float4 s = {turns[0].y, turns[0].w, turns[1].y, turns[1].w};
    low = a * c + b * s * -1.0f;
    high = b * c + a * s;
  }
  if (role != HeadRole::kQuery) {
    bool fits = true;
    low = storable(low, fits);
    high = storable(high, fits);
    if (!fits) broken[row] = 1;
  }
  const int key = info.position % kPageTokens;
  store_head(role, to, key, dim, d, low);
  store_head(role, to, key, dim + d / 2, d, high);
}

unsigned int blocks(int n, int per) {
  return static_cast<unsigned int>((n + per - 1) / per);
}

}  // namespace

void residual_norm(const Residual& residual, float* x, int rows, int cols, float eps,
                   const float* norm, const HalfRows& out, float* plain, std::int32_t* broken,
                   cudaStream_t stream) {
  TANDEM_CHECK(cols <= 16 * kMostRowThreads, "rows are at most 8192 wide");
  const bool is_narrow = cols <= 8 * kMostRowThreads;
  auto kernel = is_narrow ? residual_norm_kernel<2, false> : residual_norm_kernel<4, false>;
  if (out.form == InputForm::kE4m3Rows) {
    kernel = is_narrow ? residual_norm_kernel<2, true> : residual_norm_kernel<4, true>;
  }
  const unsigned threads = blocks(cols, (is_narrow ? 256 : 512)) * 32;
  launch(kernel, dim3(rows), threads, 0, stream, residual, x, cols, eps, norm, out, plain, broken);
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

void qkv_finish(const Partials& p, const HeadLayout& layout, const float* q_norm,
                const float* k_norm, const float2* rope, const DeviceRow* rows, int num_rows,
                int q_rows, const KvView& kv, float eps, half* q, std::int32_t* broken,
                cudaStream_t stream) {
  const int heads = layout.heads + (layout.k_tile >= 0 ? 2 * layout.kv_heads : 0);
  launch(qkv_kernel, dim3(num_rows, heads), blocks(layout.head_size, 256) * 32, 0, stream, p,
         layout, q_norm, k_norm, rope, rows, q_rows, kv, eps, q, broken);
}

}  // namespace tandem::kernels::cuda
