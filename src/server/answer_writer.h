#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tandem/engine/request.h"
#include "tandem/server/api_error.h"

namespace tandem::server {

enum class Endpoint { kChat, kCompletion };

/// Writes the answers of one generation in OpenAI's form, as server-sent events or whole. Text is
/// put between prepared halves; nothing is parsed or allocated per event. Thread: one.
class AnswerWriter {
 public:
  struct Head {
    Endpoint endpoint = Endpoint::kChat;
    std::string id;
    std::int64_t created = 0;  ///< Unix time in seconds
    std::string model;
    std::string fingerprint;
    bool include_usage = false;  ///< streams: a usage chunk at the end, null before
  };
  explicit AnswerWriter(const Head& head);

  // Events of a stream, each appended to `out` as "data: ...\n\n".
  void append_opening(std::string& out) const;  ///< the role; nothing for text completions
  void append_text(std::string& out, std::string_view text) const;
  void append_finish(std::string& out, engine::FinishReason reason) const;
  void append_usage(std::string& out, const engine::Usage& usage) const;
  static void append_error(std::string& out, const ApiError& error);
  static void append_done(std::string& out);

  /// The body of an answer that is not streamed.
  std::string whole(std::string_view text, engine::FinishReason reason,
                    const engine::Usage& usage) const;

 private:
  bool is_chat_;
  std::string chunk_head_;  // up to the choices
  std::string whole_head_;
  std::string text_head_;  // a chunk up to its text
  std::string text_tail_;  // and after it
  std::string tail_;       // after the choices
};

}  // namespace tandem::server
