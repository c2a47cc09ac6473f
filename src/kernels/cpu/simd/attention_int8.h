#pragma once

#include "tandem/kernels/cpu/panel.h"
#include "tandem/kernels/cpu/simd/row_kernels.h"

namespace tandem::kernels::cpu {

/// An AttentionBlock over an int8 cache (kv_layout.h). Both of its products are those of a weight
/// with int8 activations: keys times queries, and values times the softmax's weights, which take
/// the values' scales and are rounded to codes page by page. `queries` is not read; head_size is a
/// multiple of 32 and num_vectors any number up to kMaxTileVectors.
struct Int8AttentionBlock : AttentionBlock {
  const CodeGroup* query_codes = nullptr;  ///< [num_vectors][D / 32]
  CodeGroup* weights = nullptr;            ///< scratch [num_vectors][kPagesPerBlock]
};

}  // namespace tandem::kernels::cpu
