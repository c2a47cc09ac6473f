#include "tandem/chat/template_gemma4.h"

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <string>

#include "tandem/chat/prompt_builder.h"
#include "tandem/chat/python_text.h"
#include "tandem/chat/tool_format.h"

namespace tandem::chat {

namespace {

bool is_system(const Message& message) {
  return message.role == "system" || message.role == "developer";
}

/// What the last message left open; decides its closing and whether a model turn is opened.
enum class Tail { kNothing, kToolCall, kToolResponse };

/// The text without its thought channels, trimmed: the template's strip_thinking.
std::string strip_thinking(std::string_view text) {
  constexpr std::string_view kOpen = "<|channel>";
  constexpr std::string_view kClose = "<channel|>";
  std::string out;
  while (true) {
    const std::size_t end = text.find(kClose);
    const std::string_view part = text.substr(0, end);
    out += part.substr(0, part.find(kOpen));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + kClose.size());
  }
  return std::string(strip(out));
}

/// Renders one conversation; follows the template's blocks in their order.
class Renderer {
 public:
  Renderer(const Conversation& conversation, TemplateVariant variant)
      : conversation_(conversation), variant_(variant) {}

  core::Result<std::vector<tokenizer::TextPiece>> render() {
    const auto& messages = conversation_.messages;
    if (messages.empty()) return core::invalid_argument("messages: must not be empty");
    out_.markup("<bos>");
    first_ = is_system(messages.front()) ? 1 : 0;
    if (conversation_.enable_thinking || !conversation_.tools.empty() || first_ == 1) {
      TANDEM_TRY(write_system_turn());
    }
    for (std::size_t i = messages.size(); i > first_ && !last_user_; --i) {
      if (messages[i - 1].role == "user") last_user_ = i - 1;
    }
    for (std::size_t i = first_; i < messages.size(); ++i) write_message(i);
    if (conversation_.add_generation_prompt && tail_ == Tail::kNothing) {
      out_.markup("<|turn>model\n");
      if (variant_ == TemplateVariant::kEmptyThought && !conversation_.enable_thinking) {
        out_.markup("<|channel>thought\n<channel|>");
      }
    }
    return out_.take();
  }

 private:
  core::Status write_system_turn() {
    out_.markup("<|turn>system\n");
    if (conversation_.enable_thinking) out_.markup("<|think|>\n");
    if (first_ == 1) {
      for (const auto& part : conversation_.messages.front().content) out_.text(strip(part.text));
    }
    for (std::size_t i = 0; i < conversation_.tools.size(); ++i) {
      out_.markup("<|tool>");
      TANDEM_TRY(write_declaration(conversation_.tools[i].function, out_)
                     .with_context(fmt::format("tools[{}].function", i)));
      out_.markup("<tool|>");
    }
    out_.markup("<turn|>\n");
    return {};
  }

  void write_message(std::size_t index) {
    const Message& message = conversation_.messages[index];
    tail_ = Tail::kNothing;
    const bool from_model = message.role == "assistant" || message.role == "model";
    const bool continues_turn =
        from_model && index > first_ && conversation_.messages[index - 1].role == "assistant";
    if (!continues_turn) {
      out_.markup("<|turn>").text(from_model ? "model" : message.role).markup("\n");
    }
    if (message.reasoning && !message.reasoning->empty() && !message.tool_calls.empty() &&
        (!last_user_ || index > *last_user_)) {
      out_.markup("<|channel>thought\n").text(*message.reasoning).markup("\n<channel|>");
    }
    for (const ToolCall& call : message.tool_calls) write_call(call, out_);
    if (!message.tool_calls.empty()) tail_ = Tail::kToolCall;
    for (const ToolResponse& response : message.tool_responses) write_response(response, out_);
    if (!message.tool_responses.empty()) tail_ = Tail::kToolResponse;
    write_content(message, from_model);

    const bool has_responses = !message.tool_responses.empty();
    if (tail_ == Tail::kToolCall && !has_responses) {
      out_.markup("<|tool_response>");
    } else if (!has_responses || !message.content.empty()) {
      out_.markup("<turn|>\n");
    }
  }

  void write_content(const Message& message, bool from_model) {
    for (const ContentPart& part : message.content) {
      switch (part.kind) {
        case ContentPart::Kind::kText:
          out_.text(from_model ? strip_thinking(part.text) : strip(part.text));
          continue;
        case ContentPart::Kind::kImage:
          out_.markup("<|image|>");
          break;
        case ContentPart::Kind::kAudio:
          out_.markup("<|audio|>");
          break;
        case ContentPart::Kind::kVideo:
          out_.markup("<|video|>");
          break;
      }
      tail_ = Tail::kNothing;  // media after a call end the turn
    }
  }

  const Conversation& conversation_;
  TemplateVariant variant_;
  PromptBuilder out_;
  std::size_t first_ = 0;                 // index of the first message after the system turn
  std::optional<std::size_t> last_user_;  // index of the last user message
  Tail tail_ = Tail::kNothing;
};

}  // namespace

core::Result<TemplateVariant> detect_variant(std::string_view jinja_template) {
  for (const std::string_view marker : {"<|turn>", "<turn|>"}) {
    if (jinja_template.find(marker) == std::string_view::npos) {
      return core::unimplemented(fmt::format(
          "the chat template is not one of Gemma 4's: it has no {}; use a model file whose "
          "tokenizer.chat_template is Gemma 4's own",
          marker));
    }
  }
  // Written with an escape in the published templates; with a line break it means the same.
  for (const std::string_view thought :
       {R"(<|channel>thought\n<channel|>)", "<|channel>thought\n<channel|>"}) {
    if (jinja_template.find(thought) != std::string_view::npos) {
      return TemplateVariant::kEmptyThought;
    }
  }
  return TemplateVariant::kOpenTurn;
}

core::Result<std::vector<tokenizer::TextPiece>> render(const Conversation& conversation,
                                                       std::optional<TemplateVariant> variant) {
  if (!variant) {
    return core::invalid_argument(
        "this model has no chat template; ask for plain completions (/v1/completions)");
  }
  return Renderer(conversation, *variant).render();
}

}  // namespace tandem::chat
