#include "tandem/kernels/cuda/reduce.cuh"
#include "tandem/kernels/cuda/row_ops.h"

namespace tandem::kernels::cuda {
namespace {

constexpr int kRowThreads = 256;
// The gated products are not bounded by a norm: they are stored / 64, so that fp16 reaches 4e6.
constexpr float kGateScale = 64.0f;

__device__ void store_half(const HalfRows& out, int row, int col, float value, float inverse_scale) {
  out.data[activation_index(row, col, out.row_tiles)] = __float2half_rn(value * inverse_scale);
}

/// Stores a gated product, saturating; a value that fp16 cannot hold is a fault.
__device__ void store_gated(const HalfRows& out, int row, int col, float value, int* fault) {
  const float scaled = value / kGateScale;
  if (!(fabsf(scaled) <= 65504.0f)) *fault = 1;
  store_half(out, row, col, fminf(fmaxf(scaled, -65504.0f), 65504.0f), 1.0f);
  if (col == 0) out.scale[row] = kGateScale;
}

__global__ void residual_norm_kernel(Residual residual, float* x, int cols, float eps, const float* norm,
                                     HalfRows out, float* plain, int* fault) {
  extern __shared__ float values[];  // [cols]
  __shared__ float scratch[32];
  const int row = blockIdx.x;
  float* x_row = x + static_cast<std::size_t>(row) * cols;
  if (residual.delta.data != nullptr) {
    float squares = 0;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
      const float v = sum_parts(residual.delta, row, residual.first_tile + c / kTileRows, c % kTileRows);
      values[c] = v;
      squares += v * v;
    }
    const float inverse =
        residual.post_norm ? 1.0f / sqrtf(block_sum(squares, scratch) / static_cast<float>(cols) + eps) : 1.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
      const float delta = residual.post_norm ? values[c] * inverse * residual.post_norm[c] : values[c];
      values[c] = (residual.replace ? delta : x_row[c] + delta) * residual.scale;
      x_row[c] = values[c];
    }
  } else {
    for (int c = threadIdx.x; c < cols; c += blockDim.x) values[c] = x_row[c];
  }
  if (out.data == nullptr && plain == nullptr) return;
  float squares = 0, largest = 0;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) squares += values[c] * values[c];
  const float sum = block_sum(squares, scratch);
  if (!(sum <= 3.0e38f) && threadIdx.x == 0) *fault = 1;
  const float inverse = norm ? 1.0f / sqrtf(sum / static_cast<float>(cols) + eps) : 1.0f;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) {
    values[c] = norm ? values[c] * inverse * norm[c] : values[c];
    largest = fmaxf(largest, fabsf(values[c]));
  }
  if (plain != nullptr) {
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
      plain[static_cast<std::size_t>(row) * cols + c] = values[c];
    }
  }
  if (out.data == nullptr) return;
  const float scale = row_scale(block_max(largest, scratch));
  for (int c = threadIdx.x; c < cols; c += blockDim.x) store_half(out, row, c, values[c], 1.0f / scale);
  if (threadIdx.x == 0) out.scale[row] = scale;
}

__global__ void geglu_kernel(Partials p, int up_tile, int cols, HalfRows out, int* fault) {
  const int row = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= cols) return;
  const float gate = sum_parts(p, row, c / kTileRows, c % kTileRows);
  const float up = sum_parts(p, row, up_tile + c / kTileRows, c % kTileRows);
  store_gated(out, row, c, gelu_tanh(gate) * up, fault);
}

__global__ void gated_ple_kernel(Partials p, const float* ple, int ple_stride, int cols, HalfRows out, int* fault) {
  const int row = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= cols) return;
  const float gate = sum_parts(p, row, c / kTileRows, c % kTileRows);
  store_gated(out, row, c, gelu_tanh(gate) * ple[static_cast<std::size_t>(row) * ple_stride + c], fault);
}

__global__ void combine_ple_kernel(Partials p, const float* norm, float input_scale, float eps, int layers, int width,
                                   float* ple) {
  __shared__ float scratch[32];
  const int row = blockIdx.y, layer = blockIdx.x;
  float* at = ple + (static_cast<std::size_t>(row) * layers + layer) * width;
  float squares = 0;
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    const int n = layer * width + c;
    const float v = sum_parts(p, row, n / kTileRows, n % kTileRows) * input_scale;
    squares += v * v;
  }
  const float inverse = 1.0f / sqrtf(block_sum(squares, scratch) / static_cast<float>(width) + eps);
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    const int n = layer * width + c;
    const float v = sum_parts(p, row, n / kTileRows, n % kTileRows) * input_scale;
    at[c] = (v * inverse * norm[c] + at[c]) * 0.70710678118654752f;
  }
}

__global__ void concat_kernel(const float* embedding, const float* hidden, const DeviceRow* rows, int cols,
                              HalfRows out) {
  __shared__ float scratch[32];
  const int row = blockIdx.x;
  const float* e = embedding + static_cast<std::size_t>(row) * cols;
  const float* u = hidden + static_cast<std::size_t>(rows[row].slot) * cols;
  float largest = 0;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) largest = fmaxf(largest, fmaxf(fabsf(e[c]), fabsf(u[c])));
  const float scale = row_scale(block_max(largest, scratch));
  for (int c = threadIdx.x; c < cols; c += blockDim.x) {
    store_half(out, row, c, e[c], 1.0f / scale);
    store_half(out, row, cols + c, u[c], 1.0f / scale);
  }
  if (threadIdx.x == 0) out.scale[row] = scale;
}

__global__ void store_hidden_kernel(Partials p, const DeviceRow* rows, int cols, float* dst) {
  const int row = blockIdx.x;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) {
    dst[static_cast<std::size_t>(rows[row].slot) * cols + c] = sum_parts(p, row, c / kTileRows, c % kTileRows);
  }
}

/// Position of `dim` in a q row: the two k-steps that a lane reads at once lie together.
__device__ int q_index(int dim) {
  return dim / 32 * 32 + dim % 8 / 2 * 8 + dim / 16 % 2 * 4 + dim % 16 / 8 * 2 + dim % 2;
}

enum class HeadRole { kQuery, kKey, kValue };

// One block a (row, head); heads in the order q, k, v.
__global__ void qkv_kernel(Partials p, HeadLayout layout, const float* q_norm, const float* k_norm, const float2* rope,
                           const DeviceRow* rows, int q_rows, KvView kv, float eps, half* q) {
  __shared__ float values[512], scratch[32];
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
  if (role == HeadRole::kQuery && row >= q_rows) return;
  const bool from_k = role == HeadRole::kKey || (role == HeadRole::kValue && layout.value_is_key);
  const int first_tile = role == HeadRole::kQuery ? 0 : from_k ? layout.k_tile : layout.v_tile;
  float squares = 0;
  for (int i = threadIdx.x; i < d; i += blockDim.x) {
    const int n = head * d + i;
    values[i] = sum_parts(p, row, first_tile + n / kTileRows, n % kTileRows);
    squares += values[i] * values[i];
  }
  const float inverse = 1.0f / sqrtf(block_sum(squares, scratch) / static_cast<float>(d) + eps);
  if (role == HeadRole::kValue) {
    for (int i = threadIdx.x; i < d; i += blockDim.x) values[i] *= inverse;
  } else {
    const float* norm = role == HeadRole::kQuery ? q_norm : k_norm;
    for (int i = threadIdx.x; i < d / 2; i += blockDim.x) {
      const float2 turn = rope[static_cast<std::size_t>(row) * (d / 2) + i];  // cos, sin
      const float a = values[i] * inverse * norm[i], b = values[i + d / 2] * inverse * norm[i + d / 2];
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
  half* block = reinterpret_cast<half*>(kv.pages + static_cast<std::size_t>(page) * kv.page_bytes + kv.layer_offset) +
                static_cast<std::size_t>(head) * 2 * kPageTokens * d;
  for (int i = threadIdx.x; i < d; i += blockDim.x) {
    const half v = __float2half_rn(values[i]);
    if (role == HeadRole::kKey) {
      block[k_index(key, i, d)] = v;
    } else {
      block[kPageTokens * d + v_index(key, i)] = v;
    }
  }
}

unsigned int blocks(int n, int per) { return static_cast<unsigned int>((n + per - 1) / per); }

}  // namespace

void residual_norm(const Residual& residual, float* x, int rows, int cols, float eps, const float* norm,
                   const HalfRows& out, float* plain, int* fault, cudaStream_t stream) {
  residual_norm_kernel<<<rows, kRowThreads, cols * sizeof(float), stream>>>(residual, x, cols, eps, norm, out, plain,
                                                                          fault);
}

void geglu(const Partials& p, int up_tile, int rows, int cols, const HalfRows& out, int* fault, cudaStream_t stream) {
  geglu_kernel<<<dim3(blocks(cols, 256), rows), 256, 0, stream>>>(p, up_tile, cols, out, fault);
}

void gated_ple(const Partials& p, const float* ple, int ple_stride, int rows, int cols, const HalfRows& out, int* fault,
               cudaStream_t stream) {
  gated_ple_kernel<<<dim3(blocks(cols, 128), rows), 128, 0, stream>>>(p, ple, ple_stride, cols, out, fault);
}

void combine_ple(const Partials& p, const float* norm, float input_scale, float eps, int rows, int layers, int width,
                 float* ple, cudaStream_t stream) {
  combine_ple_kernel<<<dim3(layers, rows), 128, 0, stream>>>(p, norm, input_scale, eps, layers, width, ple);
}

void concat_draft_input(const float* embedding, const float* hidden, const DeviceRow* rows, int num_rows, int cols,
                        const HalfRows& out, cudaStream_t stream) {
  concat_kernel<<<num_rows, kRowThreads, 0, stream>>>(embedding, hidden, rows, cols, out);
}

void store_hidden(const Partials& p, const DeviceRow* rows, int num_rows, int cols, float* dst, cudaStream_t stream) {
  store_hidden_kernel<<<num_rows, kRowThreads, 0, stream>>>(p, rows, cols, dst);
}

void qkv_finish(const Partials& p, const HeadLayout& layout, const float* q_norm, const float* k_norm,
                const float2* rope, const DeviceRow* rows, int num_rows, int q_rows, const KvView& kv, float eps, half* q,
                cudaStream_t stream) {
  const int heads = layout.heads + (layout.k_tile >= 0 ? 2 * layout.kv_heads : 0);
  qkv_kernel<<<dim3(num_rows, heads), 128, 0, stream>>>(p, layout, q_norm, k_norm, rope, rows, q_rows, kv, eps, q);
}

}  // namespace tandem::kernels::cuda
