#include "tandem/server/json_text.h"

#include <array>
#include <boost/json/serialize.hpp>

#include "tandem/chat/wire_json.h"

namespace tandem::server {
namespace {

/// For each byte: 0 if it stands for itself in a JSON string, the letter of its short escape, or
/// 'u' for \u00XX.
constexpr std::array<char, 256> kEscapes = [] {
  std::array<char, 256> escapes = {};
  for (int c = 0; c < 0x20; ++c) escapes[c] = 'u';
  escapes['\b'] = 'b';
  escapes['\f'] = 'f';
  escapes['\n'] = 'n';
  escapes['\r'] = 'r';
  escapes['\t'] = 't';
  escapes['"'] = '"';
  escapes['\\'] = '\\';
  escapes[0x7f] = 'u';
  return escapes;
}();

}  // namespace

void append_json_escaped(std::string& out, std::string_view text) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const char escape = kEscapes[byte];
    if (escape == 0) continue;
    out.append(text, begin, i - begin);
    begin = i + 1;
    out.push_back('\\');
    out.push_back(escape);
    if (escape == 'u') {
      out.append("00");
      out.push_back(kHexDigits[byte >> 4]);
      out.push_back(kHexDigits[byte & 15]);
    }
  }
  out.append(text, begin);
}

void append_json_string(std::string& out, std::string_view text) {
  out.push_back('"');
  append_json_escaped(out, text);
  out.push_back('"');
}

std::string exact_json(const boost::json::value& value) {
  if (const auto digits = chat::big_integer(value)) return std::string(*digits);
  std::string json;
  if (const auto* array = value.if_array()) {
    for (const auto& item : *array) json.append(json.empty() ? "[" : ",").append(exact_json(item));
    return json.empty() ? "[]" : json + "]";
  }
  if (const auto* object = value.if_object()) {
    for (const auto& [key, member] : *object) {
      json += json.empty() ? '{' : ',';
      append_json_string(json, key);
      json.append(":").append(exact_json(member));
    }
    return json.empty() ? "{}" : json + "}";
  }
  return boost::json::serialize(value);
}

std::string well_formed(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) c = '?';
  }
  return result;
}

}  // namespace tandem::server
