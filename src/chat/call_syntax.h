#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tandem::chat {

/// Stands for the quote token <|"|> in the text of a call; no byte of UTF-8.
inline constexpr char kQuoteMark = '\xFF';

/// White space around the parts of a call and around thoughts: ASCII, as JSON's and two more.
inline constexpr std::string_view kAsciiSpace = " \t\n\r\v\f";
std::string_view strip_ascii(std::string_view text);

struct ParsedCall {
  std::string name;
  std::string arguments;  ///< compact JSON text of an object
};

/// Reads what a model writes between <|tool_call> and <tool_call|>: `call:NAME{key:value,...}`,
/// with quote tokens as kQuoteMark. Nothing if it does not parse whole. Keys may be bare, quoted or
/// JSON strings and keep order and repetition; numbers keep their spelling; true, false and null
/// may be written as in Python; any other bare value is a string. Nesting is bounded at 64.
std::optional<ParsedCall> parse_call(std::string_view text);

/// The text with quote marks spelled out as the token.
std::string spell_quotes(std::string_view text);

}  // namespace tandem::chat
