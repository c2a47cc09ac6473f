#include "tandem/chat/output_parser.h"

#include <utility>

namespace tandem::chat {

OutputParser::OutputParser(const tokenizer::Tokenizer& tokenizer)
    : tokenizer_(&tokenizer),
      decoder_(tokenizer),
      channel_open_(tokenizer.find("<|channel>")),
      channel_close_(tokenizer.find("<channel|>")),
      call_open_(tokenizer.find("<|tool_call>")),
      call_close_(tokenizer.find("<tool_call|>")),
      response_close_(tokenizer.find("<tool_response|>")),
      quote_(tokenizer.find("<|\"|>")) {}

OutputDelta OutputParser::push(std::span<const TokenId> ids) {
  OutputDelta delta;
  for (const TokenId id : ids) push(id, delta);
  return delta;
}

void OutputParser::push(TokenId id, OutputDelta& delta) {
  const tokenizer::TokenKind kind = tokenizer_->kind(id);
  if (kind != tokenizer::TokenKind::kControl && kind != tokenizer::TokenKind::kUserDefined) {
    push_text(decoder_.push(id), delta);
    return;
  }
  push_text(decoder_.flush(), delta);  // a character does not go on across a special token
  push_special(id, delta);
}

OutputDelta OutputParser::finish() {
  OutputDelta delta;
  push_text(decoder_.flush(), delta);
  if (state_ == State::kCall) end_call("", delta);
  if (state_ == State::kThought) end_thought(delta);
  if (!has_calls_) delta.content += std::exchange(held_, {});
  return delta;
}

void OutputParser::push_text(std::string_view text, OutputDelta& delta) {
  if (text.empty()) return;
  switch (state_) {
    case State::kContent:
      push_content(text, delta);
      break;
    case State::kThought:
      push_thought(text, delta);
      break;
    case State::kCall:
      call_ += text;
      break;
  }
}

void OutputParser::push_special(TokenId id, OutputDelta& delta) {
  if (state_ == State::kCall && push_special_in_call(id, delta)) return;
  if (id == call_open_) {
    if (state_ == State::kThought) end_thought(delta);
    state_ = State::kCall;
    call_.clear();
    in_string_ = false;
  } else if (id == channel_open_) {
    if (state_ == State::kThought) end_thought(delta);
    state_ = State::kThought;
    in_head_ = true;
    thought_begun_ = false;
  } else if (id == channel_close_) {
    if (state_ == State::kThought) end_thought(delta);
  } else if (id == quote_ || id == call_close_ || id == response_close_) {
    push_text(tokenizer_->piece(id), delta);
  }
  // Any other special token shows nothing.
}

/// False when the token ended the call and is still to be handled.
bool OutputParser::push_special_in_call(TokenId id, OutputDelta& delta) {
  if (id == quote_) {
    call_ += kQuoteMark;
    in_string_ = !in_string_;
    return true;
  }
  if (in_string_ || (id != call_close_ && id != call_open_ && id != channel_open_)) {
    call_ += tokenizer_->piece(id);
    return true;
  }
  const bool is_closer = id == call_close_;
  end_call(is_closer ? tokenizer_->piece(id) : std::string_view(), delta);
  return is_closer;
}

void OutputParser::push_content(std::string_view text, OutputDelta& delta) {
  if (!has_content_) {
    if (text.find_first_not_of(kAsciiSpace) == std::string_view::npos) {
      held_ += text;
      return;
    }
    has_content_ = true;
    delta.content += std::exchange(held_, {});
  }
  delta.content += text;
}

void OutputParser::push_thought(std::string_view text, OutputDelta& delta) {
  if (in_head_) {
    const std::size_t line_break = text.find('\n');
    head_ += text.substr(0, line_break);
    if (line_break == std::string_view::npos) return;
    in_head_ = false;
    const std::string head = std::exchange(head_, {});
    if (strip_ascii(head) != "thought") push_thought_body(head + "\n", delta);
    text.remove_prefix(line_break + 1);
  }
  push_thought_body(text, delta);
}

void OutputParser::push_thought_body(std::string_view text, OutputDelta& delta) {
  const std::size_t last = text.find_last_not_of(kAsciiSpace);
  if (last == std::string_view::npos) {
    if (thought_begun_) space_ += text;
    return;
  }
  if (!thought_begun_) {
    if (has_reasoning_) delta.reasoning += '\n';
    delta.reasoning += strip_ascii(text);
    thought_begun_ = has_reasoning_ = true;
  } else {
    delta.reasoning += std::exchange(space_, {});
    delta.reasoning += text.substr(0, last + 1);
  }
  space_ = text.substr(last + 1);
}

void OutputParser::end_thought(OutputDelta& delta) {
  state_ = State::kContent;
  if (std::exchange(in_head_, false)) {
    // Cut off within the channel's name; the beginning of `thought` is no text.
    const std::string head = std::exchange(head_, {});
    if (!std::string_view("thought").starts_with(strip_ascii(head))) {
      push_thought_body(head, delta);
    }
  }
  space_.clear();
}

void OutputParser::end_call(std::string_view closer, OutputDelta& delta) {
  state_ = State::kContent;
  const std::string text = std::exchange(call_, {});
  if (auto call = parse_call(text)) {
    delta.calls.push_back(std::move(*call));
    has_calls_ = true;
    return;
  }
  push_content(tokenizer_->piece(call_open_), delta);
  push_content(spell_quotes(text), delta);
  push_content(closer, delta);
}

}  // namespace tandem::chat
