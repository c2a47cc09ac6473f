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
    if (!delta.reasoning.empty()) {
      begin(out, choice);
      out += R"("reasoning_content":)";
      append_json_string(out, delta.reasoning);
      finish(out, {}, "", usage);
    }
    if (!delta.text.empty() || !delta.logprobs.empty()) {
      begin(out, choice);
      out += R"("content":)";
      append_json_string(out, delta.text);
      finish(out, delta.logprobs, "", usage);
    }
    for (const chat::ParsedCall& call : delta.calls) add_call(out, choice, call, usage);
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
  /// As OpenAI does: the name first, then the arguments.
  void add_call(std::string& out, int choice, const chat::ParsedCall& call,
                const AnswerUsage& usage) {
    const int index = num_calls_[static_cast<std::size_t>(choice)]++;
    begin(out, choice);
    fmt::format_to(std::back_inserter(out),
                   R"("tool_calls":[{{"index":{},"id":"{}","type":"function","function":{{"name":)",
                   index, head_.new_id("call_"));
    append_json_string(out, call.name);
    out += R"(,"arguments":""}}])";
    finish(out, {}, "", usage);
    begin(out, choice);
    fmt::format_to(std::back_inserter(out),
                   R"("tool_calls":[{{"index":{},"function":{{"arguments":)", index);
    append_json_string(out, call.arguments);
    out += "}}]";
    finish(out, {}, "", usage);
  }

  /// A chunk up to the members of its delta, and the rest after them.
  void begin(std::string& out, int choice) const {
    out += chunk_head_;
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"delta":{{)", choice);
  }
  void finish(std::string& out, std::span<const kernels::TokenLogprobs> logprobs,
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
    Delta& message = messages_[static_cast<std::size_t>(choice)].whole;
    message.text += delta.text;
    message.reasoning += delta.reasoning;
    const auto append = [](auto& to, auto& from) {
      to.insert(to.end(), std::make_move_iterator(from.begin()),
                std::make_move_iterator(from.end()));
    };
    append(message.calls, delta.calls);
    append(message.logprobs, delta.logprobs);
  }
  void end(std::string&, int choice, std::string_view finish_reason, const AnswerUsage&) override {
    messages_[static_cast<std::size_t>(choice)].finish_reason = finish_reason;
  }

  void close(std::string& out, const AnswerUsage& usage) override {
    append_head(out, head_, "chat.completion");
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      if (i > 0) out += ',';
      fmt::format_to(std::back_inserter(out), R"({{"index":{},"message":)", i);
      append_message(out, messages_[i].whole);
      out += R"(,"logprobs":)";
      append_chat_logprobs(out, messages_[i].whole.logprobs, *head_.tokenizer);
      fmt::format_to(std::back_inserter(out), R"(,"finish_reason":"{}"}})",
                     messages_[i].finish_reason);
    }
    out += "],";
    append_usage(out, usage);
    out += '}';
  }

 private:
  struct Choice {
    Delta whole;
    std::string finish_reason;
  };

  void append_message(std::string& out, const Delta& message) const {
    out += R"({"role":"assistant","content":)";
    if (message.text.empty() && !message.calls.empty()) {
      out += "null";
    } else {
      append_json_string(out, message.text);
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
