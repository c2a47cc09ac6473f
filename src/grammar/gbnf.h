#pragma once

#include <string_view>

#include "tandem/core/status.h"
#include "tandem/grammar/rule_set.h"

namespace tandem::grammar {

/// Reads a grammar in GBNF, llama.cpp's notation: rules `name ::= ...` of "literals", [classes],
/// `.`, (groups), names, `|`, and the repetitions `* + ? {m} {m,} {m,n}`; `#` begins a comment. The
/// text must match the rule `root`. kInvalidArgument says in which line what is wrong.
core::Result<RuleSet> read_gbnf(std::string_view text);

}  // namespace tandem::grammar
