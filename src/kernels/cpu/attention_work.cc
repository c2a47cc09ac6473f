#include "tandem/kernels/cpu/attention_work.h"

#include <algorithm>

#include "tandem/core/checked_math.h"
#include "tandem/kernels/cpu/sizes.h"

namespace tandem::kernels::cpu {

core::Status AttentionWork::configure(int max_head_size) {
  partial_cols_ = max_head_size + 2;
  const std::size_t row_bytes = static_cast<std::size_t>(partial_cols_) * sizeof(float);
  max_partials_ = static_cast<int>(kPartialBytes / row_bytes);
  TANDEM_ASSIGN(partials_, core::Arena::reserve(kPartialBytes, /*huge_pages=*/false));
  return {};
}

void AttentionWork::plan(const Shape& shape, std::span<const RowInfo> rows,
                         std::span<const RowRun> runs) {
  tasks_.clear();
  merges_.clear();
  const int heads_per_kv = shape.spec.heads / shape.spec.kv_heads;
  for (const RowRun& run : runs) {
    if (run.first_row >= shape.rows) continue;
    const int num_rows = std::min(run.num_rows, shape.rows - run.first_row);
    const int num_vectors = num_rows * heads_per_kv;
    for (int first = 0; first < num_vectors; first += kTaskVectors) {
      AttentionTask task;
      task.run = run;
      task.first_vector = first;
      task.num_vectors = std::min(kTaskVectors, num_vectors - first);
      const RowInfo& top = rows[static_cast<std::size_t>(run.first_row + first / heads_per_kv)];
      const int last = first + task.num_vectors - 1;
      const RowInfo& bottom = rows[static_cast<std::size_t>(run.first_row + last / heads_per_kv)];
      task.first_block = first_visible_key(top, shape.window) / kBlockTokens;
      task.end_block = core::ceil_div(bottom.visible_end, kBlockTokens);
      for (task.kv_head = 0; task.kv_head < shape.spec.kv_heads; ++task.kv_head) {
        tasks_.push_back(task);
      }
    }
  }
  if (is_reversed_) std::reverse(tasks_.begin(), tasks_.end());
  is_reversed_ = !is_reversed_;
  constexpr std::size_t kTasksPerMember = 3;
  const auto enough = kTasksPerMember * static_cast<std::size_t>(shape.members);
  if (shape.members > 1 && tasks_.size() < enough) split();
}

void AttentionWork::split() {
  int rows = 0;
  for (AttentionTask& task : tasks_) {
    task.partial = rows;
    rows += (task.end_block - task.first_block) * task.num_vectors;
    if (rows > max_partials_) {
      for (AttentionTask& t : tasks_) t.partial = -1;
      return;
    }
  }
  merges_.swap(tasks_);
  for (const AttentionTask& whole : merges_) {
    AttentionTask part = whole;
    for (int block = whole.first_block; block < whole.end_block; ++block) {
      part.first_block = block;
      part.end_block = block + 1;
      tasks_.push_back(part);
      part.partial += whole.num_vectors;
    }
  }
}

}  // namespace tandem::kernels::cpu
