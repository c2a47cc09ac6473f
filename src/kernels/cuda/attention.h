#pragma once

#include <cuda_runtime.h>

#include "tandem/kernels/cuda/head_rows.h"

namespace tandem::kernels::cuda {

struct AttentionArguments {
  const half* q = nullptr;  ///< [rows, H*D], as qkv_finish writes it
  const DeviceRow* rows = nullptr;
  const AttentionTile* tiles = nullptr;  ///< device memory
  KvView kv;
  int heads = 0, kv_heads = 0, head_size = 0;
  int window = 0;                   ///< 0: full
  bool is_written = false;          ///< the kernel before this one writes keys of the step
  float* partial_sums = nullptr;    ///< [tile * G + g][block][16][D]
  float2* partial_stats = nullptr;  ///< [tile * G + g][block][16] (max, sum)
};

/// Bytes of partial_sums that one tile of one KV head needs for each key block.
constexpr std::size_t attention_block_bytes(int head_size) {
  return std::size_t{16} * static_cast<std::size_t>(head_size) * sizeof(float);
}

/// Whether attention() rounds its output to e4m3 itself where out.form asks for it. One block has
/// all of a row then: not for long texts.
constexpr int kMostMergedCols = 4096, kMostMergedBlocks = 32;
inline bool rounds_output(const AttentionArguments& a, int max_blocks) {
  return a.heads * a.head_size <= kMostMergedCols && max_blocks <= kMostMergedBlocks;
}

/// out [rows, H*D] = softmax(q K^T) V for the rows of tiles [first_tile, first_tile + num_tiles),
/// which see at most `max_blocks` key blocks each. Every block of 64 keys, aligned to absolute
/// positions, is computed by itself and the blocks are merged in ascending order: a row's bits
/// depend on nothing else.
void attention(const AttentionArguments& a, int first_tile, int num_tiles, int max_blocks,
               const HalfRows& out, cudaStream_t stream);

}  // namespace tandem::kernels::cuda
