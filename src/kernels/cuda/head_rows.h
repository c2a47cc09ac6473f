#pragma once

#include <cuda_runtime.h>

#include "tandem/kernels/cuda/gemm.h"
#include "tandem/kernels/cuda/step_state.h"

namespace tandem::kernels::cuda {

struct KvView {
  std::uint8_t* pages = nullptr;
  std::size_t page_bytes = 0;
  std::size_t layer_offset = 0;
  const PageId* tables = nullptr;  ///< [spans, table_stride]
  int table_stride = 0;

#ifdef __CUDACC__
  /// K of the page that holds key block `block` of a span, [KV head][K, V][64 x D].
  __device__ half* page(int span, int block) const {
    const PageId id = tables[span * table_stride + block];
    return reinterpret_cast<half*>(pages + static_cast<std::size_t>(id) * page_bytes +
                                   layer_offset);
  }
#endif
};

struct HeadLayout {
  int heads = 0, kv_heads = 0, head_size = 0;
  int k_tile = -1, v_tile = -1;  ///< first tiles of k and v in the group; -1: no KV written
  bool value_is_key = false;
};

/// The product of q, k and v, and what their heads still lack.
struct HeadInputs {
  Partials sums;
  HeadLayout layout;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  const float2* rope = nullptr;  ///< [rows, D / 2] cos, sin
  float eps = 0.0f;
  std::int32_t* broken = nullptr;
};

/// Per-head norm and RoPE of q (into q [rows, H*D] fp16, permuted for attention) and of k, the
/// weightless norm of v, and their write to the cache. What fp16 cannot hold is written as zeros
/// and breaks the row. q is skipped for rows >= q_rows.
void qkv_finish(const HeadInputs& in, const DeviceRow* rows, int num_rows, int q_rows,
                const KvView& kv, half* q, cudaStream_t stream);

}  // namespace tandem::kernels::cuda
