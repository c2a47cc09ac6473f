#include <fmt/format.h>

#include <iterator>
#include <utility>
#include <vector>

#include "tandem/server/answer_json.h"
#include "tandem/server/answer_writer.h"
#include "tandem/server/json_text.h"

namespace tandem::server {
namespace {

constexpr std::string_view kData = "data: ";
constexpr std::string_view kEnd = "\n\n";

/// Chunks of a stream. Text is put between prepared parts; nothing is parsed per event.
class ChatStream final : public AnswerWriter {
 public:
  explicit ChatStream(AnswerHead head)
      : head_(std::move(head)),
        chunk_head_(kData),
        num_calls_(static_cast<std::size_t>(head_.num_choices)) {
    append_head(chunk_head_, head_, "chat.completion.chunk");
  }

  void open(std::string& out) override {
    for (int i = 0; i < head_.num_choices; ++i) {
      begin(out, i);
      out += R"("role":"assistant","content":"")";
      finish(out, {}, "", {});
    }
  }

  void add(std::string& out, int choice, Delta delta, const AnswerUsage& usage) override {
    std::span<const ScoredToken> logprobs = delta.logprobs;
    for (const chat::OutputPart& part : delta.parts) {
      switch (part.kind) {
        case chat::OutputPart::Kind::kReasoning:
          add_text(out, choice, "reasoning_content", part.text, {}, usage);
          break;
        case chat::OutputPart::Kind::kContent:
          add_text(out, choice, "content", part.text, logprobs, usage);
          logprobs = {};
          break;
        case chat::OutputPart::Kind::kCall:
          add_call(out, choice, part, usage);
          break;
      }
    }
    if (!logprobs.empty()) add_text(out, choice, "content", "", logprobs, usage);
  }

  void end(std::string& out, int choice, std::string_view finish_reason,
           const AnswerUsage& usage) override {
    begin(out, choice);
    finish(out, {}, finish_reason, usage);
  }

  void close(std::string& out, const AnswerUsage& usage) override {
    if (head_.include_usage || head_.continuous_usage) {
      out.append(chunk_head_).append("],");
      append_usage(out, usage);
      out.append("}").append(kEnd);
    }
    out.append("data: [DONE]").append(kEnd);
  }

 private:
  void add_text(std::string& out, int choice, std::string_view member, std::string_view text,
                std::span<const ScoredToken> logprobs, const AnswerUsage& usage) const {
    begin(out, choice);
    out.append("\"").append(member).append("\":");
    append_json_string(out, text);
    finish(out, logprobs, "", usage);
  }

  /// As OpenAI does: the name first, then the arguments in pieces. A call that broke is left as it
  /// stands: its text follows as content.
  void add_call(std::string& out, int choice, const chat::OutputPart& part,
                const AnswerUsage& usage) {
    int& num_calls = num_calls_[static_cast<std::size_t>(choice)];
    if (!part.name.empty()) {
      begin(out, choice);
      fmt::format_to(std::back_inserter(out),
                     R"("tool_calls":[{{"index":{},"id":"{}","type":"function","function":)"
                     R"({{"name":)",
                     num_calls++, head_.new_id("call_"));
      append_json_string(out, part.name);
      out += R"(,"arguments":""}}])";
      finish(out, {}, "", usage);
    }
    if (part.text.empty()) return;
    begin(out, choice);
    fmt::format_to(std::back_inserter(out),
                   R"("tool_calls":[{{"index":{},"function":{{"arguments":)", num_calls - 1);
    append_json_string(out, part.text);
    out += "}}]";
    finish(out, {}, "", usage);
  }

  /// A chunk up to the members of its delta, and the rest after them.
  void begin(std::string& out, int choice) const {
    out += chunk_head_;
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"delta":{{)", choice);
  }
  void finish(std::string& out, std::span<const ScoredToken> logprobs,
              std::string_view finish_reason, const AnswerUsage& usage) const {
    out += R"(},"logprobs":)";
    append_chat_logprobs(out, logprobs, *head_.tokenizer);
    append_chunk_end(out, head_, finish_reason, usage);
    out += kEnd;
  }

  const AnswerHead head_;
  std::string chunk_head_;      // up to the choices
  std::vector<int> num_calls_;  // by choice
};

/// One body at the end.
class ChatWhole final : public AnswerWriter {
 public:
  explicit ChatWhole(AnswerHead head)
      : head_(std::move(head)), messages_(static_cast<std::size_t>(head_.num_choices)) {}

  void open(std::string&) override {}
  void add(std::string&, int choice, Delta delta, const AnswerUsage&) override {
    Choice& target = messages_[static_cast<std::size_t>(choice)];
    target.logprobs.insert(target.logprobs.end(), std::make_move_iterator(delta.logprobs.begin()),
                           std::make_move_iterator(delta.logprobs.end()));
    if (!delta.prompt_logprobs.empty()) prompt_logprobs_ = std::move(delta.prompt_logprobs);
    target.message.add(std::move(delta));
  }
  void end(std::string&, int choice, std::string_view finish_reason, const AnswerUsage&) override {
    messages_[static_cast<std::size_t>(choice)].finish_reason = finish_reason;
  }

  void close(std::string& out, const AnswerUsage& usage) override {
    append_head(out, head_, "chat.completion");
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      if (i > 0) out += ',';
      fmt::format_to(std::back_inserter(out), R"({{"index":{},"message":)", i);
      append_message(out, messages_[i].message);
      out += R"(,"logprobs":)";
      append_chat_logprobs(out, messages_[i].logprobs, *head_.tokenizer);
      fmt::format_to(std::back_inserter(out), R"(,"finish_reason":"{}"}})",
                     messages_[i].finish_reason);
    }
    out += "],";
    append_usage(out, usage);
    append_prompt_logprobs(out, prompt_logprobs_, *head_.tokenizer);
    out += '}';
  }

 private:
  struct Choice {
    chat::OutputMessage message;
    std::vector<ScoredToken> logprobs;
    std::string finish_reason;
  };

  void append_message(std::string& out, const chat::OutputMessage& message) const {
    out += R"({"role":"assistant","content":)";
    if (message.content.empty() && !message.calls.empty()) {
      out += "null";
    } else {
      append_json_string(out, message.content);
    }
    out += R"(,"refusal":null)";
    if (!message.reasoning.empty()) {
      out += R"(,"reasoning_content":)";
      append_json_string(out, message.reasoning);
    }
    for (std::size_t i = 0; i < message.calls.size(); ++i) {
      fmt::format_to(std::back_inserter(out),
                     R"({}{{"id":"{}","type":"function","function":{{"name":)",
                     i == 0 ? R"(,"tool_calls":[)" : ",", head_.new_id("call_"));
      append_json_string(out, message.calls[i].name);
      out += R"(,"arguments":)";
      append_json_string(out, message.calls[i].arguments);
      out += "}}";
    }
    out += message.calls.empty() ? "}" : "]}";
  }

  const AnswerHead head_;
  std::vector<Choice> messages_;
  std::vector<ScoredToken> prompt_logprobs_;
};

}  // namespace

void AnswerWriter::fail(std::string& out, const ApiError& error) {
  out.append(kData).append(to_json(error)).append(kEnd);
}

std::unique_ptr<AnswerWriter> make_chat_writer(AnswerHead head) {
  if (head.is_stream) return std::make_unique<ChatStream>(std::move(head));
  return std::make_unique<ChatWhole>(std::move(head));
}

}  // namespace tandem::server
