#pragma once

#include <cstddef>
#include <memory>

#include "tandem/kernels/backend.h"

namespace tandem::app {

/// What a dry run would have taken.
struct DryRunTotals {
  std::size_t packed_bytes = 0;   ///< weights held in memory
  std::size_t in_file_bytes = 0;  ///< tables that may stay in the mapped file
  std::size_t row_bytes = 0;      ///< activations
  int max_inputs = 0;             ///< of a linear
  int max_outputs = 0;
};

/// A backend that checks weights and keeps none, so that a loader can be run for its checks and
/// sizes alone. Adds up in `totals` (null: does not), which must outlive it. Its steps CHECK.
std::unique_ptr<kernels::Backend> make_dry_run_backend(DryRunTotals* totals);

}  // namespace tandem::app
