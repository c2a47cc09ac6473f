#include "tandem/engine/draft_policy.h"

#include <algorithm>

namespace tandem::engine {
namespace {

constexpr double kMargin = 1.04;  // of a better length; step times are known to a few percent
constexpr int kTrialSteps = 3;
// What trials may lose: this share of the time, saved up to kMaxCredit.
constexpr double kCreditPerStep = 0.008;
constexpr double kLeastLoss = 0.2;  // share of a trial's time: what is expected may be wrong
constexpr std::uint64_t kRoutineInterval = 384;
constexpr double kSurprise = 1.05;     // a trial that went so much better is repeated at once
constexpr double kOptimism = 0.3;      // benefit of the doubt of a length without measurements
constexpr double kEnoughEvidence = 2;  // measurements

}  // namespace

DraftPolicy::Rates DraftPolicy::rates(std::span<const AcceptanceHistory* const> sequences) const {
  const AcceptanceModel::Chances conditional = acceptance_.conditional();
  Rates rates = {};
  for (const AcceptanceHistory* history : sequences) {
    const auto tokens = AcceptanceModel::expected_tokens(*history, conditional);
    for (std::size_t k = 0; k < rates.size(); ++k) rates[k] += tokens[k];
  }
  const int num_sequences = static_cast<int>(sequences.size());
  for (int k = 0; k <= max_draft_; ++k) {
    rates[static_cast<std::size_t>(k)] /= cost_.predict(StepWork::steady(num_sequences, k));
  }
  return rates;
}

int DraftPolicy::choose(std::span<const AcceptanceHistory* const> sequences) {
  if (max_draft_ == 0 || sequences.empty()) return 0;
  const int num_sequences = static_cast<int>(sequences.size());
  ++steps_;
  credit_ = std::min(kMaxCredit, credit_ + kCreditPerStep);
  if (cost_.predict(StepWork::steady(num_sequences, 0)) <= 0) return current_;

  const Rates r = rates(sequences);
  const auto rate = [&](int k) {
    return r[static_cast<std::size_t>(k)];
  };
  const auto end = r.begin() + max_draft_ + 1;
  const int best = static_cast<int>(std::max_element(r.begin(), end) - r.begin());
  if (rate(best) > kMargin * rate(current_)) current_ = best;

  if (trial_left_ == 0) {
    maybe_start_trial(r, num_sequences);
  } else if (--trial_left_ == 0 && rate(trial_) > kSurprise * rate_before_) {
    routine_at_ = steps_;
  }
  if (trial_left_ == 0) return current_;
  ++trial_steps_;
  return trial_;
}

void DraftPolicy::maybe_start_trial(const Rates& rates, int num_sequences) {
  const bool is_routine = steps_ >= routine_at_;
  const int k = next_candidate(rates, num_sequences, is_routine);
  if (k < 0) return;
  const double loss = expected_loss(rates, num_sequences, k);
  if (loss > credit_) return;
  trial_ = k;
  trial_left_ = kTrialSteps;
  rate_before_ = rates[static_cast<std::size_t>(k)];
  credit_ -= loss;
  routine_at_ = steps_ + kRoutineInterval;
}

double DraftPolicy::expected_loss(const Rates& rates, int num_sequences, int k) const {
  const auto time = [&](int drafts) {
    return cost_.predict(StepWork::steady(num_sequences, drafts));
  };
  const double slower =
      1.0 - rates[static_cast<std::size_t>(k)] / rates[static_cast<std::size_t>(current_)];
  return kTrialSteps * time(k) / time(current_) * std::max(kLeastLoss, slower);
}

// The most promising other length, the little known ones with the benefit of the doubt: a trial
// then costs little. A routine trial takes the best there is, others need a hope of gain.
int DraftPolicy::next_candidate(const Rates& rates, int num_sequences, bool is_routine) const {
  int best = -1;
  double best_rate = is_routine ? 0.0 : rates[static_cast<std::size_t>(current_)];
  for (int k = 0; k <= max_draft_; ++k) {
    if (k == current_) continue;
    const double evidence =
        std::min(1.0, cost_.evidence(StepWork::steady(num_sequences, k)) / kEnoughEvidence);
    if (!is_routine && evidence >= 0.5) continue;
    const double hoped = rates[static_cast<std::size_t>(k)] * (1.0 + kOptimism * (1.0 - evidence));
    if (hoped > best_rate) {
      best = k;
      best_rate = hoped;
    }
  }
  return best;
}

}  // namespace tandem::engine
