#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/chat/output_parser.h"
#include "tandem/engine/request.h"
#include "tandem/engine/stop.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::server {

/// A token of an answer and how likely it was; NaN for the first of a prompt, before which nothing
/// is.
struct ScoredToken : kernels::TokenLogprobs {
  bool is_shown = true;  ///< whether the text spells it
};

/// What some tokens added to one choice of an answer; a text has content alone.
struct Delta : chat::OutputDelta {
  /// If asked for. Of a chat: those of its content's tokens; of a text: all, an end token included.
  std::vector<ScoredToken> logprobs;
  /// If asked for, with the first event: those of the prompt's tokens.
  std::vector<ScoredToken> prompt_logprobs;

  bool empty() const { return parts.empty() && logprobs.empty() && prompt_logprobs.empty(); }
};

/// Token counts of an answer.
struct AnswerUsage : engine::Usage {
  int reasoning_tokens = 0;  ///< completion tokens of thoughts, their markers included
};

/// The prompt that a text begins with. Its logprobs are those of the engine's first event.
struct Echo {
  std::string text;
  TokenId first_token = 0;
  bool shows_first = true;  ///< false: a beginning that the client did not write
};

/// Turns the engine's events of one choice into what its client sees. How tokens are grouped into
/// events changes nothing but the cuts between deltas. Thread: one.
class ChoiceOutput {
 public:
  struct Options {
    bool is_chat = false;
    /// Chats: looked for in the content; thoughts and calls are never cut. For texts the engine
    /// looks for them.
    std::vector<std::string> stop;
    std::vector<TokenId> stop_tokens;
    bool ignore_eos = false;
    bool parallel_tool_calls = true;          ///< false: the first call ends the choice
    std::optional<Echo> echo = std::nullopt;  ///< texts
    std::optional<int> logprobs = {};         ///< alternatives shown per token
    std::optional<int> prompt_logprobs = {};  ///< the same of the prompt's tokens
  };
  /// `tokenizer` must outlive the output.
  ChoiceOutput(const tokenizer::Tokenizer& tokenizer, Options options);

  /// What an event shows; the event is no error. Not after the choice has finished.
  Delta push(const engine::Event& event);

  /// Whether the choice is complete, perhaps before the engine knows.
  bool is_finished() const { return !finish_reason_.empty(); }
  /// stop, length or tool_calls; empty until then.
  std::string_view finish_reason() const { return finish_reason_; }
  /// Counts only tokens up to the end of the choice.
  const AnswerUsage& usage() const { return usage_; }

 private:
  void push_chat(const engine::Event& event, Delta& delta);
  void push_text(const engine::Event& event, Delta& delta);
  void push_prompt(const engine::Event& event, Delta& delta);
  void push_token(const engine::Event& event, std::size_t index, Delta& delta);
  void take(chat::OutputDelta parsed, Delta& delta);
  bool is_end(TokenId token) const;
  bool is_special(TokenId token) const;
  void finish(engine::FinishReason reason);

  const tokenizer::Tokenizer* tokenizer_;
  const Options options_;
  chat::OutputParser parser_;
  engine::StopFilter stop_;
  bool is_begun_ = false;  // an event came
  AnswerUsage usage_;
  std::string_view finish_reason_;
};

}  // namespace tandem::server
