#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "tandem/core/units.h"
#include "tandem/engine/acceptance.h"
#include "tandem/engine/step_cost.h"

namespace tandem::engine {

/// Chooses the draft length of a step: the k in 0..max_draft with the most expected tokens per
/// second, from measured step times and acceptance. A better k must be better by a margin, and
/// other lengths are tried now and then for a few steps, so that a change is noticed. Outputs never
/// depend on the choice. It has no clock: whoever runs the steps says how long they took.
/// Thread: engine.
class DraftPolicy {
 public:
  explicit DraftPolicy(int max_draft) : max_draft_(max_draft) {}

  /// Drafts per sequence to make in this step for the next one. sequences: those that will decode.
  int choose(std::span<const AcceptanceHistory* const> sequences);

  /// A step that only decoded took `seconds` > 0.
  void observe_step(const StepWork& work, double seconds) { cost_.observe(work, seconds); }
  void observe_acceptance(AcceptanceHistory& history, int drafted, int accepted) {
    acceptance_.observe(history, drafted, accepted);
  }

  /// The length in use outside trials.
  int current() const { return current_; }
  std::uint64_t steps() const { return steps_; }
  /// Steps that drafted another length than the current one, to measure it.
  std::uint64_t trial_steps() const { return trial_steps_; }

 private:
  using Rates = std::array<double, kMaxDraft + 1>;  // expected tokens per second by k

  Rates rates(std::span<const AcceptanceHistory* const> sequences) const;
  void maybe_start_trial(const Rates& rates, int num_sequences);
  int next_candidate(const Rates& rates, int num_sequences, bool is_routine) const;

  /// Of a trial of k: the time in which its tokens would not have taken as long, in steps of the
  /// current length.
  double expected_loss(const Rates& rates, int num_sequences, int k) const;

  static constexpr double kMaxCredit = 12;

  int max_draft_;
  int current_ = 0;
  AcceptanceModel acceptance_;
  StepCost cost_;

  int trial_ = 0;                 // the length being tried
  int trial_left_ = 0;            // steps of the running trial
  double rate_before_ = 0;        // of trial_, as expected before the trial
  double credit_ = kMaxCredit;    // steps of the current length that trials may still lose
  std::uint64_t routine_at_ = 0;  // step of the next trial without a special reason
  std::uint64_t steps_ = 0;
  std::uint64_t trial_steps_ = 0;
};

}  // namespace tandem::engine
