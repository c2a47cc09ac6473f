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
  bool must_call = false;   ///< no other text; else any text may come before the calls
  bool may_repeat = false;  ///< several calls, one after the other
};

/// The grammar of an answer with calls: what the schemas say of the arguments holds of them, see
/// read_schema(). kInvalidArgument names the function whose schema cannot be kept.
core::Result<RuleSet> read_calls(const CallSource& source);

}  // namespace tandem::grammar
