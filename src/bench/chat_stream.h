#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tandem/net/http_client.h"

namespace tandem::bench {

/// What one streamed chat completion tells, event by event. Counts no tokens: a chunk may hold
/// several or none. Unknown fields are ignored. Times are seconds on the caller's clock.
class ChatStream {
 public:
  /// Body bytes that arrived at `now`, cut anywhere.
  void feed(std::string_view bytes, double now);

  struct Usage {
    std::uint64_t prompt_tokens = 0, completion_tokens = 0;
  };
  /// llama.cpp's own counters of drafts, sent with the last chunk.
  struct DraftTimings {
    std::uint64_t drafted = 0, accepted = 0;
  };

  std::optional<double> first_event_at() const { return first_event_at_; }
  /// First chunk with text, reasoning or a tool call; role-only and empty chunks do not count.
  std::optional<double> first_content_at() const { return first_content_at_; }
  /// Bytes of text and reasoning so far.
  std::size_t text_bytes() const { return text_bytes_; }
  /// The finish reason's chunk, or the last content before it has come.
  std::optional<double> end_at() const { return end_at_; }
  const std::string& finish_reason() const { return finish_reason_; }  ///< empty: none yet
  const std::optional<Usage>& usage() const { return usage_; }
  const std::optional<DraftTimings>& draft_timings() const { return draft_timings_; }
  /// Message of an error event, or of one that is not JSON or too long; empty: none.
  const std::string& error() const { return error_; }

 private:
  void on_event(std::string_view data, double now);

  net::SseReader reader_;
  std::optional<double> first_event_at_, first_content_at_, end_at_;
  std::size_t text_bytes_ = 0;
  std::string finish_reason_, error_;
  std::optional<Usage> usage_;
  std::optional<DraftTimings> draft_timings_;
};

}  // namespace tandem::bench
