#include "tandem/server/answer_writer.h"

#include <fmt/format.h>

#include <iterator>

#include "tandem/core/check.h"
#include "tandem/server/json_text.h"

namespace tandem::server {
namespace {

constexpr std::string_view kData = "data: ";
constexpr std::string_view kEnd = "\n\n";
constexpr std::string_view kNoUsage = R"(,"usage":null)";

std::string_view name_of(engine::FinishReason reason) {
  TANDEM_CHECK(reason == engine::FinishReason::kStop || reason == engine::FinishReason::kLength,
               "only complete answers have an end");
  return reason == engine::FinishReason::kStop ? "stop" : "length";
}

std::string head_json(const AnswerWriter::Head& head, std::string_view object) {
  std::string json = R"({"id":)";
  append_json_string(json, head.id);
  json += R"(,"object":)";
  append_json_string(json, object);
  fmt::format_to(std::back_inserter(json), R"(,"created":{},"model":)", head.created);
  append_json_string(json, head.model);
  json += R"(,"system_fingerprint":)";
  append_json_string(json, head.fingerprint);
  return json += R"(,"choices":[)";
}

void append_usage_json(std::string& out, const engine::Usage& usage) {
  fmt::format_to(std::back_inserter(out),
                 R"("usage":{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                 R"("prompt_tokens_details":{{"cached_tokens":{}}},"completion_tokens_details":)"
                 R"({{"reasoning_tokens":0,"accepted_prediction_tokens":{},)"
                 R"("rejected_prediction_tokens":{},"drafted_tokens":{}}}}})",
                 usage.prompt_tokens, usage.completion_tokens,
                 usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens,
                 usage.accepted_tokens, usage.drafted_tokens - usage.accepted_tokens,
                 usage.drafted_tokens);
}

}  // namespace

AnswerWriter::AnswerWriter(const Head& head)
    : is_chat_(head.endpoint == Endpoint::kChat),
      chunk_head_(std::string(kData) +
                  head_json(head, is_chat_ ? "chat.completion.chunk" : "text_completion")),
      whole_head_(head_json(head, is_chat_ ? "chat.completion" : "text_completion")) {
  tail_ = fmt::format("]{}}}{}", head.include_usage ? kNoUsage : "", kEnd);
  text_head_ =
      chunk_head_ + R"({"index":0,)" + (is_chat_ ? R"("delta":{"content":")" : R"("text":")");
  text_tail_ = std::string(is_chat_ ? R"("})" : R"(")") +
               R"(,"logprobs":null,"finish_reason":null})" + tail_;
}

void AnswerWriter::append_opening(std::string& out) const {
  if (!is_chat_) return;
  out.append(chunk_head_)
      .append(R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,)")
      .append(R"("finish_reason":null})")
      .append(tail_);
}

void AnswerWriter::append_text(std::string& out, std::string_view text) const {
  out.append(text_head_);
  append_json_escaped(out, text);
  out.append(text_tail_);
}

void AnswerWriter::append_finish(std::string& out, engine::FinishReason reason) const {
  out.append(chunk_head_)
      .append(is_chat_ ? R"({"index":0,"delta":{})" : R"({"index":0,"text":"")")
      .append(R"(,"logprobs":null,"finish_reason":")")
      .append(name_of(reason))
      .append(R"("})")
      .append(tail_);
}

void AnswerWriter::append_usage(std::string& out, const engine::Usage& usage) const {
  out.append(chunk_head_).append("],");
  append_usage_json(out, usage);
  out.append("}").append(kEnd);
}

void AnswerWriter::append_error(std::string& out, const ApiError& error) {
  out.append(kData).append(to_json(error)).append(kEnd);
}

void AnswerWriter::append_done(std::string& out) {
  out.append("data: [DONE]").append(kEnd);
}

std::string AnswerWriter::whole(std::string_view text, engine::FinishReason reason,
                                const engine::Usage& usage) const {
  std::string body = whole_head_;
  body +=
      is_chat_ ? R"({"index":0,"message":{"role":"assistant","content":)" : R"({"index":0,"text":)";
  append_json_string(body, text);
  if (is_chat_) body += R"(,"refusal":null})";
  fmt::format_to(std::back_inserter(body), R"(,"logprobs":null,"finish_reason":"{}"}}],)",
                 name_of(reason));
  append_usage_json(body, usage);
  return body += "}";
}

}  // namespace tandem::server
