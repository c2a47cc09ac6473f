#pragma once

#include <cstdint>

#include "tandem/core/units.h"

namespace tandem::kernels::cuda {

/// kernels::RowInfo as device code reads it.
struct DeviceRow {
  std::int32_t span, slot;
  TokenId token;
  Position position;
  Position visible_end;
};
constexpr int kRowStride = sizeof(DeviceRow) / sizeof(std::int32_t);  ///< from token to token

/// Query rows that share a tensor-core tile: up to 16 / (H / G) consecutive rows of one span. 0
/// rows: nothing to do.
struct AttentionTile {
  std::int32_t span, first_row, num_rows;
  Position known_end;  ///< keys before it were in the cache when the step began
};

/// A span that samples: its rows among the kept ones, and its row among those that draft (-1:
/// none).
struct SampledSpan {
  std::int32_t span, slot, first_row, num_rows, draft_row;
};

/// Sizes of the running step, where a kernel's grid may be larger.
struct StepCounts {
  std::int32_t sampled_spans, draft_rows;
};

}  // namespace tandem::kernels::cuda
