#include "tandem/core/printable.h"

#include "tandem/core/utf8.h"

namespace tandem::core {

bool is_printable_ascii(std::string_view text) {
  for (const char c : text) {
    if (c < 0x20 || c > 0x7e) return false;
  }
  return true;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char c = decode_utf8(text);
    if (c.kind != Utf8Char::Kind::kValid) return false;
    text.remove_prefix(c.length);
  }
  return true;
}

std::string why_not_json(std::string_view text, std::string_view error) {
  if (!is_utf8(text)) return "not UTF-8, which JSON must be";
  return "not JSON (" + std::string(error) + ")";
}

std::string printable(std::string_view text, std::size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= max_bytes) return out + "...";
    const Utf8Char c = decode_utf8(text);
    const bool is_valid = c.kind == Utf8Char::Kind::kValid;
    const auto byte = static_cast<unsigned char>(text[0]);
    if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\r') {
      out += "\\r";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (!is_valid || byte < 0x20 || byte == 0x7f) {
      constexpr char kDigits[] = "0123456789ABCDEF";
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    } else {
      out += text.substr(0, c.length);
    }
    text.remove_prefix(is_valid ? c.length : 1);
  }
  return out;
}

}  // namespace tandem::core
