#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tandem/core/buffer.h"
#include "tandem/core/status.h"
#include "tandem/kernels/backend.h"
#include "tandem/kernels/cpu/kv_layout.h"
#include "tandem/kernels/host_step.h"

namespace tandem::kernels::cpu {

/// Query vectors of one attention task. The vectors of a run and KV head are numbered row by row
/// and, in a row, head by head: they all read the same keys.
inline constexpr int kTaskVectors = 48;

/// A part of attention that one member computes: some vectors of a run over key blocks
/// [first_block, end_block).
struct AttentionTask {
  RowRun run;
  int kv_head = 0;
  int first_vector = 0;
  int num_vectors = 0;
  int first_block = 0;
  int end_block = 0;
  int partial = -1;  ///< first row of its partial results; -1: writes the final result itself
};

/// Cuts an attention call into tasks, in an order that turns round from call to call: what the
/// caches kept from the end of one call is read at the start of the next. With few sequences every
/// key block becomes a task of its own whose partial result is merged afterwards, in ascending
/// order, so that the split changes no bits. Memory is kept from call to call.
class AttentionWork {
 public:
  core::Status configure(int max_head_size);

  struct Shape {
    AttentionSpec spec;
    int window = 0;  ///< 0: none
    int rows = 0;    ///< rows [0, rows) attend
    int members = 1;
  };
  void plan(const Shape& shape, std::span<const RowInfo> rows, std::span<const RowRun> runs);

  std::span<const AttentionTask> tasks() const { return tasks_; }
  /// Tasks over all blocks whose parts must be merged; empty if nothing was split.
  std::span<const AttentionTask> merges() const { return merges_; }

  /// Partial result of (block, vector) of a split task: out [D], then max, then sum.
  float* partial(int row) const {
    return partials_.as<float>() + static_cast<std::ptrdiff_t>(row) * partial_cols_;
  }

 private:
  void split();

  std::vector<AttentionTask> tasks_;
  std::vector<AttentionTask> merges_;
  core::Arena partials_;
  int partial_cols_ = 0;
  int max_partials_ = 0;
  bool is_reversed_ = false;
};

/// First key that a row of the layer sees.
inline Position first_visible_key(const RowInfo& row, int window) {
  return window > 0 && row.position >= window ? row.position - window + 1 : 0;
}

}  // namespace tandem::kernels::cpu
