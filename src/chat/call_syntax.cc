#include "tandem/chat/call_syntax.h"

#include "tandem/core/json_escape.h"
#include "tandem/core/utf8.h"

namespace tandem::chat {

namespace {

constexpr std::size_t kMaxDepth = 64;
constexpr std::string_view kPrefix = "call:";
constexpr std::string_view kQuoteToken = "<|\"|>";
constexpr std::string_view kValueEnd = ",{}[]\xFF";
constexpr std::string_view kKeyEnd = ":,{}[]\xFF";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Whether all of `text` is a number as JSON spells them.
bool is_json_number(std::string_view text) {
  std::size_t i = 0;
  const auto digits = [&] {
    const std::size_t from = i;
    while (i < text.size() && is_digit(text[i])) ++i;
    return i - from;
  };
  if (i < text.size() && text[i] == '-') ++i;
  const std::size_t integer_at = i;
  const std::size_t integer_digits = digits();
  if (integer_digits == 0 || (integer_digits > 1 && text[integer_at] == '0')) return false;
  if (i < text.size() && text[i] == '.') {
    ++i;
    if (digits() == 0) return false;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (digits() == 0) return false;
  }
  return i == text.size();
}

/// Appends `text` as a JSON string.
void append_json_string(std::string_view text, std::string& out) {
  out += '"';
  core::append_json_escaped(text, out);
  out += '"';
}

bool is_one_of(char c, std::string_view set) {
  return set.find(c) != std::string_view::npos;
}

/// Appends a bare value as JSON.
void append_bare_value(std::string_view bare, std::string& out) {
  if (bare == "true" || bare == "True") {
    out += "true";
  } else if (bare == "false" || bare == "False") {
    out += "false";
  } else if (bare == "null" || bare == "None") {
    out += "null";
  } else if (is_json_number(bare)) {
    out += bare;
  } else {
    append_json_string(bare, out);
  }
}

}  // namespace

bool is_call_name(std::string_view name) {
  return !name.empty() && name.find_first_of(" \t\n\r\v\f{}[],:\xFF") == name.npos;
}

void CallReader::push(std::string_view text, std::string& arguments) {
  out_ = &arguments;
  while (!text.empty() && state_ != State::kBroken) text.remove_prefix(read(text));
}

std::size_t CallReader::read(std::string_view text) {
  switch (state_) {
    case State::kHead:
      return read_head(text);
    case State::kBare:
      return read_bare(text);
    case State::kQuoted:
      return read_quoted(text);
    case State::kString:
      return read_string(text);
    case State::kEscape:
    case State::kHex: {
      const bool is_good = state_ == State::kHex ? read_hex(text[0]) : read_escape(text[0]);
      if (!is_good) state_ = State::kBroken;
      return 1;
    }
    default:
      return read_between(text);
  }
}

std::size_t CallReader::read_head(std::string_view text) {
  const std::size_t brace = text.find('{');
  held_ += text.substr(0, brace);
  if (brace == std::string_view::npos) return text.size();
  std::string_view head = strip_ascii(held_);
  const bool has_prefix = head.starts_with(kPrefix);
  if (has_prefix) head = strip_ascii(head.substr(kPrefix.size()));
  if (!has_prefix || !is_call_name(head)) {
    state_ = State::kBroken;
  } else {
    name_ = head;
    open('{');
  }
  held_.clear();
  return brace + 1;
}

/// Reads white space and the one character after it.
std::size_t CallReader::read_between(std::string_view text) {
  const std::size_t at = text.find_first_not_of(kAsciiSpace);
  if (at == std::string_view::npos) return text.size();
  const char c = text[at];
  bool is_good = false;
  switch (state_) {
    case State::kKey:
      is_good = (may_close_ && close(c)) || begin_string(c, true) || begin_bare(c, true);
      break;
    case State::kColon:
      is_good = read_colon(c);
      break;
    case State::kValue:
      is_good =
          (may_close_ && close(c)) || begin_string(c, false) || open(c) || begin_bare(c, false);
      break;
    case State::kAfter:
      is_good = read_after(c);
      break;
    default:
      break;
  }
  if (!is_good) state_ = State::kBroken;
  return at + 1;
}

bool CallReader::read_colon(char c) {
  if (c != ':') return false;
  *out_ += ':';
  may_close_ = false;
  state_ = State::kValue;
  return true;
}

bool CallReader::read_after(char c) {
  if (c != ',') return close(c);
  *out_ += ',';
  may_close_ = false;
  state_ = open_.back() == '{' ? State::kKey : State::kValue;
  return true;
}

bool CallReader::open(char bracket) {
  if ((bracket != '{' && bracket != '[') || open_.size() > kMaxDepth) return false;
  open_ += bracket;
  *out_ += bracket;
  may_close_ = true;
  state_ = bracket == '{' ? State::kKey : State::kValue;
  return true;
}

bool CallReader::close(char bracket) {
  if (bracket != (open_.back() == '{' ? '}' : ']')) return false;
  open_.pop_back();
  *out_ += bracket;
  state_ = open_.empty() ? State::kDone : State::kAfter;
  return true;
}

bool CallReader::begin_bare(char c, bool is_key) {
  if (is_one_of(c, is_key ? kKeyEnd : kValueEnd)) return false;
  held_ = c;
  is_key_ = is_key;
  state_ = State::kBare;
  return true;
}

std::size_t CallReader::read_bare(std::string_view text) {
  const std::size_t end = text.find_first_of(is_key_ ? kKeyEnd : kValueEnd);
  held_ += text.substr(0, end);
  if (end == std::string_view::npos) return text.size();
  const std::string_view bare = strip_ascii(held_);
  is_key_ ? append_json_string(bare, *out_) : append_bare_value(bare, *out_);
  held_.clear();
  state_ = is_key_ ? State::kColon : State::kAfter;
  return end;
}

bool CallReader::begin_string(char c, bool is_key) {
  if (c != kQuoteMark && c != '"') return false;
  *out_ += '"';
  is_key_ = is_key;
  state_ = c == '"' ? State::kString : State::kQuoted;
  return true;
}

void CallReader::end_string() {
  *out_ += '"';
  state_ = is_key_ ? State::kColon : State::kAfter;
}

std::size_t CallReader::read_quoted(std::string_view text) {
  const std::size_t end = text.find(kQuoteMark);
  core::append_json_escaped(text.substr(0, end), *out_);
  if (end == std::string_view::npos) return text.size();
  end_string();
  return end + 1;
}

/// In a JSON string control characters need no escape.
std::size_t CallReader::read_string(std::string_view text) {
  const std::size_t end = text.find_first_of("\"\\\xFF");
  const std::string_view plain = text.substr(0, end);
  if (!plain.empty()) end_surrogate();
  core::append_json_escaped(plain, *out_);
  if (end == std::string_view::npos) return text.size();
  if (text[end] == '\\') {
    state_ = State::kEscape;
    return end + 1;
  }
  end_surrogate();
  if (text[end] == '"') {
    end_string();
  } else {
    core::append_json_escaped(kQuoteToken, *out_);
  }
  return end + 1;
}

bool CallReader::read_escape(char c) {
  static constexpr std::string_view kNames = "\"\\/bfnrt";
  static constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  if (c == 'u') {
    unit_ = 0;
    hex_digits_ = 0;
    state_ = State::kHex;
    return true;
  }
  const std::size_t i = kNames.find(c);
  if (i == std::string_view::npos) return false;
  end_surrogate();
  core::append_json_escaped(kMeanings.substr(i, 1), *out_);
  state_ = State::kString;
  return true;
}

bool CallReader::read_hex(char c) {
  const char lower = static_cast<char>(c | 0x20);
  if (is_digit(c)) {
    unit_ = unit_ * 16 + static_cast<char32_t>(c - '0');
  } else if (lower >= 'a' && lower <= 'f') {
    unit_ = unit_ * 16 + static_cast<char32_t>(lower - 'a' + 10);
  } else {
    return false;
  }
  if (++hex_digits_ == 4) {
    take_unit(unit_);
    state_ = State::kString;
  }
  return true;
}

/// A UTF-16 unit; a surrogate without its other half is U+FFFD.
void CallReader::take_unit(char32_t unit) {
  const bool is_high = unit >= 0xD800 && unit < 0xDC00;
  const bool is_low = unit >= 0xDC00 && unit < 0xE000;
  if (is_low && surrogate_ != 0) {
    unit = 0x10000 + ((surrogate_ - 0xD800) << 10) + (unit - 0xDC00);
    surrogate_ = 0;
  } else {
    end_surrogate();
    if (is_low) unit = core::kReplacementChar;
  }
  if (is_high) {
    surrogate_ = unit;
    return;
  }
  std::string utf8;
  core::append_utf8(unit, utf8);
  core::append_json_escaped(utf8, *out_);
}

void CallReader::end_surrogate() {
  if (surrogate_ != 0) core::append_utf8(core::kReplacementChar, *out_);
  surrogate_ = 0;
}

std::string_view strip_ascii(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kAsciiSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kAsciiSpace) - first + 1);
}

std::string spell_quotes(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == kQuoteMark) {
      out += kQuoteToken;
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace tandem::chat
