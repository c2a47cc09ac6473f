#include "tandem/core/json_escape.h"

namespace tandem::core {

void append_json_escaped(std::string_view text, std::string& out) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (const auto byte = static_cast<unsigned char>(c); byte < 0x20) {
          out.append("\\u00").append({kHexDigits[byte >> 4], kHexDigits[byte & 15]});
        } else {
          out += c;
        }
    }
  }
}

}  // namespace tandem::core
