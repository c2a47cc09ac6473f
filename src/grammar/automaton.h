#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <span>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/grammar/rule_set.h"

namespace tandem::grammar {

/// Bytes that no state tells apart are one class.
using ClassSet = std::bitset<256>;

/// A grammar as a pushdown automaton over bytes: each rule is a deterministic automaton whose
/// states may also call a rule or take a token. Every state can still reach its rule's end, so that
/// what has begun can be completed; no rule calls itself before it has read something. Immutable.
class Automaton {
 public:
  struct Call {
    RuleId rule = 0;
    std::int32_t target = 0;  ///< state after the rule's text

    bool operator==(const Call&) const = default;
  };
  struct TokenEdge {
    TokenId token = 0;
    std::int32_t target = 0;

    bool operator==(const TokenEdge&) const = default;
  };

  /// Of a rule that counts its parts, see RuleSet::add_counted().
  struct Counter {
    std::int32_t min = 0;
    std::int32_t max = 0;

    bool operator==(const Counter&) const = default;
  };

  /// Fails with kInvalidArgument: no text matches, a rule is left-recursive, or the automaton would
  /// be too large (bounded states, table and work).
  static core::Result<Automaton> compile(const RuleSet& rules);

  int num_states() const { return static_cast<int>(states_.size()); }
  std::size_t num_classes() const { return num_classes_; }
  std::int32_t root_start() const { return start(root_); }
  std::int32_t start(RuleId rule) const { return starts_[static_cast<std::size_t>(rule)]; }
  std::uint8_t class_of(std::uint8_t byte) const { return classes_[byte]; }

  /// The state after a byte of this class within the rule, or -1.
  std::int32_t next(std::int32_t state, std::uint8_t byte_class) const {
    return table_[static_cast<std::size_t>(state) * num_classes_ + byte_class];
  }
  std::span<const Call> calls(std::int32_t state) const {
    return std::span(calls_).subspan(at(state).first_call, at(state).num_calls);
  }
  std::span<const TokenEdge> tokens(std::int32_t state) const {
    return std::span(tokens_).subspan(at(state).first_token, at(state).num_tokens);
  }
  bool has_calls(std::int32_t state) const { return (flags_of(state) & kCalls) != 0; }
  /// Whether the rule may end here.
  bool accepts(std::int32_t state) const { return (flags_of(state) & kAccepts) != 0; }
  /// Whether it must: nothing follows within the rule.
  bool is_final(std::int32_t state) const { return (flags_of(state) & kFinal) != 0; }
  /// Whether one call is all that may come: to be here is to be at that rule's start.
  bool only_calls(std::int32_t state) const { return (flags_of(state) & kOnlyCalls) != 0; }
  /// Whether the state is one of a rule that counts, before its mark.
  bool counts(std::int32_t state) const { return (flags_of(state) & kCounts) != 0; }
  const Counter& counter(std::int32_t state) const {
    return counters_[static_cast<std::size_t>(at(state).counter)];
  }
  /// The parts counted at `next`, a state after `state` where they are `count`; -1 if no end within
  /// the bounds can follow: too many are there or must come, or the mark comes too early. 0 where
  /// nothing is counted.
  std::int32_t count_after(std::int32_t state, std::int32_t next, std::int32_t count) const {
    if (!counts(state)) return 0;
    if (accepts(next)) return count >= counter(state).min ? 0 : -1;
    if ((flags_of(next) & kBetweenParts) != 0) ++count;
    return count <= counter(state).max - at(next).num_missing ? count : -1;
  }
  /// Parts that must still come before the mark, and the most that must in any state.
  std::int32_t num_missing(std::int32_t state) const { return at(state).num_missing; }
  std::int32_t most_missing() const { return most_missing_; }
  /// States that a text can lead to, nearest first.
  std::vector<std::int32_t> reachable() const;
  /// For each state the first one that nothing of at most max_bytes bytes tells from it: the states
  /// of a long repetition are alike until its end is near.
  std::vector<std::int32_t> alike(int max_bytes) const;
  /// Classes of the bytes that may come next, in the rule or in a rule that it calls.
  const ClassSet& first(std::int32_t state) const {
    return firsts_[static_cast<std::size_t>(state)];
  }

 private:
  friend class AutomatonBuilder;

  struct State {
    std::uint32_t first_call = 0, num_calls = 0;
    std::uint32_t first_token = 0, num_tokens = 0;
    std::int32_t counter = -1;
    std::int32_t num_missing = 0;  // parts that must still come
  };
  enum Flag : std::uint8_t {
    kCalls = 1,
    kAccepts = 2,
    kFinal = 4,
    kOnlyCalls = 8,
    kCounts = 16,
    kBetweenParts = 32
  };
  std::uint8_t flags_of(std::int32_t state) const {
    return flags_[static_cast<std::size_t>(state)];
  }
  std::uint64_t hash_of(std::int32_t state, std::span<const std::int32_t> group_of) const;
  bool are_alike(std::int32_t a, std::int32_t b, std::span<const std::int32_t> group_of) const;
  const State& at(std::int32_t state) const { return states_[static_cast<std::size_t>(state)]; }

  RuleId root_ = 0;
  std::size_t num_classes_ = 0;
  std::array<std::uint8_t, 256> classes_ = {};
  std::vector<std::int32_t> starts_;  // by rule
  std::vector<State> states_;
  std::vector<std::uint8_t> flags_;  // by state
  std::vector<std::int32_t> table_;  // [states, classes]
  std::vector<Call> calls_;
  std::vector<TokenEdge> tokens_;
  std::vector<Counter> counters_;
  std::int32_t most_missing_ = 0;
  std::vector<ClassSet> firsts_;  // by state
};

}  // namespace tandem::grammar
