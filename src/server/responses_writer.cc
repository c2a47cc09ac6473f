#include <fmt/format.h>

#include <iterator>
#include <utility>
#include <vector>

#include "tandem/server/answer_writer.h"
#include "tandem/server/json_text.h"

namespace tandem::server {
namespace {

/// The answer of /v1/responses: items in the order in which the model wrote them. The same items
/// make the events of a stream and the body of a whole answer.
class ResponsesWriter final : public AnswerWriter {
 public:
  explicit ResponsesWriter(AnswerHead head) : head_(std::move(head)) {}

  void open(std::string& out) override {
    emit_response(out, "response.created", "in_progress");
    emit_response(out, "response.in_progress", "in_progress");
  }

  void add(std::string& out, int, Delta delta, const AnswerUsage&) override {
    for (const chat::OutputPart& part : delta.parts) {
      switch (part.kind) {
        case chat::OutputPart::Kind::kReasoning:
          add_text(out, Kind::kReasoning, part.text);
          break;
        case chat::OutputPart::Kind::kContent:
          add_text(out, Kind::kMessage, part.text);
          break;
        case chat::OutputPart::Kind::kCall:
          add_call(out, part);
          break;
      }
    }
  }

  void end(std::string& out, int, std::string_view finish_reason, const AnswerUsage&) override {
    is_cut_ = finish_reason == "length";
    if (is_cut_ && !items_.empty() && !items_.back().is_done) items_.back().is_broken = true;
    close_item(out);
  }

  void close(std::string& out, const AnswerUsage& usage) override {
    usage_ = usage;
    has_usage_ = true;
    const std::string_view status = is_cut_ ? "incomplete" : "completed";
    if (head_.is_stream) {
      emit_response(out, is_cut_ ? "response.incomplete" : "response.completed", status);
    } else {
      append_response(out, status);
    }
  }

  void fail(std::string& out, const ApiError& error) override {
    std::string members = R"("code":)";
    append_json_string(members, error.code.empty() ? error.type : error.code);
    members += R"(,"message":)";
    append_json_string(members, error.message);
    emit(out, "error", members + R"(,"param":null)");
  }

 private:
  enum class Kind { kReasoning, kMessage, kCall };
  struct Item {
    Kind kind = Kind::kMessage;
    std::string id;
    std::string text;  // of a call: its arguments
    std::string call_id;
    std::string name;
    bool is_done = false;
    bool is_broken = false;  // a call that the model did not end, or the item that was cut
  };

  void add_text(std::string& out, Kind kind, std::string_view text) {
    if (items_.empty() || items_.back().is_done || items_.back().kind != kind) {
      close_item(out);
      open_item(out, {kind, head_.new_id(kind == Kind::kMessage ? "msg_" : "rs_"), {}, {}, {}});
      emit(out, "response.content_part.added", place(true) + part(items_.back(), ""));
    }
    items_.back().text += text;
    std::string members = place(true) + R"("delta":)";
    append_json_string(members, text);
    if (kind == Kind::kMessage) members += R"(,"logprobs":[])";
    emit(out, std::string(text_event(kind)) + ".delta", members);
  }

  /// A call that broke stays in a stream as an item that is incomplete; a whole answer does not
  /// show it. Its text follows in a message.
  void add_call(std::string& out, const chat::OutputPart& part) {
    if (!part.name.empty()) {
      close_item(out);
      open_item(out, {Kind::kCall, head_.new_id("fc_"), {}, head_.new_id("call_"), part.name});
    }
    if (!part.text.empty()) {
      items_.back().text += part.text;
      std::string members = place(false) + R"("delta":)";
      append_json_string(members, part.text);
      emit(out, "response.function_call_arguments.delta", members);
    }
    if (part.call == chat::OutputPart::Call::kOpen) return;
    items_.back().is_broken = part.call == chat::OutputPart::Call::kBroken;
    if (items_.back().is_broken && !head_.is_stream) return items_.pop_back();
    close_item(out);
  }

  void open_item(std::string& out, Item item) {
    items_.push_back(std::move(item));
    emit(out, "response.output_item.added",
         fmt::format(R"("output_index":{},"item":)", items_.size() - 1) + item_json(items_.back()));
  }

  void close_item(std::string& out) {
    if (items_.empty() || std::exchange(items_.back().is_done, true)) return;
    const Item& item = items_.back();
    std::string text;
    append_json_string(text, item.text);
    if (item.kind == Kind::kCall) {
      std::string name;
      append_json_string(name, item.name);
      emit(out, "response.function_call_arguments.done",
           place(false) + R"("name":)" + name + R"(,"arguments":)" + text);
    } else {
      const char* logprobs = item.kind == Kind::kMessage ? R"(,"logprobs":[])" : "";
      emit(out, std::string(text_event(item.kind)) + ".done",
           place(true) + R"("text":)" + text + logprobs);
      emit(out, "response.content_part.done", place(true) + part(item, item.text));
    }
    emit(out, "response.output_item.done",
         fmt::format(R"("output_index":{},"item":)", items_.size() - 1) + item_json(item));
  }

  static std::string_view text_event(Kind kind) {
    return kind == Kind::kMessage ? "response.output_text" : "response.reasoning_text";
  }

  /// Members that say to which item an event belongs, with a comma at the end.
  std::string place(bool has_content) const {
    return fmt::format(R"("item_id":"{}","output_index":{},{})", items_.back().id,
                       items_.size() - 1, has_content ? R"("content_index":0,)" : "");
  }

  static std::string part_json(const Item& item, std::string_view text) {
    const bool is_message = item.kind == Kind::kMessage;
    std::string json = is_message
                           ? R"({"type":"output_text","annotations":[],"logprobs":[],"text":)"
                           : R"({"type":"reasoning_text","text":)";
    append_json_string(json, text);
    return json + "}";
  }
  static std::string part(const Item& item, std::string_view text) {
    return R"("part":)" + part_json(item, text);
  }

  static std::string item_json(const Item& item) {
    const char* status = item.is_broken ? "incomplete" : item.is_done ? "completed" : "in_progress";
    const std::string content = item.is_done ? "[" + part_json(item, item.text) + "]" : "[]";
    switch (item.kind) {
      case Kind::kReasoning:
        return fmt::format(
            R"({{"id":"{}","type":"reasoning","status":"{}","summary":[],"content":{}}})", item.id,
            status, content);
      case Kind::kMessage:
        return fmt::format(
            R"({{"id":"{}","type":"message","status":"{}","role":"assistant","content":{}}})",
            item.id, status, content);
      case Kind::kCall:
        break;
    }
    std::string json =
        fmt::format(R"({{"id":"{}","type":"function_call","status":"{}","call_id":"{}","name":)",
                    item.id, status, item.call_id);
    append_json_string(json, item.name);
    json += R"(,"arguments":)";
    append_json_string(json, item.text);
    return json + "}";
  }

  void append_response(std::string& out, std::string_view status) const {
    fmt::format_to(std::back_inserter(out),
                   R"({{"id":"{}","object":"response","created_at":{},"status":"{}","error":null,)"
                   R"("incomplete_details":{},"model":)",
                   head_.id, head_.created, status,
                   is_cut_ ? R"({"reason":"max_output_tokens"})" : "null");
    append_json_string(out, head_.model);
    out.append(",").append(head_.request_members).append(R"(,"output":[)");
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (i > 0) out += ',';
      out += item_json(items_[i]);
    }
    out += R"(],"usage":)";
    append_usage(out);
    out += '}';
  }

  void append_usage(std::string& out) const {
    if (!has_usage_) {
      out += "null";
      return;
    }
    fmt::format_to(std::back_inserter(out),
                   R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{}}},)"
                   R"("output_tokens":{},"output_tokens_details":{{"reasoning_tokens":{},)"
                   R"("drafted_tokens":{},"accepted_prediction_tokens":{}}},"total_tokens":{}}})",
                   usage_.prompt_tokens, usage_.cached_tokens, usage_.completion_tokens,
                   usage_.reasoning_tokens, usage_.drafted_tokens, usage_.accepted_tokens,
                   usage_.prompt_tokens + usage_.completion_tokens);
  }

  void emit_response(std::string& out, std::string_view type, std::string_view status) {
    if (!head_.is_stream) return;
    std::string members = R"("response":)";
    append_response(members, status);
    emit(out, type, members);
  }

  /// Nothing in a whole answer.
  void emit(std::string& out, std::string_view type, std::string_view members) {
    if (!head_.is_stream) return;
    fmt::format_to(std::back_inserter(out),
                   "event: {0}\ndata: {{\"type\":\"{0}\",\"sequence_number\":{1},{2}}}\n\n", type,
                   sequence_number_++, members);
  }

  const AnswerHead head_;
  std::vector<Item> items_;
  bool is_cut_ = false;
  bool has_usage_ = false;
  AnswerUsage usage_;
  int sequence_number_ = 0;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_responses_writer(AnswerHead head) {
  return std::make_unique<ResponsesWriter>(std::move(head));
}

}  // namespace tandem::server
