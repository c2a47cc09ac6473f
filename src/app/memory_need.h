#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "tandem/core/status.h"
#include "tandem/model/memory_plan.h"
#include "tandem/model/model_files.h"

namespace tandem::app {

/// With which bounds a model would be served.
struct ServeBounds {
  int context = 65536;
  int max_sequences = 32;
  std::size_t kv_memory_bytes = model::kUsualKvBytes;
};

/// Memory that serving takes on the CPU, in bytes, as the process's resident set shows it.
struct MemoryNeed {
  std::size_t program = 0;    ///< code, tokenizer, server
  std::size_t weights = 0;    ///< packed
  std::size_t in_file = 0;    ///< tables whose rows are read from the page cache: not resident
  std::size_t kv_live = 0;    ///< all sequences at full context
  std::size_t kv_kept = 0;    ///< kept beside them for prompts that begin alike
  std::size_t kv_budget = 0;  ///< of both
  std::size_t workspace = 0;  ///< what a step of the most rows touches

  std::size_t kv() const { return std::min(kv_live + kv_kept, kv_budget); }
  std::size_t total() const { return program + weights + kv() + workspace; }
};

/// Whether a KV budget holds a page of each kind, without which nothing can be served.
core::Status check_kv_memory(const model::ModelConfig& config, std::size_t bytes);

/// Adds up what serving a target with its drafter (null: none) takes, reading no weight but
/// the table of a centroid head. Finds and checks every tensor on the way: fails as loading would.
core::Result<MemoryNeed> memory_need(const model::ModelFiles& target,
                                     const model::ModelFiles* drafter, const ServeBounds& bounds);

/// Bytes that the machine has available, or the container's limit where that is less; nothing where
/// neither is known.
std::optional<std::uint64_t> available_memory();

}  // namespace tandem::app
