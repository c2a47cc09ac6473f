#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "tandem/chat/message.h"
#include "tandem/chat/prompt_builder.h"
#include "tandem/core/status.h"

namespace tandem::chat {

// How Gemma 4 prompts write tools, calls and results (spec/tokenizer-chat.md section 4).

/// `declaration:NAME{description:...,parameters:{...}}` of a tool's function, oddities of the
/// template included: fields it does not know and properties named like schema keywords are left
/// out, and a missing `type` leaves a brace open. kInvalidArgument, the message beginning with the
/// member, where the template would fail (properties that are no object, required that is no list).
core::Status write_declaration(const boost::json::object& function, PromptBuilder& out);

/// `<|tool_call>call:NAME{...}<tool_call|>`
void write_call(const ToolCall& call, PromptBuilder& out);

/// `<|tool_response>response:NAME{...}<tool_response|>`; what is no object becomes `value:...`.
void write_response(const ToolResponse& response, PromptBuilder& out);

}  // namespace tandem::chat
