#pragma once

#include <string_view>

namespace tandem::grammar {

/// The regular expression of a JSON schema's string format, from end to end; empty for formats that
/// only describe. Years are 1000 to 2999.
std::string_view pattern_of_format(std::string_view format);

}  // namespace tandem::grammar
