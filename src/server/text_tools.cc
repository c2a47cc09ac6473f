#include "tandem/server/text_tools.h"

#include <fmt/format.h>

#include <boost/json/object.hpp>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "tandem/chat/template_gemma4.h"
#include "tandem/core/utf8.h"
#include "tandem/server/json_text.h"
#include "tandem/server/openai_types.h"
#include "tandem/server/prompt_builder.h"
#include "tandem/server/unsupported.h"

namespace tandem::server {
namespace {

namespace json = boost::json;

constexpr Unsupported kUnsupportedInTokenize[] = {
    {"with_pieces", is_false},
};

using Pieces = std::vector<tokenizer::TextPiece>;

/// The prompt of the body's chat; what is wrong is in the reader's error.
std::optional<Pieces> rendered_chat(BodyReader& reader, const ServedModel& model) {
  chat::Conversation conversation;
  read_conversation(reader, conversation);
  if (reader.error()) return std::nullopt;
  auto pieces = chat::render(conversation, model.template_variant);
  if (pieces.ok()) return *std::move(pieces);
  reader.fail(invalid_request(pieces.status().message(), "messages"));
  return std::nullopt;
}

std::vector<TokenId> read_tokens_to_count(BodyReader& reader, const ServedModel& model) {
  const tokenizer::Tokenizer& tokenizer = *model.tokenizer;
  if (reader.find("messages") != nullptr) {
    const auto pieces = rendered_chat(reader, model);
    return pieces ? tokenizer.encode(*pieces) : std::vector<TokenId>();
  }
  const bool is_prompt = reader.find("prompt") != nullptr;
  const auto text = reader.string(is_prompt ? "prompt" : "content");
  const bool parses_special = reader.boolean("parse_special").value_or(true);  // llama.cpp's
  const bool adds_special = is_prompt ? reader.boolean("add_special_tokens").value_or(true)
                                      : reader.boolean("add_special").value_or(false);
  if (!text) {
    reader.fail("prompt", "must be a string; or give 'content' or 'messages'");
    return {};
  }
  return adds_special ? encode_prompt(*text, tokenizer, parses_special)
                      : tokenizer.encode(*text, parses_special);
}

std::string tokens_json(const std::vector<TokenId>& tokens, bool with_strings,
                        const ServedModel& model) {
  std::string out = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}],"token_strs":)",
                                tokens.size(), model.max_context, fmt::join(tokens, ","));
  if (!with_strings) return out + "null}";
  const char* separator = "[";
  for (const TokenId token : tokens) {
    out += separator;
    append_json_string(out, core::sanitize_utf8(model.tokenizer->bytes(token)));
    separator = ",";
  }
  return out + (tokens.empty() ? "[]}" : "]}");
}

/// Parses the body, lets `answer` make the JSON, and checks the model's name.
template <typename Answer>
std::variant<std::string, ApiError> with_reader(std::string_view body, std::string_view model_name,
                                                Answer answer) {
  const auto parsed = parse_object(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  BodyReader reader(std::get<json::object>(parsed));
  if (auto error = check_model(reader.string("model").value_or(""), model_name)) return *error;
  std::string text = answer(reader);
  if (reader.error()) return *reader.error();
  return text;
}

}  // namespace

std::variant<std::string, ApiError> tokenize(std::string_view body, const ServedModel& model,
                                             std::string_view model_name) {
  return with_reader(body, model_name, [&model](BodyReader& reader) {
    const std::vector<TokenId> tokens = read_tokens_to_count(reader, model);
    const bool with_strings = reader.boolean("return_token_strs").value_or(false);
    refuse_unsupported(reader, kUnsupportedInTokenize);
    return tokens_json(tokens, with_strings, model);
  });
}

std::variant<std::string, ApiError> detokenize(std::string_view body, const ServedModel& model,
                                               std::string_view model_name) {
  return with_reader(body, model_name, [&model](BodyReader& reader) {
    const json::value* value = reader.find("tokens");
    const json::array* array = value == nullptr ? nullptr : value->if_array();
    const auto tokens = array == nullptr ? std::nullopt : token_ids(*array);
    if (!tokens) {
      reader.fail("tokens", "must be an array of token ids");
      return std::string();
    }
    if (auto error = check_tokens(*tokens, *model.tokenizer, "tokens")) {
      reader.fail(*std::move(error));
      return std::string();
    }
    std::string text;
    append_json_string(text, decode(*tokens, *model.tokenizer));
    return fmt::format(R"({{"prompt":{0},"content":{0}}})", text);
  });
}

std::variant<std::string, ApiError> apply_template(std::string_view body, const ServedModel& model,
                                                   std::string_view model_name) {
  return with_reader(body, model_name, [&model](BodyReader& reader) {
    std::string prompt;
    if (const auto pieces = rendered_chat(reader, model)) {
      for (const tokenizer::TextPiece& piece : *pieces) prompt += piece.text;
    }
    std::string out = R"({"prompt":)";
    append_json_string(out, prompt);
    return out + "}";
  });
}

void run_text_tool(const std::shared_ptr<Service>& service, TextTool tool, net::HttpRequest request,
                   std::unique_ptr<Reply> reply) {
  if (refuse_unless_serving(*service, *reply)) return;
  const std::size_t bytes = request.body.size();
  const std::shared_ptr<Reply> shared = std::move(reply);  // a job must be copyable
  const auto body = std::make_shared<const std::string>(std::move(request.body));
  const auto job = [service, tool, body, shared] {
    auto answer = tool(*body, service->model(), service->options().model_name);
    if (const auto* error = std::get_if<ApiError>(&answer)) return shared->send_error(*error);
    shared->send_json(200, std::get<std::string>(std::move(answer)));
  };
  if (!service->prompts().submit(bytes, job)) {
    shared->send_error(
        unavailable_now("Too many requests wait to be read; try again soon.", "overloaded"));
  }
}

}  // namespace tandem::server
