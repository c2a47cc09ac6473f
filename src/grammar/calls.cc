#include "tandem/grammar/calls.h"

#include <fmt/format.h>

#include "tandem/grammar/json_parts.h"
#include "tandem/grammar/schema.h"

namespace tandem::grammar {

core::Status add_calls(RuleSet& rules, const CallSource& source, bool follow_text) {
  JsonParts parts(rules, source.quote);
  std::vector<ExprId> ways;
  for (const CallSource::Function& function : source.functions) {
    ExprId arguments = parts.object();
    if (!function.parameters.empty()) {
      const auto schema = add_schema(rules, parts, function.parameters, true);
      if (!schema.ok()) {
        return schema.status().with_context(fmt::format("function \"{}\"", function.name));
      }
      arguments = rules.rule(*schema);
    }
    ways.push_back(rules.sequence({rules.literal("call:" + function.name), arguments}));
  }
  const ExprId call =
      rules.sequence({rules.token(source.open), rules.choice(ways), rules.token(source.close)});
  const ExprId calls = rules.repeat(call, 1, source.may_repeat ? kUnbounded : 1);
  ExprId answer = calls;
  if (!source.must_call && follow_text) {
    // Not a rule of its own: a mask would have to look for its end at every byte.
    answer = rules.sequence({rules.any_text(), rules.optional(calls)});
  } else if (!source.must_call) {
    answer = rules.choice({calls, rules.rule(rules.root())});
  }
  rules.set_root(rules.add_rule("answer", answer));
  return {};
}

}  // namespace tandem::grammar
