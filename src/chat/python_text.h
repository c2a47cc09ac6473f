#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>

namespace tandem::chat {

// The model's template is Jinja, run by Python where the model was trained, and what it writes is
// what the model has seen. These are the Python behaviours that it relies on.

/// str.strip: the text without Unicode white space at either end.
std::string_view strip(std::string_view text);

/// str.lower, for sorting keys: every simple case mapping of Unicode 14 and that of U+0130; a final
/// sigma is not told from others.
std::string lower(std::string_view text);

/// str.upper of ASCII letters, for the names of JSON types.
std::string upper(std::string_view text);

/// str of a value: strings as they are, numbers as Python prints them (shortest round trip,
/// exponent below 1e-4 and from 1e16 on, integers of any size), None, True, False, lists and
/// objects as repr.
std::string to_python_str(const boost::json::value& value);

/// bool(value): false for null, false, zero and what is empty. Null stands for a missing member.
bool is_truthy(const boost::json::value* value);

}  // namespace tandem::chat
