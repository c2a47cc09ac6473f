#include "tandem/kernels/cpu/centroid_head.h"

#include <algorithm>
#include <limits>

#include "tandem/core/check.h"
#include "tandem/core/checked_math.h"
#include "tandem/kernels/cpu/weights.h"

namespace tandem::kernels::cpu {
namespace {

/// Clusters of one task: at 128 tokens of width 256 about 5 us of work.
constexpr int kClustersPerTask = 8;

}  // namespace

CentroidPhase::CentroidPhase(Context& c, const DraftWeights& w, const Operand& input, int rows)
    : context_(&c),
      table_(&matrix(w.head.table)),
      tokens_(token_ids(w.centroids.tokens)),
      input_(input),
      rows_(rows),
      num_clusters_(static_cast<int>(w.centroids.centroids->rows())),
      cluster_size_(c.geometry.vocab / num_clusters_),
      top_(w.centroids.top_clusters),
      tasks_per_row_(core::ceil_div(top_, kClustersPerTask)),
      scores_(c, input) {
  TANDEM_CHECK(table_->rows() == c.geometry.vocab && table_->cols() == input.cols &&
                   static_cast<int>(tokens_.size()) == c.geometry.vocab &&
                   num_clusters_ * cluster_size_ == c.geometry.vocab && top_ <= num_clusters_,
               "the clusters must match the rows and divide the vocabulary");
  scores_.add(matrix(w.centroids.centroids), c.workspace.a.as<float>(), num_clusters_, rows);
  // Grows in the first steps only.
  c.clusters.resize(static_cast<std::size_t>(rows * top_));
}

void CentroidPhase::choose(int row) const {
  float* scores = row_of(context_->workspace.a, row, num_clusters_);
  for (int i = 0; i < top_; ++i) {
    const int cluster = context_->kernels->argmax(scores, num_clusters_).index;
    context_->clusters[static_cast<std::size_t>(row * top_ + i)] = cluster;
    scores[cluster] = -std::numeric_limits<float>::infinity();
  }
}

void CentroidPhase::start(const Member& m) const {
  std::fill_n(context_->members[static_cast<std::size_t>(m.index())].best.begin(), rows_, RowMax{});
}

void CentroidPhase::run(const Member& m, int task) const {
  const int row = task / tasks_per_row_;
  const int begin = task % tasks_per_row_ * kClustersPerTask;
  const int end = std::min(begin + kClustersPerTask, top_);
  for (int i = begin; i < end; ++i) {
    run_cluster(context_->members[static_cast<std::size_t>(m.index())], row,
                context_->clusters[static_cast<std::size_t>(row * top_ + i)]);
  }
}

/// Logits of the panels that hold the cluster, a scratch full at a time.
void CentroidPhase::run_cluster(MemberScratch& scratch, int row, int cluster) const {
  constexpr int kPanelsAtOnce = kScratchFloats / kPanelRows;
  float* logits = scratch.floats.as<float>();
  const int first = cluster * cluster_size_;
  const int end = first + cluster_size_;
  const int last_panel = core::ceil_div(end, kPanelRows);
  for (int panel = first / kPanelRows; panel < last_panel; panel += kPanelsAtOnce) {
    const int panel_end = std::min(panel + kPanelsAtOnce, last_panel);
    const int base = panel * kPanelRows;
    // The product addresses outputs by their column in the whole row.
    context_->matmul->matmul(*table_, input_.rows(row), 1, panel, panel_end, logits - base,
                             table_->panels() * kPanelRows);
    const int from = std::max(first, base);
    const int to = std::min(end, panel_end * kPanelRows);
    keep_best(scratch.best[static_cast<std::size_t>(row)], from, to - from, logits + from - base);
  }
}

/// logits: of the table's rows [first, first + count).
void CentroidPhase::keep_best(RowMax& best, int first, int count, const float* logits) const {
  if (best.index >= 0 && context_->kernels->argmax(logits, count).value < best.value) return;
  for (int i = 0; i < count; ++i) {
    const TokenId token = tokens_[static_cast<std::size_t>(first + i)];
    if (best.index >= 0 && logits[i] < best.value) continue;
    if (!is_suppressed(token)) keep_larger(best, {logits[i], token});
  }
}

bool CentroidPhase::is_suppressed(TokenId token) const {
  const std::vector<TokenId>& never = context_->geometry.suppressed;
  return std::find(never.begin(), never.end(), token) != never.end();
}

}  // namespace tandem::kernels::cpu
