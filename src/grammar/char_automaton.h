#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/grammar/rule_set.h"

namespace tandem::grammar {

/// A regular expression as an automaton over characters, made deterministic state by state as it is
/// walked. Total: what cannot match any more is a state, too. Thread: one.
class CharAutomaton {
 public:
  CharAutomaton(CharAutomaton&&) = default;
  CharAutomaton& operator=(CharAutomaton&&) = delete;
  /// `pattern` as read_regex() has it. kInvalidArgument: see there, or it takes too many states.
  static core::Result<CharAutomaton> create(std::string_view pattern, bool must_match_all);

  /// Where characters begin that are told from those before them.
  const std::vector<char32_t>& borders() const { return borders_; }

  static constexpr int kStart = 0;
  /// The state after a character.
  int next(int state, char32_t c);
  bool accepts(int state) const { return accepts_[static_cast<std::size_t>(state)]; }
  /// Whether no text leads from here to a match.
  bool is_dead(int state) const { return sets_[static_cast<std::size_t>(state)]->empty(); }
  /// Whether it matches the text (UTF-8).
  bool matches(std::string_view text);
  /// States and their members so far: a measure of time and memory.
  std::size_t work() const { return work_; }

 private:
  CharAutomaton() = default;

  using StateSet = std::vector<int>;  // sorted
  struct Edge {
    CodePoints range;
    int target = 0;
  };
  struct Node {
    std::vector<Edge> edges;
    std::vector<int> skips;
  };

  bool add(const RuleSet& rules, ExprId id, int from, int to);
  bool add_repeat(const RuleSet& rules, const RuleSet::Expr& e, int from, int to);
  int new_node();
  int state_of(StateSet set);

  std::vector<Node> nodes_;  // 0: the start, 1: the end
  std::vector<char32_t> borders_;
  std::map<StateSet, int> known_;
  std::vector<const StateSet*> sets_;  // by state
  std::vector<bool> accepts_;
  std::size_t work_ = 0;
};

}  // namespace tandem::grammar
