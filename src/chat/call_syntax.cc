#include "tandem/chat/call_syntax.h"

#include <algorithm>

#include "tandem/core/json_escape.h"
#include "tandem/tokenizer/utf8.h"

namespace tandem::chat {

namespace {

constexpr int kMaxDepth = 64;
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

/// Recursive descent over the value syntax; writes JSON as it goes. Each reader returns whether it
/// succeeded; after a failure nothing is of use.
class ValueReader {
 public:
  explicit ValueReader(std::string_view text) : text_(text) {}

  /// An object that is all of the text, but for white space after it.
  bool read_whole(std::string& out) {
    out_ = &out;
    if (!read_object(0)) return false;
    skip_space();
    return at_ == text_.size();
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool at_end() const { return at_ == text_.size(); }
  bool take(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void skip_space() { at_ = std::min(text_.find_first_not_of(kAsciiSpace, at_), text_.size()); }

  bool read_value(int depth) {
    skip_space();
    bool ok = false;
    switch (at_end() ? '\0' : peek()) {
      case kQuoteMark:
        ok = read_quoted();
        break;
      case '"':
        ok = read_json_string();
        break;
      case '{':
        ok = read_object(depth + 1);
        break;
      case '[':
        ok = read_array(depth + 1);
        break;
      default:
        ok = read_bare_value();
    }
    skip_space();
    return ok;
  }

  bool read_object(int depth) {
    if (depth > kMaxDepth || !take('{')) return false;
    *out_ += '{';
    skip_space();
    if (!take('}')) {
      bool first = true;
      do {
        if (!first) *out_ += ',';
        first = false;
        if (!read_key()) return false;
        *out_ += ':';
        if (!read_value(depth)) return false;
      } while (take(','));
      if (!take('}')) return false;
    }
    *out_ += '}';
    return true;
  }

  bool read_array(int depth) {
    if (depth > kMaxDepth || !take('[')) return false;
    *out_ += '[';
    skip_space();
    if (!take(']')) {
      bool first = true;
      do {
        if (!first) *out_ += ',';
        first = false;
        if (!read_value(depth)) return false;
      } while (take(','));
      if (!take(']')) return false;
    }
    *out_ += ']';
    return true;
  }

  bool read_key() {
    skip_space();
    bool ok = false;
    if (peek() == kQuoteMark) {
      ok = read_quoted();
    } else if (peek() == '"') {
      ok = read_json_string();
    } else {
      const std::string_view key = read_bare(kKeyEnd);
      ok = !key.empty();
      append_json_string(key, *out_);
    }
    skip_space();
    return ok && take(':');
  }

  bool read_quoted() {
    const std::size_t end = text_.find(kQuoteMark, at_ + 1);
    if (end == std::string_view::npos) return false;
    append_json_string(text_.substr(at_ + 1, end - at_ - 1), *out_);
    at_ = end + 1;
    return true;
  }

  std::string_view read_bare(std::string_view stops) {
    const std::size_t end = std::min(text_.find_first_of(stops, at_), text_.size());
    const std::string_view bare = strip_ascii(text_.substr(at_, end - at_));
    at_ = end;
    return bare;
  }

  bool read_bare_value() {
    const std::string_view bare = read_bare(kValueEnd);
    if (bare == "true" || bare == "True") {
      *out_ += "true";
    } else if (bare == "false" || bare == "False") {
      *out_ += "false";
    } else if (bare == "null" || bare == "None") {
      *out_ += "null";
    } else if (is_json_number(bare)) {
      *out_ += bare;
    } else {
      append_json_string(bare, *out_);
    }
    return !bare.empty();
  }

  /// A JSON string, in which control characters need no escape. A lone surrogate becomes U+FFFD.
  bool read_json_string() {
    std::string value;
    for (++at_; !at_end() && peek() != '"';) {
      const char c = text_[at_++];
      if (c != '\\') {
        value += c;
      } else if (!read_escape(value)) {
        return false;
      }
    }
    append_json_string(spell_quotes(value), *out_);
    return take('"');
  }

  bool read_escape(std::string& value) {
    static constexpr std::string_view kNames = "\"\\/bfnrt";
    static constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (at_end()) return false;
    const char c = text_[at_++];
    if (const std::size_t i = kNames.find(c); i != std::string_view::npos) {
      value += kMeanings[i];
      return true;
    }
    if (c != 'u') return false;
    std::optional<char32_t> unit = read_hex();
    if (!unit) return false;
    if (*unit >= 0xD800 && *unit < 0xDC00 && text_.substr(at_, 2) == "\\u") {
      const std::size_t before = at_;
      at_ += 2;
      const std::optional<char32_t> low = read_hex();
      if (low && *low >= 0xDC00 && *low < 0xE000) {
        unit = 0x10000 + ((*unit - 0xD800) << 10) + (*low - 0xDC00);
      } else {
        at_ = before;
      }
    }
    const bool is_surrogate = *unit >= 0xD800 && *unit < 0xE000;
    tokenizer::append_utf8(is_surrogate ? tokenizer::kReplacementChar : *unit, value);
    return true;
  }

  std::optional<char32_t> read_hex() {
    char32_t unit = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      const char lower = static_cast<char>(c | 0x20);
      if (is_digit(c)) {
        unit = unit * 16 + static_cast<char32_t>(c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        unit = unit * 16 + static_cast<char32_t>(lower - 'a' + 10);
      } else {
        return std::nullopt;
      }
    }
    return unit;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string* out_ = nullptr;
};

}  // namespace

std::string_view strip_ascii(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kAsciiSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kAsciiSpace) - first + 1);
}

std::optional<ParsedCall> parse_call(std::string_view text) {
  constexpr std::string_view kPrefix = "call:";
  text = strip_ascii(text);
  const std::size_t brace = text.find('{');
  if (!text.starts_with(kPrefix) || brace == std::string_view::npos) return std::nullopt;
  const std::string_view name = strip_ascii(text.substr(kPrefix.size(), brace - kPrefix.size()));
  if (name.empty() || name.find_first_of(" \t\n\r\v\f}[],:\xFF") != std::string_view::npos) {
    return std::nullopt;
  }
  ParsedCall call{std::string(name), {}};
  if (!ValueReader(text.substr(brace)).read_whole(call.arguments)) return std::nullopt;
  return call;
}

std::string spell_quotes(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == kQuoteMark) {
      out += "<|\"|>";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace tandem::chat
