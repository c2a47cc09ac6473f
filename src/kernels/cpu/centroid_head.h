#pragma once

#include <span>

#include "tandem/kernels/cpu/head.h"
#include "tandem/kernels/cpu/product.h"

namespace tandem::kernels::cpu {

/// The drafter's head over the tokens of each row's best clusters: first the products with the
/// centroids, then those with the rows of the chosen clusters. spec/mtp.md section 4.
class CentroidPhase {
 public:
  /// Rows [0, rows) of `input`; CHECKs that the head fits it. Scores lie in the workspace's `a`.
  CentroidPhase(Context& c, const DraftWeights& w, const Operand& input, int rows);

  InputForms forms() const { return merged(scores_.forms(), table_->input_forms()); }
  /// Products with the centroids.
  const ProductPhase& scores() const { return scores_; }
  /// Chooses the clusters of a row; after the scores, before the tasks.
  void choose(int row) const;

  int num_tasks() const { return rows_ * tasks_per_row_; }
  /// Clears the member's candidates; before the tasks, by every member.
  void start(const Member& m) const;
  void run(const Member& m, int task) const;
  TokenId best(int row) const { return best_token(*context_, row); }

 private:
  void run_cluster(MemberScratch& scratch, int row, int cluster) const;
  void keep_best(RowMax& best, int first, int count, const float* logits) const;
  bool is_suppressed(TokenId token) const;

  Context* context_;
  const PackedMatrix* table_;
  std::span<const TokenId> tokens_;
  Operand input_;
  int rows_;
  int num_clusters_;
  int cluster_size_;
  int top_;
  int tasks_per_row_;
  ProductPhase scores_;
};

}  // namespace tandem::kernels::cpu
