#pragma once

#include <array>

#include "tandem/core/units.h"

namespace tandem::engine {

/// How well drafts of one sequence do against what the global estimate expected of them; both
/// sums fade with time. Plain data.
struct AcceptanceHistory {
  double accepted = 0;
  double expected = 0;
};

/// Chance that a draft is accepted, by position and relative to the sequence. Position i is tried
/// only if all before it were accepted, so that the chances are conditional: the expected tokens of
/// a span with k drafts are 1 + q_1 + q_1 q_2 + ... + q_1 .. q_k. Thread: engine.
class AcceptanceModel {
 public:
  /// A span with `drafted` drafts was verified and `accepted` of them held.
  void observe(AcceptanceHistory& history, int drafted, int accepted);

  using Chances = std::array<double, kMaxDraft>;
  using Lengths = std::array<double, kMaxDraft + 1>;

  /// Global chance that draft i is accepted once those before it were.
  Chances conditional() const;
  /// Expected tokens of a span of this sequence by its number of drafts k, 1 <= result <= k + 1.
  static Lengths expected_tokens(const AcceptanceHistory& history, const Chances& conditional);

 private:
  struct Counts {
    double accepted = 0;
    double tried = 0;
  };
  std::array<Counts, kMaxDraft> counts_ = {};  // fading
};

}  // namespace tandem::engine
