#pragma once

#include <span>

#include "tandem/kernels/cpu/product.h"

namespace tandem::kernels::cpu {

/// best = the larger of both, that with the lower index on ties.
void keep_larger(RowMax& best, const RowMax& other);
/// The id of the largest logit that any member has found for the row.
TokenId best_token(const Context& c, int row);

/// One phase of head products whose logits need not exist: every task computes a range of the
/// vocabulary for all rows into the member's scratch and keeps the best id of each row. Rows that
/// sample get their softcapped logits written out beside that.
class HeadPhase {
 public:
  /// Rows [0, rows) of `input`; CHECKs that the head fits it.
  HeadPhase(Context& c, const Head& head, const Operand& input, int rows);

  /// Row r writes its softcapped logits to full_logits[r] [V] unless that is null. [rows].
  void keep_logits(std::span<float* const> full_logits) { full_logits_ = full_logits; }

  InputForms forms() const;
  void prepare(int r) const;
  int num_tasks() const { return num_tasks_; }
  /// Clears the member's candidates; before the phase, by every member.
  void start(const Member& m) const;
  void run(const Member& m, int task) const;
  void run_claimed(Member& m) const {
    for (int i = m.claim(); i < num_tasks_; i = m.claim()) run(m, i);
  }
  /// The row's largest logit's id, the lowest id on ties; after the phase.
  TokenId best(int row) const { return best_token(*context_, row); }

 private:
  void finish_row(MemberScratch& scratch, int row, int begin, int count, float* values) const;

  Context* context_;
  const PackedMatrix* table_;
  float softcap_;
  Operand input_;
  int rows_;
  int panels_per_task_;
  int num_tasks_;
  std::span<float* const> full_logits_;
};

}  // namespace tandem::kernels::cpu
