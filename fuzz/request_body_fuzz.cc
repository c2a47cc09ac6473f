// Any body for the endpoints that generate: it becomes prompts within the vocabulary, or an error
// that names what is wrong in well-formed JSON.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "chat_vocab.h"
#include "tandem/chat/wire_json.h"
#include "tandem/core/utf8.h"
#include "tandem/server/prompt_builder.h"

namespace {

using namespace tandem;
using fuzz::require;

server::ServedModel make_model() {
  server::ServedModel model;
  model.tokenizer = fuzz::chat_tokenizer();
  model.grammars = std::make_shared<grammar::Compiler>(*model.tokenizer);
  model.max_context = 4096;
  return model;
}

void check(const std::variant<server::PreparedRequest, server::ApiError>& prepared,
           const server::ServedModel& model) {
  if (const auto* error = std::get_if<server::ApiError>(&prepared)) {
    require(error->http_status == 400 || error->http_status == 404);
    require(!error->message.empty());
    const std::string json = server::to_json(*error);
    require(chat::parse_json(json).ok() && core::sanitize_utf8(json) == json);
    return;
  }
  const auto& request = std::get<server::PreparedRequest>(prepared);
  require(!request.prompts.empty() && request.params.n >= 1);
  require(request.prompts.size() * static_cast<std::size_t>(request.params.n) <=
          server::kMaxChoices);
  require((request.grammar != nullptr) == request.params.format.has_value());
  for (const auto& prompt : request.prompts) {
    for (const TokenId id : prompt) {
      require(id >= 0 && id < model.tokenizer->vocab_size());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const server::ServedModel model = make_model();
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  check(server::prepare_chat(body, model, "m"), model);
  check(server::prepare_completion(body, model, "m"), model);
  check(server::prepare_responses(body, model, "m"), model);
  return 0;
}
