#pragma once

#include <boost/json/value.hpp>

namespace tandem::testing {

/// Whether a value is valid under a JSON schema: the plain words of the specification for the
/// keywords of the golden schemas. `root`: the document for references.
bool is_valid(const boost::json::value& value, const boost::json::value& schema,
              const boost::json::value& root);

}  // namespace tandem::testing
