#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tandem/server/choice_output.h"
#include "tandem/server/openai_types.h"
#include "tandem/server/server.h"

namespace tandem::server {

/// A request body turned into what the engine needs; the sampling seed is still open.
struct PreparedRequest {
  GenerationParams params;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<Echo> echoes;  ///< by prompt: what its answers begin with; empty: nothing
  std::shared_ptr<const grammar::Grammar> grammar;  ///< shared by the choices; null: any text
  bool parallel_tool_calls = true;
  std::string response_members;  ///< of /v1/responses, see ResponsesRequest
};

/// Parses, renders and tokenizes a chat body. Thread: prompt workers.
std::variant<PreparedRequest, ApiError> prepare_chat(std::string_view body,
                                                     const ServedModel& model,
                                                     std::string_view model_name);
/// The same for the body of /v1/responses.
std::variant<PreparedRequest, ApiError> prepare_responses(std::string_view body,
                                                          const ServedModel& model,
                                                          std::string_view model_name);
/// The same for a text completion. Token ids are taken as they are.
std::variant<PreparedRequest, ApiError> prepare_completion(std::string_view body,
                                                           const ServedModel& model,
                                                           std::string_view model_name);

/// Tokens of a text that is a whole prompt: special tokens are matched in it if `parses_special`,
/// and the beginning-of-sequence token is put before it unless it is there.
std::vector<TokenId> encode_prompt(std::string_view text, const tokenizer::Tokenizer& tokenizer,
                                   bool parses_special = true);
/// The text of tokens, special ones spelled out.
std::string decode(const std::vector<TokenId>& tokens, const tokenizer::Tokenizer& tokenizer);

/// The tokens around a thought; none where the vocabulary has no such.
std::optional<grammar::Source::Thought> thought_marks(const tokenizer::Tokenizer& tokenizer);

/// 404 where a request names another model than the one served.
std::optional<ApiError> check_model(std::string_view wanted, std::string_view model_name);
/// 400 where an id is not in the vocabulary.
std::optional<ApiError> check_tokens(const std::vector<TokenId>& tokens,
                                     const tokenizer::Tokenizer& tokenizer, std::string_view param);

}  // namespace tandem::server
