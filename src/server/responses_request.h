#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "tandem/server/openai_types.h"

namespace tandem::server {

/// The body of POST /v1/responses, as the chat that it stands for.
struct ResponsesRequest {
  ChatRequest chat;
  std::string members;  ///< JSON members of the response object that repeat the request
};

/// Reads `input` (a text or items: messages, function_call, function_call_output, reasoning),
/// `instructions`, function tools and the sampling members. Nothing is stored between requests:
/// previous_response_id, conversation and background are refused, and `store` must not be true.
std::variant<ResponsesRequest, ApiError> parse_responses_request(
    std::string_view body, const kernels::SamplingParams& defaults);

}  // namespace tandem::server
