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

/// Query rows that share a tensor-core tile: up to 16 / (H / G) consecutive rows of one span.
struct AttentionTile {
  std::int32_t span, first_row, num_rows;
};

}  // namespace tandem::kernels::cuda
