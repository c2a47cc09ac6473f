#pragma once

#include <string>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/grammar/rule_set.h"

namespace tandem::grammar {

/// Functions that a model may call, and how it spells a call:
/// open `call:NAME{key:value,...}` close, with strings between quote tokens.
struct CallSource {
  struct Function {
    std::string name;
    std::string parameters;  ///< JSON schema of the arguments; empty: any object
  };
  std::vector<Function> functions;
  TokenId open = 0, close = 0, quote = 0;
  bool must_call = false;   ///< nothing but calls
  bool may_repeat = false;  ///< several calls, one after the other
};

/// Lets calls stand beside the text whose root `rules` have: in its place, or with `follow_text`
/// after it, where the text may be any. What the schemas say of the arguments holds of them, see
/// read_schema(). kInvalidArgument names the function whose schema cannot be kept.
core::Status add_calls(RuleSet& rules, const CallSource& source, bool follow_text);

}  // namespace tandem::grammar
