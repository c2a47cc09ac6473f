#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/grammar/regex.h"
#include "tandem/grammar/rule_set.h"

namespace tandem::grammar {

/// What a text must match, see read_regex(), or must not.
struct TextPattern {
  std::string regex;
  bool is_whole = false;  ///< from end to end; else somewhere within the text
  bool is_denied = false;
};

/// The texts that a schema allows: all those that everything here holds of.
struct TextSet {
  std::vector<TextPattern> patterns;
  std::vector<std::string> holes;  ///< none of these
  int min_length = 0;              ///< characters
  int max_length = kUnbounded;
};

/// Exactly the set's texts, each character spelled as `write` does, and then the mark, if there is
/// one: one byte that begins no character, or one token. All conditions are walked side by side;
/// lengths before a mark are counted where that can be, see RuleSet::add_counted().
/// kInvalidArgument: a pattern is malformed or not supported, or together they take too many
/// states.
core::Result<ExprId> write_texts(RuleSet& rules, const TextSet& set, const CharWriter& write,
                                 std::optional<ExprId> mark);

}  // namespace tandem::grammar
