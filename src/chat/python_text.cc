#include "tandem/chat/python_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "tandem/chat/lower_case_table.h"
#include "tandem/chat/wire_json.h"
#include "tandem/core/utf8.h"

namespace tandem::chat {

namespace {

using core::append_utf8;
using core::decode_utf8;
using core::Utf8Char;

/// str.isspace.
bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

/// The last character; the text must not be empty.
Utf8Char decode_last(std::string_view text) {
  std::size_t start = text.size() - 1;
  while (start > 0 && text.size() - start < 4 && (text[start] & 0xC0) == 0x80) --start;
  const Utf8Char c = decode_utf8(text.substr(start));
  // Ill-formed bytes are no white space; that is all that is asked of them here.
  return c.length == text.size() - start ? c : Utf8Char{Utf8Char::Kind::kInvalid, 1, U'\xFFFD'};
}

char32_t lower_char(char32_t c) {
  const auto range = std::lower_bound(
      std::begin(kLowerCaseRanges), std::end(kLowerCaseRanges), c,
      [](const LowerCaseRange& r, char32_t code_point) { return r.last < code_point; });
  if (range == std::end(kLowerCaseRanges) || c < range->first) return c;
  if ((c - range->first) % range->stride != 0) return c;
  return static_cast<char32_t>(static_cast<std::int32_t>(c) + range->offset);
}

/// float.__repr__: the shortest digits that read back as the same number, laid out as Python does.
std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[32];
  const auto end = std::to_chars(std::begin(buffer), std::end(buffer), std::fabs(value),
                                 std::chars_format::scientific)
                       .ptr;
  const std::string_view text(buffer, static_cast<std::size_t>(end - buffer));  // d.ddde+XX
  const std::size_t e = text.find('e');
  std::string digits(text.substr(0, e));
  std::erase(digits, '.');
  int exponent = 0;
  const std::size_t exponent_at = e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(text.data() + exponent_at, end, exponent);

  std::string out = std::signbit(value) ? "-" : "";
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(-exponent - 1, '0') + digits;
  if (count <= exponent + 1) return out + digits + std::string(exponent + 1 - count, '0') + ".0";
  return out + digits.substr(0, exponent + 1) + "." + digits.substr(exponent + 1);
}

/// str.__repr__. Of the characters beyond Latin-1 only separators are taken as unprintable.
std::string string_repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  while (!text.empty()) {
    const Utf8Char c = decode_utf8(text);
    const char32_t code = c.code_point;
    if (code == static_cast<unsigned char>(quote) || code == U'\\') {
      out += '\\';
      out += static_cast<char>(code);
    } else if (code == U'\n' || code == U'\r' || code == U'\t') {
      out += code == U'\n' ? "\\n" : code == U'\r' ? "\\r" : "\\t";
    } else if (code < 0x20 || (code >= 0x7F && code <= 0xA0) || code == 0xAD) {
      out += fmt::format("\\x{:02x}", static_cast<std::uint32_t>(code));
    } else if (code != U' ' && is_space(code)) {
      out += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(code));
    } else {
      append_utf8(code, out);
    }
    text.remove_prefix(c.length);
  }
  return out + quote;
}

std::string repr(const boost::json::value& value) {
  if (value.is_string() && !big_integer(value)) return string_repr(value.get_string());
  return to_python_str(value);
}

}  // namespace

std::string_view strip(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char c = decode_utf8(text);
    if (!is_space(c.code_point)) break;
    text.remove_prefix(c.length);
  }
  while (!text.empty()) {
    const Utf8Char c = decode_last(text);
    if (!is_space(c.code_point)) break;
    text.remove_suffix(c.length);
  }
  return text;
}

std::string lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char c = decode_utf8(text);
    if (c.code_point == 0x130) {
      out += "i\xCC\x87";
    } else {
      append_utf8(lower_char(c.code_point), out);
    }
    text.remove_prefix(c.length);
  }
  return out;
}

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return out;
}

std::string to_python_str(const boost::json::value& value) {
  std::string out;
  switch (value.kind()) {
    case boost::json::kind::null:
      return "None";
    case boost::json::kind::bool_:
      return value.get_bool() ? "True" : "False";
    case boost::json::kind::int64:
      return fmt::format("{}", value.get_int64());
    case boost::json::kind::uint64:
      return fmt::format("{}", value.get_uint64());
    case boost::json::kind::double_:
      return float_repr(value.get_double());
    case boost::json::kind::string:
      return std::string(big_integer(value).value_or(std::string_view(value.get_string())));
    case boost::json::kind::array:
      for (const auto& item : value.get_array()) out += (out.empty() ? "" : ", ") + repr(item);
      return "[" + out + "]";
    case boost::json::kind::object:
      for (const auto& [key, member] : value.get_object()) {
        out += (out.empty() ? "" : ", ") + string_repr(key) + ": " + repr(member);
      }
      return "{" + out + "}";
  }
  return out;
}

bool is_truthy(const boost::json::value* value) {
  if (value == nullptr) return false;
  switch (value->kind()) {
    case boost::json::kind::null:
      return false;
    case boost::json::kind::bool_:
      return value->get_bool();
    case boost::json::kind::int64:
      return value->get_int64() != 0;
    case boost::json::kind::uint64:
      return value->get_uint64() != 0;
    case boost::json::kind::double_:
      return value->get_double() != 0.0;
    case boost::json::kind::string:
      return !value->get_string().empty();
    case boost::json::kind::array:
      return !value->get_array().empty();
    case boost::json::kind::object:
      return !value->get_object().empty();
  }
  return false;
}

}  // namespace tandem::chat
