#include "tandem/engine/acceptance.h"

#include <algorithm>
#include <cstddef>

namespace tandem::engine {
namespace {

constexpr double kPriorChance = 0.7;   // of a first draft, before anything was seen
constexpr double kPriorWeight = 4.0;   // tries that the prior of a position is worth
constexpr double kGlobalMemory = 128;  // tries after which a global count has faded to 1/e
constexpr double kHistoryWeight = 8;   // tries of its own that a sequence needs to be believed
constexpr double kHistoryMemory = 64;

}  // namespace

AcceptanceModel::Chances AcceptanceModel::conditional() const {
  Chances chances;
  double chance = kPriorChance;
  for (std::size_t i = 0; i < chances.size(); ++i) {
    // A position that was rarely tried is taken to be like the one before it.
    const Counts& c = counts_[i];
    chance = (c.accepted + kPriorWeight * chance) / (c.tried + kPriorWeight);
    chances[i] = chance;
  }
  return chances;
}

void AcceptanceModel::observe(AcceptanceHistory& history, int drafted, int accepted) {
  const Chances expected = conditional();
  const auto tried = static_cast<std::size_t>(std::min(drafted, accepted + 1));
  for (std::size_t i = 0; i < tried; ++i) {
    const double hit = i < static_cast<std::size_t>(accepted) ? 1.0 : 0.0;
    history.accepted += hit - history.accepted / kHistoryMemory;
    history.expected += expected[i] - history.expected / kHistoryMemory;
    counts_[i].accepted += hit - counts_[i].accepted / kGlobalMemory;
    counts_[i].tried += 1.0 - counts_[i].tried / kGlobalMemory;
  }
}

AcceptanceModel::Lengths AcceptanceModel::expected_tokens(const AcceptanceHistory& history,
                                                          const Chances& conditional) {
  const double ratio = (history.accepted + kHistoryWeight) / (history.expected + kHistoryWeight);
  Lengths tokens = {1.0};
  double reach = 1.0;
  for (std::size_t i = 0; i < conditional.size(); ++i) {
    reach *= std::min(1.0, conditional[i] * ratio);
    tokens[i + 1] = tokens[i] + reach;
  }
  return tokens;
}

}  // namespace tandem::engine
