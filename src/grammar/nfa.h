#pragma once

#include <cstdint>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/grammar/rule_set.h"

namespace tandem::grammar {

/// What holds of a rule set's rules whatever calls them.
struct RuleFacts {
  std::vector<bool> is_nullable;    ///< [rules] matches the empty text
  std::vector<bool> is_productive;  ///< [rules] matches some text
};
RuleFacts analyze(const RuleSet& rules);

/// The rules as nondeterministic automata over bytes (Thompson's construction), with edges that
/// call a rule or take a token. Characters become their UTF-8 bytes; a call of a nullable rule may
/// also be skipped, one of a rule that matches nothing is left out.
struct Nfa {
  struct Edge {
    enum class Kind : std::uint8_t { kBytes, kRule, kToken };
    Kind kind = Kind::kBytes;
    std::uint8_t first = 0, last = 0;  ///< kBytes
    std::int32_t label = 0;            ///< the rule or token
    std::int32_t target = 0;
  };
  struct State {
    std::vector<Edge> edges;
    std::vector<std::int32_t> skips;  ///< targets of edges that read nothing
    bool is_between_parts = false;    ///< of a rule that counts them
  };
  std::vector<State> states;
  std::vector<std::int32_t> starts, ends;  ///< [rules]

  /// kInvalidArgument if it takes more than a bounded number of states or nesting.
  static core::Result<Nfa> build(const RuleSet& rules, const RuleFacts& facts);
};

}  // namespace tandem::grammar
