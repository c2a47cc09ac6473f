#pragma once

#include <algorithm>

#include "tandem/core/units.h"

namespace tandem::app {

/// Rows of the largest step: room for every sequence's decode span beside prompt chunks.
inline int rows_of_step(int max_sequences) {
  constexpr int kMinStepRows = 512;
  return std::max(kMinStepRows, max_sequences * (1 + kMaxDraft));
}

}  // namespace tandem::app
