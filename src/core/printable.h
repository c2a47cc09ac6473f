#pragma once

#include <string>
#include <string_view>

namespace tandem::core {

/// True when every byte is in 0x20..0x7E.
bool is_printable_ascii(std::string_view text);

/// True when the text is well-formed UTF-8.
bool is_utf8(std::string_view text);

/// Why a JSON parser that says `error` refuses the text, as the end of "... is ...".
std::string why_not_json(std::string_view text, std::string_view error);

/// `text` on one line for a message: bytes outside printable ASCII and UTF-8 become \xHH, line
/// breaks and tabs \n, \r, \t; cut after `max_bytes` with "..." at the border of a character.
std::string printable(std::string_view text, std::size_t max_bytes);

}  // namespace tandem::core
