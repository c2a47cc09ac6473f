#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tandem/server/openai_types.h"
#include "tandem/server/server.h"

namespace tandem::server {

/// A request body turned into what the engine needs; the sampling seed is still open.
struct PreparedRequest {
  GenerationParams params;
  std::vector<TokenId> prompt;
};

/// Parses, renders and tokenizes a chat body. Thread: prompt workers.
std::variant<PreparedRequest, ApiError> prepare_chat(std::string_view body,
                                                     const ServedModel& model,
                                                     std::string_view model_name);
/// The same for a text completion. The text is the whole prompt: special tokens are matched in it,
/// and the beginning-of-sequence token is put before it unless it is there. Token ids are taken as
/// they are.
std::variant<PreparedRequest, ApiError> prepare_completion(std::string_view body,
                                                           const ServedModel& model,
                                                           std::string_view model_name);

}  // namespace tandem::server
