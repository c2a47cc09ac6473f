#pragma once

#include <optional>
#include <vector>

#include "tandem/grammar/decimal.h"
#include "tandem/grammar/rule_set.h"

namespace tandem::grammar {

/// The numbers that a schema allows: all those that everything here holds of.
struct NumberSet {
  std::optional<Decimal> min, max;
  bool is_min_excluded = false;
  bool is_max_excluded = false;
  std::vector<Decimal> holes;          ///< none of these
  std::vector<DecimalStep> steps;      ///< multiples of each
  std::vector<DecimalStep> non_steps;  ///< multiples of none

  bool says_nothing() const {
    return !min && !max && holes.empty() && steps.empty() && non_steps.empty();
  }
  void raise_min(const Decimal& bound, bool is_excluded);
  void lower_max(const Decimal& bound, bool is_excluded);
  bool contains(const Decimal& number) const;
  /// Whether the bounds alone say that no number is in both.
  bool is_apart_from(const NumberSet& other) const;
};

/// Exactly the set's numbers among those written without an exponent: integers of at most 18
/// digits and, where fractions are allowed, numbers of at most 15 digits with a point (a 0 before
/// it not counted), so that any reader's doubles are in the set, too. 0 has no sign. Nothing if it
/// takes too many states: steps of very many remainders, or very many holes.
std::optional<ExprId> write_numbers(RuleSet& rules, const NumberSet& set, bool may_have_fraction);

}  // namespace tandem::grammar
