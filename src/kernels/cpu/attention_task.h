#pragma once

#include <cstddef>
#include <span>

#include "tandem/core/buffer.h"
#include "tandem/kernels/cpu/attention_work.h"
#include "tandem/kernels/cpu/matmul.h"
#include "tandem/kernels/cpu/simd/row_kernels.h"
#include "tandem/kernels/host_kv.h"
#include "tandem/kernels/host_step.h"

namespace tandem::kernels::cpu {

/// Softmax attention of normed and rotated queries over the cache: runs the tasks of an
/// AttentionWork. Thread: run() and merge() of different tasks from any threads at once, each
/// with a scratch of its own.
class AttentionRunner {
 public:
  struct Inputs {
    AttentionSpec spec;
    int window = 0;                  ///< 0: none
    std::span<const RowInfo> rows;   ///< of the row set
    const float* queries = nullptr;  ///< [rows, H * D]
    float* out = nullptr;            ///< [rows, H * D]
    /// Of an int8 cache; null: the cache has 16 bits.
    const MatmulKernels* int8 = nullptr;
  };
  AttentionRunner(const RowKernels& kernels, const HostKv& kv, const HostStep& step,
                  const AttentionWork& work, const Inputs& inputs)
      : k_(kernels), kv_(kv), step_(step), work_(work), in_(inputs) {}

  static std::size_t scratch_bytes(int head_size);

  /// `next` (null: none) is a task that this thread is likely to run after this one: its first
  /// keys are fetched into the cache meanwhile.
  void run(const AttentionTask& task, const AttentionTask* next, const core::Arena& scratch) const;
  /// Merges the partial results of a split task, after all of them.
  void merge(const AttentionTask& task, const core::Arena& scratch) const;

 private:
  struct Scratch;
  struct BlockPages;
  struct PageRange {
    int begin = 0;
    int end = 0;
  };

  int heads_per_kv() const { return in_.spec.heads / in_.spec.kv_heads; }
  std::ptrdiff_t head_offset(const AttentionTask& task, int vector) const;
  const RowInfo& row_of(const AttentionTask& task, int vector) const;
  void load_queries(const AttentionTask& task, const Scratch& s) const;
  /// Vectors of the next tile when `left` are left.
  int next_tile(int left) const;
  PageRange visible_pages(const AttentionTask& task, int block) const;
  PageId page_of(const AttentionTask& task, int block, int page) const;
  BlockPages find_pages(const AttentionTask& task, int block, const AttentionTask* next_task,
                        int next_block) const;
  void attend_block(const AttentionTask& task, int block, const BlockPages& pages,
                    const Scratch& s) const;
  void write_result(const AttentionTask& task, int vector, const float* out, float sum) const;

  const RowKernels& k_;
  const HostKv& kv_;
  const HostStep& step_;
  const AttentionWork& work_;
  const Inputs in_;
};

}  // namespace tandem::kernels::cpu
