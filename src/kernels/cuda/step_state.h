#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tandem/core/units.h"
#include "tandem/kernels/step.h"

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

/// How the token of a kept row is chosen. The changes and the mask are places in StepSampling.
struct RowSampling {
  SamplingParams params;
  std::int32_t mask = -1;  ///< -1: none
  std::int32_t first_change = 0, num_changes = 0;

  __host__ __device__ bool has_rule() const { return mask >= 0 || num_changes > 0; }
};

/// Sizes of the running step, where a kernel's grid may be larger.
struct StepCounts {
  std::int32_t sampled_spans, draft_rows;
};

}  // namespace tandem::kernels::cuda
