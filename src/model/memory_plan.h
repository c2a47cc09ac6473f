#pragma once

#include <cstddef>
#include <string>

#include "tandem/core/status.h"
#include "tandem/kernels/backend.h"
#include "tandem/model/config.h"
#include "tandem/model/load_draft_head.h"
#include "tandem/model/model_files.h"

namespace tandem::model {

/// What serving takes of a device's own memory, in bytes.
struct MemoryPlan {
  std::size_t weights = 0;
  std::size_t tables = 0;       ///< per-layer embeddings on the device
  std::size_t host_tables = 0;  ///< those in host memory; not part of the sum
  std::size_t workspace = 0;    ///< activations included
  std::size_t driver = 0;       ///< the driver's own and recorded steps; an estimate
  std::size_t kv = 0;
  std::size_t limit = 0;  ///< what all of it may take

  std::size_t fixed() const { return weights + tables + workspace + driver; }
  std::size_t total() const { return fixed() + kv; }
  /// One line for the log.
  std::string describe() const;
};

/// A pair to be planned for.
struct PlannedPair {
  const ModelFiles& target;
  const ModelConfig& target_config;
  const ModelFiles* drafter;  ///< null: none
  const ModelConfig& drafter_config;
  DraftHead draft_head;
};

/// KV memory that is enough for small models, and that no host can miss: a bound, which is taken
/// page by page.
inline constexpr std::size_t kUsualKvBytes = std::size_t{2} << 30;

/// KV bytes of one token in all layers of a kind that own KV, f16.
std::size_t kv_bytes_per_token(const ModelConfig& config, kernels::AttentionKind kind);

/// What a device that sets its KV memory aside should have: room for 1,024 tokens of every
/// sequence, or for one that fills its context, and at least kUsualKvBytes.
std::size_t usual_kv_bytes(const ModelConfig& config, int sequences, int context);

/// Plans the memory of a backend that has a device_memory(), before anything of it is taken: the KV
/// budget of `geometry` shrinks to what is left of `limit` (0: of the memory that is free). Reads
/// no weight but the table of a centroid head. kResourceExhausted, with the numbers, if not even
/// the rest fits; otherwise fails as loading would.
core::Result<MemoryPlan> plan_memory(const PlannedPair& pair, const kernels::Geometry& geometry,
                                     const kernels::Backend& backend, std::size_t limit);

}  // namespace tandem::model
