#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/chat/call_syntax.h"
#include "tandem/core/units.h"
#include "tandem/tokenizer/stream_decoder.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::chat {

/// A stretch of an answer.
struct OutputPart {
  enum class Kind : std::uint8_t { kReasoning, kContent, kCall };
  enum class Call : std::uint8_t { kOpen, kWhole, kBroken };

  Kind kind = Kind::kContent;
  std::string text;         ///< of a call: more of its arguments, which are compact JSON
  std::string name;         ///< in the first part of a call, and there alone
  Call call = Call::kOpen;  ///< in the last part of a call: how it ended

  bool operator==(const OutputPart&) const = default;
};

/// What some tokens added to an answer, in the order in which the model wrote it. Neighbours of one
/// kind are one part, as are those of one call.
struct OutputDelta {
  std::vector<OutputPart> parts;

  bool empty() const { return parts.empty(); }
  void add(OutputPart part);
  void add(OutputPart::Kind kind, std::string_view text);
};

struct ParsedCall {
  std::string name;
  std::string arguments;  ///< compact JSON text of an object

  bool operator==(const ParsedCall&) const = default;
};

/// The message that the deltas of an answer make.
struct OutputMessage {
  std::string reasoning;
  std::string content;
  std::vector<ParsedCall> calls;  ///< those that are whole; while deltas come, perhaps one more

  void add(OutputDelta delta);
};

/// Splits what a model generates into reasoning, content and tool calls as it comes
/// (spec/tokenizer-chat.md section 4.2). Only special tokens act; the same characters spelled by
/// ordinary tokens are text. Nothing that was given out is taken back, nothing is lost but white
/// space around thoughts and around calls alone, and how tokens are grouped changes nothing:
/// - a thought loses its channel's name `thought` and white space at both ends; several thoughts
///   are joined with a line break
/// - a call shows once its name is known, and its arguments as they become certain; one that turns
///   out to be none is called broken, and all of it becomes content, its tokens spelled out
/// Time is linear in the output. Thread: one.
class OutputParser {
 public:
  /// The tokenizer must outlive the parser.
  explicit OutputParser(const tokenizer::Tokenizer& tokenizer);

  /// Adds what an id shows to `delta`. Not for the token that ended the generation.
  void push(TokenId id, OutputDelta& delta);
  OutputDelta push(std::span<const TokenId> ids);

  /// What was held back until the end. Call once, last.
  OutputDelta finish();

  /// Whether any call is whole: then content that is empty is null in the message, and the
  /// reason for the end is tool_calls unless a limit was hit.
  bool has_calls() const { return has_calls_; }

  /// Where the next ordinary token belongs.
  bool in_content() const { return state_ == State::kContent; }
  bool in_thought() const { return state_ == State::kThought; }

 private:
  enum class State { kContent, kThought, kCall };

  void push_text(std::string_view text, OutputDelta& delta);
  void push_special(TokenId id, OutputDelta& delta);
  bool push_special_in_call(TokenId id, OutputDelta& delta);
  void push_content(std::string_view text, OutputDelta& delta);
  void push_thought(std::string_view text, OutputDelta& delta);
  void push_thought_body(std::string_view text, OutputDelta& delta);
  void end_thought(OutputDelta& delta);
  void push_call(std::string_view text, OutputDelta& delta);
  void end_call(std::string_view closer, OutputDelta& delta);

  const tokenizer::Tokenizer* tokenizer_;
  tokenizer::StreamDecoder decoder_;
  TokenId channel_open_, channel_close_, call_open_, call_close_, response_close_, quote_;

  State state_ = State::kContent;
  std::string held_;  // white space before any content; it vanishes if only calls follow
  bool has_content_ = false;
  bool has_reasoning_ = false;
  bool has_calls_ = false;

  // Of the thought being read.
  bool in_head_ = false;  // before its first line break: the channel's name
  bool thought_begun_ = false;
  std::string head_;
  std::string space_;  // white space that shows only if more follows

  // Of the call being read.
  CallReader reader_;
  std::string call_;        // its text, quote tokens as kQuoteMark
  bool in_string_ = false;  // between two quote tokens
};

}  // namespace tandem::chat
