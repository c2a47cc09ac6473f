#include "tandem/chat/output_parser.h"

#include <utility>

namespace tandem::chat {

void OutputDelta::add(OutputPart part) {
  if (part.text.empty() && part.name.empty() && part.call == OutputPart::Call::kOpen) return;
  const bool continues = !parts.empty() && parts.back().kind == part.kind && part.name.empty() &&
                         parts.back().call == OutputPart::Call::kOpen;
  if (!continues) return parts.push_back(std::move(part));
  parts.back().text += part.text;
  parts.back().call = part.call;
}

void OutputDelta::add(OutputPart::Kind kind, std::string_view text) {
  if (!text.empty()) add({kind, std::string(text), {}});
}

void OutputMessage::add(OutputDelta delta) {
  for (OutputPart& part : delta.parts) {
    switch (part.kind) {
      case OutputPart::Kind::kReasoning:
        reasoning += part.text;
        break;
      case OutputPart::Kind::kContent:
        content += part.text;
        break;
      case OutputPart::Kind::kCall:
        if (!part.name.empty()) calls.push_back({std::move(part.name), {}});
        calls.back().arguments += part.text;
        if (part.call == OutputPart::Call::kBroken) calls.pop_back();
        break;
    }
  }
}

namespace {
constexpr auto kContent = OutputPart::Kind::kContent;
constexpr auto kReasoning = OutputPart::Kind::kReasoning;
}  // namespace

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
  if (!has_calls_) delta.add(kContent, std::exchange(held_, {}));
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
      push_call(text, delta);
      break;
  }
}

void OutputParser::push_special(TokenId id, OutputDelta& delta) {
  if (state_ == State::kCall && push_special_in_call(id, delta)) return;
  if (id == call_open_) {
    if (state_ == State::kThought) end_thought(delta);
    state_ = State::kCall;
    reader_ = {};
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
    push_call({&kQuoteMark, 1}, delta);
    in_string_ = !in_string_;
    return true;
  }
  if (in_string_ || (id != call_close_ && id != call_open_ && id != channel_open_)) {
    push_call(tokenizer_->piece(id), delta);
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
    delta.add(kContent, std::exchange(held_, {}));
  }
  delta.add(kContent, text);
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
    if (has_reasoning_) delta.add(kReasoning, "\n");
    delta.add(kReasoning, strip_ascii(text));
    thought_begun_ = has_reasoning_ = true;
  } else {
    delta.add(kReasoning, std::exchange(space_, {}));
    delta.add(kReasoning, text.substr(0, last + 1));
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

void OutputParser::push_call(std::string_view text, OutputDelta& delta) {
  call_ += text;
  OutputPart part{OutputPart::Kind::kCall, {}, {}};
  const bool had_name = !reader_.name().empty();
  reader_.push(text, part.text);
  if (!had_name) part.name = reader_.name();
  delta.add(std::move(part));
}

void OutputParser::end_call(std::string_view closer, OutputDelta& delta) {
  state_ = State::kContent;
  const std::string text = std::exchange(call_, {});
  const auto end_as = [&delta](OutputPart::Call end) {
    delta.add({OutputPart::Kind::kCall, {}, {}, end});
  };
  if (reader_.is_whole()) {
    has_calls_ = true;
    return end_as(OutputPart::Call::kWhole);
  }
  if (!reader_.name().empty()) end_as(OutputPart::Call::kBroken);
  push_content(tokenizer_->piece(call_open_), delta);
  push_content(spell_quotes(text), delta);
  push_content(closer, delta);
}

}  // namespace tandem::chat
