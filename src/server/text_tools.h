#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "tandem/net/http_server.h"
#include "tandem/server/service.h"

namespace tandem::server {

/// An endpoint that turns text into tokens or back and generates nothing: the JSON of its answer.
/// Thread: any; slow for large bodies.
using TextTool = std::variant<std::string, ApiError> (*)(std::string_view body,
                                                         const ServedModel& model,
                                                         std::string_view model_name);

/// POST /tokenize: `prompt` (vLLM; with the beginning-of-sequence token unless add_special_tokens
/// is false), `content` (llama.cpp; without it unless add_special is true) or the members of a chat
/// -> {"count","max_model_len","tokens","token_strs"}, the last one null unless return_token_strs.
std::variant<std::string, ApiError> tokenize(std::string_view body, const ServedModel& model,
                                             std::string_view model_name);
/// POST /detokenize: `tokens` -> {"prompt","content"}, the same text under both peers' names, with
/// special tokens spelled out.
std::variant<std::string, ApiError> detokenize(std::string_view body, const ServedModel& model,
                                               std::string_view model_name);
/// POST /apply-template: the members of a chat -> {"prompt"}.
std::variant<std::string, ApiError> apply_template(std::string_view body, const ServedModel& model,
                                                   std::string_view model_name);

/// Answers `request` with `tool` on a prompt worker, or says why not. Thread: I/O.
void run_text_tool(const std::shared_ptr<Service>& service, TextTool tool, net::HttpRequest request,
                   std::unique_ptr<Reply> reply);

}  // namespace tandem::server
