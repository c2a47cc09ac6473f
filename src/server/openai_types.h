#pragma once

#include <boost/json/array.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tandem/chat/message.h"
#include "tandem/core/units.h"
#include "tandem/server/api_error.h"
#include "tandem/server/request_params.h"

namespace tandem::server {

struct ChatRequest {
  GenerationParams params;
  chat::Conversation conversation;
  bool parallel_tool_calls = true;  ///< false: the answer ends with its first call
};

/// Text, which is the whole prompt, or token ids.
using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
  GenerationParams params;
  std::vector<Prompt> prompts;  ///< at least one
  bool echo = false;            ///< each text begins with its prompt
};

/// Read the body of POST /v1/chat/completions and /v1/completions. Strict: a member of a wrong type
/// or out of range is an error that names it. Members that OpenAI's API, vLLM or llama.cpp know and
/// this server cannot honour are refused unless they ask for nothing; others are ignored.
/// `defaults` fills in the sampling members that the body lacks. Thread: any; slow for large
/// bodies.
std::variant<ChatRequest, ApiError> parse_chat_request(std::string_view body,
                                                       const kernels::SamplingParams& defaults);
std::variant<CompletionRequest, ApiError> parse_completion_request(
    std::string_view body, const kernels::SamplingParams& defaults);

/// Reads the members of a body that make its prompt: messages, tools, tool_choice and the switches
/// of the template. What is wrong is in the reader's error.
void read_conversation(BodyReader& reader, chat::Conversation& conversation);

/// The same from chat messages and tools (null: none) that were made of another form of request.
void read_conversation(BodyReader& reader, const boost::json::array& messages,
                       const boost::json::array* tools, chat::Conversation& conversation);

/// Reads `tool_choice`, and what strict functions ask for, into the form of the answer: their
/// arguments are valid under their schemas; those of other functions are any object. Where the text
/// has a form, too, the answer is a text of that form or calls.
void read_form_of_calls(BodyReader& reader, ChatRequest& request);

/// Text or token ids of POST /v1/completions and /tokenize; nothing if it is neither.
std::optional<Prompt> read_prompt(const boost::json::value& value);

}  // namespace tandem::server
