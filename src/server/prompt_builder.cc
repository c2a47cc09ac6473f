#include "tandem/server/prompt_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tandem/server/responses_request.h"
#include "tandem/tokenizer/stream_decoder.h"

namespace tandem::server {
namespace {

/// 2 million of them are 16 MB, and about 60 MB of JSON; in the form of `prompt_logprobs`, where an
/// entry counts twice, 80 MB.
constexpr std::size_t kMaxPromptLogprobs = std::size_t{1} << 21;

/// Compiles the form that the answer must have. In a chat that thinks, a thought may come first.
std::optional<ApiError> compile_format(PreparedRequest& request, bool may_think,
                                       const ServedModel& model) {
  if (!request.params.format) return std::nullopt;
  grammar::Source& source = request.params.format->source;
  const tokenizer::Tokenizer& tokenizer = *model.tokenizer;
  if (may_think) source.thought = thought_marks(tokenizer);
  if (auto& calls = source.calls) {
    calls->open = tokenizer.find("<|tool_call>");
    calls->close = tokenizer.find("<tool_call|>");
    calls->quote = tokenizer.find("<|\"|>");
    if (std::min({calls->open, calls->close, calls->quote}) < 0) {
      return invalid_request("This model's vocabulary has no tokens for tool calls.", "tools");
    }
  }
  auto compiled = model.grammars->compile(source);
  if (!compiled.ok()) {
    return invalid_request(compiled.status().message(), request.params.format->param);
  }
  request.grammar = std::move(compiled).value();
  return std::nullopt;
}

/// What does not depend on how the prompts were made.
std::variant<PreparedRequest, ApiError> checked(PreparedRequest request, const ServedModel& model,
                                                std::string_view model_name,
                                                std::string_view prompt_param) {
  if (auto error = check_model(request.params.model, model_name)) return *std::move(error);
  const std::size_t answers = request.prompts.size() * static_cast<std::size_t>(request.params.n);
  if (model.max_requests > 0 && answers > static_cast<std::size_t>(model.max_requests)) {
    // Not "later": there would never be room for them.
    return invalid_request(fmt::format("'n' times the number of prompts is {}, but this server "
                                       "takes {} requests at a time.",
                                       answers, model.max_requests),
                           "n");
  }
  const auto max_context = static_cast<std::size_t>(model.max_context);
  for (const std::vector<TokenId>& prompt : request.prompts) {
    const bool has_answer = request.params.max_tokens != 0;
    if (prompt.size() + (has_answer ? 1 : 0) > max_context) {
      return invalid_request(
          fmt::format("This model's context holds {} tokens{}, but the prompt has {}; shorten the "
                      "prompt.",
                      max_context, has_answer ? ", of which one must be left for the answer" : "",
                      prompt.size()),
          std::string(prompt_param), "context_length_exceeded");
    }
    if (auto error = check_tokens(prompt, *model.tokenizer, prompt_param)) {
      return *std::move(error);
    }
  }
  return request;
}

/// Bounds the logprobs of prompts, all of which an answer holds at once; `copies`: of each
/// prompt's.
std::optional<ApiError> check_scores(const PreparedRequest& request, bool has_echo, int copies) {
  const auto entries = [](std::optional<int> top) {
    return top ? 1 + static_cast<std::size_t>(*top) : std::size_t{0};
  };
  const std::size_t echoed = has_echo ? entries(request.params.logprobs) : 0;
  const std::size_t reported = 2 * entries(request.params.prompt_logprobs);
  std::size_t tokens = 0;
  for (const std::vector<TokenId>& prompt : request.prompts) tokens += prompt.size();
  const std::size_t count = tokens * static_cast<std::size_t>(copies) * (echoed + reported);
  if (count <= kMaxPromptLogprobs) return std::nullopt;
  const std::string param = reported > 0 ? "prompt_logprobs" : "echo";
  return invalid_request(
      fmt::format("'{}' asks for {} log-probabilities of prompt tokens, but an answer may hold {}; "
                  "ask for fewer prompts at a time, or for fewer log-probabilities or 'n'.",
                  param, count, kMaxPromptLogprobs),
      param);
}

std::variant<PreparedRequest, ApiError> rendered(ChatRequest request, const ServedModel& model,
                                                 std::string_view model_name,
                                                 std::string_view prompt_param) {
  const auto pieces = chat::render(request.conversation, model.template_variant);
  if (!pieces.ok()) return invalid_request(pieces.status().message(), std::string(prompt_param));
  PreparedRequest prepared;
  prepared.params = std::move(request.params);
  prepared.prompts.push_back(model.tokenizer->encode(*pieces));
  prepared.parallel_tool_calls = request.parallel_tool_calls;
  const bool may_think = request.conversation.enable_thinking;
  if (auto error = compile_format(prepared, may_think, model)) return *std::move(error);
  if (auto error = check_scores(prepared, false, 1)) return *std::move(error);
  return checked(std::move(prepared), model, model_name, prompt_param);
}

}  // namespace

std::optional<ApiError> check_model(std::string_view wanted, std::string_view model_name) {
  if (wanted.empty() || wanted == model_name) return std::nullopt;
  return model_not_found(wanted);
}

std::optional<ApiError> check_tokens(const std::vector<TokenId>& tokens,
                                     const tokenizer::Tokenizer& tokenizer,
                                     std::string_view param) {
  const int vocab_size = tokenizer.vocab_size();
  for (const TokenId id : tokens) {
    if (id >= 0 && id < vocab_size) continue;
    return invalid_request(fmt::format("'{}' holds the token id {}, but the vocabulary has {}.",
                                       param, id, vocab_size),
                           std::string(param));
  }
  return std::nullopt;
}

std::optional<grammar::Source::Thought> thought_marks(const tokenizer::Tokenizer& tokenizer) {
  const TokenId open = tokenizer.find("<|channel>");
  const TokenId close = tokenizer.find("<channel|>");
  if (open < 0 || close < 0) return std::nullopt;
  return grammar::Source::Thought{open, close};
}

std::vector<TokenId> encode_prompt(std::string_view text, const tokenizer::Tokenizer& tokenizer,
                                   bool parses_special) {
  std::vector<TokenId> tokens = tokenizer.encode(text, parses_special);
  const TokenId bos = tokenizer.bos();
  const bool has_bos = !tokens.empty() && tokens.front() == bos;
  if (bos >= 0 && !has_bos) tokens.insert(tokens.begin(), bos);
  return tokens;
}

std::string decode(const std::vector<TokenId>& tokens, const tokenizer::Tokenizer& tokenizer) {
  tokenizer::StreamDecoder decoder(tokenizer, /*show_control=*/true);
  std::string text;
  for (const TokenId token : tokens) text += decoder.push(token);
  return text += decoder.flush();
}

std::variant<PreparedRequest, ApiError> prepare_chat(std::string_view body,
                                                     const ServedModel& model,
                                                     std::string_view model_name) {
  auto parsed = parse_chat_request(body, model.default_sampling);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  return rendered(std::get<ChatRequest>(std::move(parsed)), model, model_name, "messages");
}

std::variant<PreparedRequest, ApiError> prepare_responses(std::string_view body,
                                                          const ServedModel& model,
                                                          std::string_view model_name) {
  auto parsed = parse_responses_request(body, model.default_sampling);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  auto& request = std::get<ResponsesRequest>(parsed);
  auto prepared = rendered(std::move(request.chat), model, model_name, "input");
  if (auto* good = std::get_if<PreparedRequest>(&prepared)) {
    good->response_members = std::move(request.members);
  }
  return prepared;
}

std::variant<PreparedRequest, ApiError> prepare_completion(std::string_view body,
                                                           const ServedModel& model,
                                                           std::string_view model_name) {
  auto parsed = parse_completion_request(body, model.default_sampling);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  auto& request = std::get<CompletionRequest>(parsed);
  const tokenizer::Tokenizer& tokenizer = *model.tokenizer;
  PreparedRequest prepared;
  prepared.params = std::move(request.params);
  if (auto error = compile_format(prepared, false, model)) return *std::move(error);
  for (const Prompt& prompt : request.prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    prepared.prompts.push_back(text != nullptr ? encode_prompt(*text, tokenizer)
                                               : std::get<std::vector<TokenId>>(prompt));
  }
  auto result = checked(std::move(prepared), model, model_name, "prompt");
  auto* good = std::get_if<PreparedRequest>(&result);
  if (good == nullptr) return result;
  if (auto error = check_scores(*good, request.echo, good->params.n)) return *std::move(error);
  if (!request.echo) return result;
  for (std::size_t i = 0; i < good->prompts.size(); ++i) {
    const std::vector<TokenId>& tokens = good->prompts[i];
    const auto* text = std::get_if<std::string>(&request.prompts[i]);
    const TokenId first = tokens.empty() ? 0 : tokens.front();
    const bool is_first_written =
        text == nullptr || first != tokenizer.bos() || text->starts_with(tokenizer.bytes(first));
    good->echoes.push_back(
        {text != nullptr ? *text : decode(tokens, tokenizer), first, is_first_written});
  }
  return result;
}

}  // namespace tandem::server
