#include "tandem/bench/chat_stream.h"

#include <algorithm>
#include <boost/json.hpp>

#include "tandem/bench/json_util.h"

namespace tandem::bench {
namespace {

namespace json = boost::json;

/// Bytes of text in the delta of a choice; some servers send their reasoning under both names.
std::size_t count_text(const json::value* delta) {
  const std::size_t reasoning = std::max(as_text(member(delta, "reasoning_content")).size(),
                                         as_text(member(delta, "reasoning")).size());
  return as_text(member(delta, "content")).size() + reasoning;
}

bool has_call(const json::value* delta) {
  const json::value* calls = member(delta, "tool_calls");
  return calls != nullptr && calls->is_array() && !calls->get_array().empty();
}

std::string error_text(const json::value& error) {
  const std::string_view message =
      error.is_string() ? as_text(&error) : as_text(member(&error, "message"));
  return message.empty() ? json::serialize(error) : std::string(message);
}

}  // namespace

void ChatStream::feed(std::string_view bytes, double now) {
  reader_.feed(bytes, [&](std::string_view data) { on_event(data, now); });
  if (reader_.is_too_long() && error_.empty()) error_ = "an event is longer than 16 MiB";
}

void ChatStream::on_event(std::string_view data, double now) {
  if (!first_event_at_) first_event_at_ = now;
  if (data == "[DONE]") return;
  boost::system::error_code parse_error;
  const json::value event = json::parse(data, parse_error);
  if (parse_error || !event.is_object()) {
    if (error_.empty()) error_ = "an event is not a JSON object";
    return;
  }
  if (const json::value* error = member(&event, "error"); error != nullptr && !error->is_null()) {
    if (error_.empty()) error_ = error_text(*error);
    return;
  }
  const json::value* choices = member(&event, "choices");
  if (choices != nullptr && choices->is_array() && !choices->get_array().empty()) {
    const json::value* choice = &choices->get_array().front();
    const json::value* delta = member(choice, "delta");
    const std::size_t bytes = count_text(delta);
    const bool is_content = bytes > 0 || has_call(delta);
    text_bytes_ += bytes;
    const std::string_view reason = as_text(member(choice, "finish_reason"));
    if (is_content && !first_content_at_) first_content_at_ = now;
    if (is_content || !reason.empty()) end_at_ = now;
    if (!reason.empty()) finish_reason_ = reason;
  }
  const json::value* usage = member(&event, "usage");
  const auto prompt = as_count(member(usage, "prompt_tokens"));
  const auto completion = as_count(member(usage, "completion_tokens"));
  if (prompt && completion) usage_ = Usage{*prompt, *completion};
  const json::value* timings = member(&event, "timings");
  const auto drafted = as_count(member(timings, "draft_n"));
  const auto accepted = as_count(member(timings, "draft_n_accepted"));
  if (drafted && accepted) draft_timings_ = DraftTimings{*drafted, *accepted};
}

}  // namespace tandem::bench
