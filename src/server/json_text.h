#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>

namespace tandem::server {

/// Appends `text` as a JSON string in quotes. The text must be well-formed UTF-8; it is not
/// re-encoded, only quotes, backslashes and control characters are escaped.
void append_json_string(std::string& out, std::string_view text);
/// The same without the quotes.
void append_json_escaped(std::string& out, std::string_view text);

/// The JSON text of a value that chat::parse_json read; integers keep all digits.
std::string exact_json(const boost::json::value& value);

/// `text` with every byte that is not printable ASCII replaced by '?', for messages and logs that
/// quote bytes of a request.
std::string well_formed(std::string_view text);

}  // namespace tandem::server
