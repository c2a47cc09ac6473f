#pragma once

#include <cstdint>

#include "tandem/kernels/cpu/panel.h"

namespace tandem::kernels::cpu {

/// Most query vectors of one AttentionBlock.
inline constexpr int kMaxTileVectors = 12;

/// Attention of a few query vectors over one block of kBlockTokens keys by absolute position.
/// The state (max, sum, out) runs over the blocks of a vector in ascending order.
struct AttentionBlock {
  int head_size = 0;                    ///< D, a multiple of 16
  int num_vectors = 0;                  ///< up to kMaxTileVectors
  const void* const* keys = nullptr;    ///< per page of the block; kv_layout.h
  const void* const* values = nullptr;  ///< per page
  const void* next_keys = nullptr;      ///< page read after this block
  int first_page = 0;                   ///< pages [first_page, end_page) hold all visible keys
  int end_page = 0;
  const std::int32_t* key_begin = nullptr;  ///< [num_vectors] visible keys of the block,
  const std::int32_t* key_end = nullptr;    ///< counted from its first position
  float* max = nullptr;                     ///< [num_vectors] -inf before the first block
  float* sum = nullptr;                     ///< [num_vectors]
  float* out = nullptr;                     ///< [num_vectors][D] sum of exp(score - max) * value
  float* block_out = nullptr;               ///< scratch [num_vectors][D]
  float* scores = nullptr;                  ///< scratch [num_vectors][kBlockTokens]
};

/// An AttentionBlock over a 16-bit cache. Both of its products are exact sums of 32-bit integers:
/// keys times queries over the head, and values times the softmax's weights, which take the values'
/// scales and are rounded to codes, over the block. num_vectors is 1, 2, 4, 8 or 12.
struct Int16AttentionBlock : AttentionBlock {
  const std::int16_t* queries = nullptr;  ///< codes [D / 2][num_vectors][2]
  const float* query_scales = nullptr;    ///< [num_vectors]
  std::int16_t* weights = nullptr;        ///< scratch [num_vectors][kBlockTokens]
};

/// An AttentionBlock over an int8 cache. Both of its products are those of a weight with int8
/// activations: keys times queries, and values times the softmax's weights, which take the values'
/// scales and are rounded to codes page by page. head_size is a multiple of 32.
struct Int8AttentionBlock : AttentionBlock {
  const CodeGroup* queries = nullptr;  ///< [num_vectors][D / 32]
  CodeGroup* weights = nullptr;        ///< scratch [num_vectors][kPagesPerBlock]
};

}  // namespace tandem::kernels::cpu
