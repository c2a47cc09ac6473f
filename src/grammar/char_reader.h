#pragma once

#include <optional>
#include <string_view>

#include "tandem/core/utf8.h"

namespace tandem::grammar {

inline constexpr char32_t kEndOfText = 0xFFFFFFFF;

/// Reads a source text character by character. The text must outlive it.
class CharReader {
 public:
  explicit CharReader(std::string_view text) : text_(text) {}

  bool at_end() const { return position_ >= text_.size(); }
  std::size_t position() const { return position_; }
  /// The next character, kEndOfText at the end. Ill-formed UTF-8 reads as U+FFFD.
  char32_t peek() const {
    return at_end() ? kEndOfText : core::decode_utf8(text_.substr(position_)).code_point;
  }
  char32_t take() {
    if (at_end()) return kEndOfText;
    const core::Utf8Char c = core::decode_utf8(text_.substr(position_));
    position_ += c.length;
    return c.code_point;
  }
  bool skip(char32_t expected) {
    if (peek() != expected) return false;
    take();
    return true;
  }
  bool skip(std::string_view expected) {
    if (!text_.substr(position_).starts_with(expected)) return false;
    position_ += expected.size();
    return true;
  }

  /// Exactly `digits` hexadecimal digits.
  std::optional<char32_t> take_hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = take();
      const bool is_letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
      if (!is_letter && !(c >= '0' && c <= '9')) return std::nullopt;
      value = value * 16 + (is_letter ? (c | 0x20) - 'a' + 10 : c - '0');
    }
    return value;
  }

  /// A decimal number, or nothing; numbers above 100,000 read as 100,000.
  std::optional<int> take_count() {
    if (peek() < '0' || peek() > '9') return std::nullopt;
    int value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + static_cast<int>(take() - '0');
      if (value > 100'000) value = 100'000;
    }
    return value;
  }

 private:
  std::string_view text_;
  std::size_t position_ = 0;
};

}  // namespace tandem::grammar
