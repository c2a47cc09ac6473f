#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tandem/chat/message.h"
#include "tandem/core/units.h"
#include "tandem/kernels/step.h"
#include "tandem/server/api_error.h"

namespace tandem::server {

/// The members that chat and text completions share.
struct GenerationParams {
  std::string model;  ///< empty: the one served
  kernels::SamplingParams sampling;
  std::optional<std::uint64_t> seed;  ///< none: a random one
  int max_tokens = 0;                 ///< 0: as many as the context holds
  std::vector<std::string> stop;
  bool ignore_eos = false;
  std::optional<int> draft_length;
  bool stream = false;
  bool include_usage = false;  ///< stream_options.include_usage
};

struct ChatRequest {
  GenerationParams params;
  chat::Conversation conversation;
};

struct CompletionRequest {
  GenerationParams params;
  std::variant<std::string, std::vector<TokenId>> prompt;
};

/// Read the body of POST /v1/chat/completions and /v1/completions. Strict: a member of a wrong type
/// or out of range is an error that names it. Members that the API does not know are ignored; those
/// that it knows and this server cannot honour are refused unless they ask for nothing.
/// `defaults` fills in the sampling members that the body lacks. Thread: any; slow for large
/// bodies.
std::variant<ChatRequest, ApiError> parse_chat_request(std::string_view body,
                                                       const kernels::SamplingParams& defaults);
std::variant<CompletionRequest, ApiError> parse_completion_request(
    std::string_view body, const kernels::SamplingParams& defaults);

}  // namespace tandem::server
