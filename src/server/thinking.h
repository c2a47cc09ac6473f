#pragma once

#include <optional>

#include "tandem/server/body_reader.h"

namespace tandem::server {

/// How much a chat may think before it answers.
struct Thinking {
  bool is_on = false;
  std::optional<int> budget;  ///< most tokens of each thought; none: no bound
};

/// Reads a chat's `reasoning_effort`, `thinking_budget` (also `max_thinking_tokens` and vLLM's
/// `thinking_token_budget`) and `chat_template_kwargs.enable_thinking`; what is wrong is in the
/// reader's error. A level of effort stands for a budget: low 1,024, medium 8,192, high 24,576
/// tokens, xhigh no bound, none and minimal no thinking; so do a budget above 0 (-1: no bound) and
/// of 0. A budget goes before a level, the switch before both. Without any there is no thinking.
Thinking read_thinking(BodyReader& reader);

/// The same with the effort of /v1/responses, `reasoning.effort`.
Thinking read_thinking_of_response(BodyReader& reader);

}  // namespace tandem::server
