#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/grammar/rule_set.h"

namespace tandem::grammar {

/// How a character of a set is spelled in the text: plainly, or escaped as in a JSON string.
using CharWriter = std::function<ExprId(RuleSet& rules, const std::vector<CodePoints>& set)>;

/// Reads a regular expression as ECMA-262 has them, without what a finite automaton cannot do or
/// what is rare: no back-references, look-around, word borders, Unicode properties or flags; ^ and
/// $ only at the ends of the whole or of its alternatives. \d \w are ASCII, and \s is only for the
/// ASCII spaces.
/// must_match_all: the text is a match from end to end; else it contains one.
/// kInvalidArgument says what is wrong or not supported, and where.
core::Result<ExprId> read_regex(RuleSet& rules, std::string_view pattern, bool must_match_all,
                                const CharWriter& write);

/// Characters as they are.
ExprId write_plain(RuleSet& rules, const std::vector<CodePoints>& set);

}  // namespace tandem::grammar
