#pragma once

#include <string>
#include <string_view>

namespace tandem::core {

/// Appends `text` as the inside of a JSON string: only quotes, backslashes and control characters
/// below U+0020 are escaped, with the short escapes where JSON has them (RFC 8259, 7).
void append_json_escaped(std::string_view text, std::string& out);

}  // namespace tandem::core
