#pragma once

#include <cstddef>
#include <memory>

#include "tandem/kernels/backend.h"

namespace tandem::model {

/// What a dry run would have taken.
struct DryRunTotals {
  std::size_t packed_bytes = 0;   ///< weights held in memory, but for tables
  std::size_t table_bytes = 0;    ///< tables held in memory
  std::size_t in_file_bytes = 0;  ///< tables that may stay in the mapped file
  std::size_t row_bytes = 0;      ///< activations
  int max_code_inputs = 0;        ///< of a product that reads int8 codes
  int max_e4m3_inputs = 0;        ///< of one that reads activations rounded to e4m3
};

/// A backend that checks weights and keeps none, so that a loader can be run for its checks and
/// sizes alone. Adds up in `totals` (null: does not) what `sizes` would take (null: what the CPU
/// backend would); both must outlive it. Its steps CHECK.
std::unique_ptr<kernels::Backend> make_dry_run_backend(DryRunTotals* totals,
                                                       const kernels::Backend* sizes = nullptr);

}  // namespace tandem::model
