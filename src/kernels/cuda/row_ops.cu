#include <algorithm>

#include "tandem/core/check.h"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/reduce.cuh"
#include "tandem/kernels/cuda/row_ops.h"

namespace tandem::kernels::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int kMostRowThreads = 1024;
constexpr int kGateThreads = 128;
// The gated products are not bounded by a norm: they are stored / 64, so that fp16 reaches 4e6.
constexpr float kGateScale = 64.0f;

__device__ float4 load4(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}
__device__ void store4(float* p, float4 v) {
  *reinterpret_cast<float4*>(p) = v;
}
__device__ float4 operator*(float4 a, float b) {
  return {a.x * b, a.y * b, a.z * b, a.w * b};
}
__device__ float4 operator*(float4 a, float4 b) {
  return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}
__device__ float4 operator+(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
__device__ float sum_of_squares(float4 v) {
  return (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
}
__device__ float largest_of(float4 v) {
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

/// Four columns from `col` on, a multiple of 4.
__device__ void store_half4(const HalfRows& out, int row, int col, float4 v) {
  half2* at = reinterpret_cast<half2*>(out.data + activation_index(row, col, out.row_tiles));
  at[0] = __floats2half2_rn(v.x, v.y);
  at[1] = __floats2half2_rn(v.z, v.w);
}

/// Stores a gated product, saturating; a value that fp16 cannot hold is a broken.
__device__ void store_gated(const HalfRows& out, int row, int col, float4 value,
                            std::int32_t* broken) {
  const float4 v = value * (1.0f / kGateScale);
  if (!(largest_of(v) <= 65504.0f)) broken[row] = 1;
  const auto saturated = [](float x) {
    return fminf(fmaxf(x, -65504.0f), 65504.0f);
  };
  store_half4(out, row, col, {saturated(v.x), saturated(v.y), saturated(v.z), saturated(v.w)});
  if (col == 0) out.scale[row] = kGateScale;
}

// A block a row, kQuads times four columns a thread. Short code: a kernel of microseconds pays for
// every line of instructions that it fetches.
template <int kQuads>
__global__ void __launch_bounds__(kMostRowThreads)
    residual_norm_kernel(Residual residual, float* x, int cols, float eps, const float* norm,
                         HalfRows out, float* plain, std::int32_t* broken) {
  __shared__ float scratch[32];
  __shared__ SumAndLargest both[32];
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
  });
  after_previous();
  each([&](int i, int c) {
    if (!residual.replace) old[i] = load4(x_row + c);
  });
  if (!has_delta) {
    each([&](int i, int) { v[i] = old[i]; });
  } else {
    float squares = 0;
    each([&](int i, int c) {
      v[i] = sum_parts(residual.delta, parts[i], row, c % kTileRows);
      squares += sum_of_squares(v[i]);
    });
    const float inverse =
        residual.post_norm
            ? 1.0f / sqrtf(block_sum(squares, scratch) / static_cast<float>(cols) + eps)
            : 1.0f;
    each([&](int i, int c) {
      if (residual.post_norm) v[i] = v[i] * inverse * post_norm[i];
      if (!residual.replace) v[i] = old[i] + v[i];
      v[i] = v[i] * residual.scale;
      store4(x_row + c, v[i]);
    });
  }
  if (out.data == nullptr && plain == nullptr) return;
  SumAndLargest mine = {};
  each([&](int i, int) {
    mine.sum += sum_of_squares(v[i]);
    if (norm) v[i] = v[i] * weight[i];
    mine.largest = fmaxf(mine.largest, largest_of(v[i]));
  });
  const SumAndLargest all = block_sum_and_largest(mine, both);
  if (!(all.sum <= 3.0e38f) && threadIdx.x == 0) broken[row] = 1;
  const float inverse = norm ? 1.0f / sqrtf(all.sum / static_cast<float>(cols) + eps) : 1.0f;
  const float scale = row_scale(all.largest * inverse);
  each([&](int i, int c) {
    v[i] = v[i] * inverse;
    if (plain != nullptr) store4(plain + static_cast<std::size_t>(row) * cols + c, v[i]);
    if (out.data != nullptr) store_half4(out, row, c, v[i] * (1.0f / scale));
  });
  if (out.data != nullptr && threadIdx.x == 0) out.scale[row] = scale;
}

__device__ float4 gelu4(float4 v) {
  return {gelu_tanh(v.x), gelu_tanh(v.y), gelu_tanh(v.z), gelu_tanh(v.w)};
}

__global__ void geglu_kernel(Partials p, int up_tile, int cols, HalfRows out,
                             std::int32_t* broken) {
  const int row = blockIdx.y, c = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  const bool is_inside = c < cols;
  const TileParts gate_parts = is_inside ? p.parts[c / kTileRows] : TileParts{};
  const TileParts up_parts = is_inside ? p.parts[up_tile + c / kTileRows] : TileParts{};
  after_previous();
  if (!is_inside) return;
  const float4 gate = sum_parts(p, gate_parts, row, c % kTileRows);
  const float4 up = sum_parts(p, up_parts, row, c % kTileRows);
  store_gated(out, row, c, gelu4(gate) * up, broken);
}

__global__ void gated_ple_kernel(Partials p, const float* ple, int ple_stride, int cols,
                                 HalfRows out, std::int32_t* broken) {
  const int row = blockIdx.y, c = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  const bool is_inside = c < cols;
  const TileParts parts = is_inside ? p.parts[c / kTileRows] : TileParts{};
  after_previous();
  if (!is_inside) return;
  const float4 input = load4(ple + static_cast<std::size_t>(row) * ple_stride + c);
  store_gated(out, row, c, gelu4(sum_parts(p, parts, row, c % kTileRows)) * input, broken);
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
      1.0f / sqrtf(block_sum(sum_of_squares(v), scratch) / static_cast<float>(width) + eps);
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

// One block a (row, head), of 128 threads; heads in the order q, k, v, of up to 512 dimensions.
__global__ void qkv_kernel(Partials p, HeadLayout layout, const float* q_norm, const float* k_norm,
                           const float2* rope, const DeviceRow* rows, int q_rows, KvView kv,
                           float eps, half* q, std::int32_t* broken) {
  __shared__ __align__(16) float values[512];
  __shared__ float scratch[32];
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
  const int column = 4 * static_cast<int>(threadIdx.x), n = head * d + column;
  const TileParts parts = column < d ? p.parts[first_tile + n / kTileRows] : TileParts{};
  after_previous();
  if (role == HeadRole::kQuery && row >= q_rows) return;
  float squares = 0;
  if (column < d) {
    const float4 v = sum_parts(p, parts, row, n % kTileRows);
    store4(values + column, v);
    squares = sum_of_squares(v);
  }
  const float inverse = 1.0f / sqrtf(block_sum(squares, scratch) / static_cast<float>(d) + eps);
  if (role == HeadRole::kValue) {
    for (int i = threadIdx.x; i < d; i += blockDim.x) values[i] *= inverse;
  } else {
    const float* norm = role == HeadRole::kQuery ? q_norm : k_norm;
    for (int i = threadIdx.x; i < d / 2; i += blockDim.x) {
      const float2 turn = rope[static_cast<std::size_t>(row) * (d / 2) + i];  // cos, sin
      const float a = values[i] * inverse * norm[i],
                  b = values[i + d / 2] * inverse * norm[i + d / 2];
      values[i] = a * turn.x - b * turn.y;
      values[i + d / 2] = b * turn.x + a * turn.y;
    }
  }
  __syncthreads();
  if (role == HeadRole::kQuery) {
    half* out = q + (static_cast<std::size_t>(row) * layout.heads + head) * d;
    for (int i = threadIdx.x; i < d; i += blockDim.x) out[q_index(i)] = __float2half_rn(values[i]);
    return;
  }
  const DeviceRow info = rows[row];
  const PageId page = kv.tables[info.span * kv.table_stride + info.position / kPageTokens];
  const int key = info.position % kPageTokens;
  half* block = reinterpret_cast<half*>(kv.pages + static_cast<std::size_t>(page) * kv.page_bytes +
                                        kv.layer_offset) +
                static_cast<std::size_t>(head) * 2 * kPageTokens * d;
  for (int i = threadIdx.x; i < d; i += blockDim.x) {
    // What is not finite would spoil the rows that see it behind their mask, too.
    const bool fits = fabsf(values[i]) <= 65504.0f;
    if (!fits) broken[row] = 1;
    const half v = __float2half_rn(fits ? values[i] : 0.0f);
    if (role == HeadRole::kKey) {
      block[k_index(key, i, d)] = v;
    } else {
      block[kPageTokens * d + v_index(key, i)] = v;
    }
  }
}

unsigned int blocks(int n, int per) {
  return static_cast<unsigned int>((n + per - 1) / per);
}

}  // namespace

void residual_norm(const Residual& residual, float* x, int rows, int cols, float eps,
                   const float* norm, const HalfRows& out, float* plain, std::int32_t* broken,
                   cudaStream_t stream) {
  const unsigned threads = std::min<unsigned>(blocks(cols, 128) * 32, kMostRowThreads);
  TANDEM_CHECK(cols <= 8 * kMostRowThreads, "rows are at most 8192 wide");
  const auto kernel =
      cols <= 4 * kMostRowThreads ? residual_norm_kernel<1> : residual_norm_kernel<2>;
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
  launch(qkv_kernel, dim3(num_rows, heads), 128, 0, stream, p, layout, q_norm, k_norm, rope, rows,
         q_rows, kv, eps, q, broken);
}

}  // namespace tandem::kernels::cuda
