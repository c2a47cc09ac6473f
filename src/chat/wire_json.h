#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string_view>

#include "tandem/core/status.h"

namespace tandem::chat {

/// Parses JSON text from outside (a request body, call arguments), with exact numbers: doubles are
/// correctly rounded, and integers beyond 64 bits keep their digits (see big_integer). Nesting is
/// bounded at 128. kInvalidArgument says what is wrong and at which byte. Never throws.
core::Result<boost::json::value> parse_json(std::string_view text);

/// The digits of an integer that fits no 64 bits. parse_json stores it as a string that begins with
/// the byte FF, which no string of a JSON text can hold.
std::optional<std::string_view> big_integer(const boost::json::value& value);

}  // namespace tandem::chat
