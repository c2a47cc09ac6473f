#include "tandem/server/prompt_builder.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace tandem::server {
namespace {

/// What does not depend on how the prompt was made: the model's name and the prompt's tokens.
std::optional<ApiError> check(const PreparedRequest& request, const ServedModel& model,
                              std::string_view model_name, std::string_view prompt_param) {
  const std::string& name = request.params.model;
  if (!name.empty() && name != model_name) return model_not_found(name);
  const std::size_t num_tokens = request.prompt.size();
  const auto max_context = static_cast<std::size_t>(model.max_context);
  if (num_tokens >= max_context) {
    return invalid_request(
        fmt::format("This model's context holds {} tokens, of which one must be left for the "
                    "answer, but the prompt has {}; shorten the prompt.",
                    max_context, num_tokens),
        std::string(prompt_param), "context_length_exceeded");
  }
  const int vocab_size = model.tokenizer->vocab_size();
  for (const TokenId id : request.prompt) {
    if (id < 0 || id >= vocab_size) {
      return invalid_request(fmt::format("'{}' holds the token id {}, but the vocabulary has {}.",
                                         prompt_param, id, vocab_size),
                             std::string(prompt_param));
    }
  }
  return std::nullopt;
}

std::variant<PreparedRequest, ApiError> checked(PreparedRequest request, const ServedModel& model,
                                                std::string_view model_name,
                                                std::string_view prompt_param) {
  if (auto error = check(request, model, model_name, prompt_param)) return *std::move(error);
  return request;
}

}  // namespace

std::variant<PreparedRequest, ApiError> prepare_chat(std::string_view body,
                                                     const ServedModel& model,
                                                     std::string_view model_name) {
  auto parsed = parse_chat_request(body, model.default_sampling);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  auto& request = std::get<ChatRequest>(parsed);
  const auto pieces = chat::render(request.conversation, model.template_variant);
  if (!pieces.ok()) return invalid_request(pieces.status().message(), "messages");
  return checked({std::move(request.params), model.tokenizer->encode(*pieces)}, model, model_name,
                 "messages");
}

std::variant<PreparedRequest, ApiError> prepare_completion(std::string_view body,
                                                           const ServedModel& model,
                                                           std::string_view model_name) {
  auto parsed = parse_completion_request(body, model.default_sampling);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  auto& request = std::get<CompletionRequest>(parsed);
  PreparedRequest prepared;
  prepared.params = std::move(request.params);
  if (auto* ids = std::get_if<std::vector<TokenId>>(&request.prompt)) {
    prepared.prompt = std::move(*ids);
  } else {
    const auto& tokenizer = *model.tokenizer;
    prepared.prompt = tokenizer.encode(std::get<std::string>(request.prompt), true);
    const TokenId bos = tokenizer.bos();
    const bool has_bos = !prepared.prompt.empty() && prepared.prompt.front() == bos;
    if (bos >= 0 && !has_bos) prepared.prompt.insert(prepared.prompt.begin(), bos);
  }
  return checked(std::move(prepared), model, model_name, "prompt");
}

}  // namespace tandem::server
