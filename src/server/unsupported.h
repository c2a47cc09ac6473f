#pragma once

#include <boost/json/value.hpp>
#include <span>
#include <string_view>

#include "tandem/server/body_reader.h"

namespace tandem::server {

/// A member that this server cannot honour, and the values that ask for nothing.
struct Unsupported {
  std::string_view name;
  bool (*is_neutral)(const boost::json::value& value);
};
/// Refuses each of `members` whose value asks for something.
void refuse_unsupported(BodyReader& reader, std::span<const Unsupported> members);

// Values that ask for nothing.
bool never(const boost::json::value& value);
bool is_false(const boost::json::value& value);
bool is_true(const boost::json::value& value);
bool is_one(const boost::json::value& value);
bool is_zero(const boost::json::value& value);
bool is_not_positive(const boost::json::value& value);
bool is_empty(const boost::json::value& value);

}  // namespace tandem::server
