#pragma once

#include <boost/json/value.hpp>
#include <string>

namespace tandem::grammar {

/// Types of JSON values, as bits.
enum JsonType : unsigned {
  kNullType = 1,
  kBooleanType = 2,
  kIntegerType = 4,
  kFractionType = 8,  ///< numbers that are no integers; a schema's "number" is both
  kStringType = 16,
  kArrayType = 32,
  kObjectType = 64,
  kAllTypes = 127,
};

/// The type of a value.
unsigned type_of(const boost::json::value& value);
/// A value as compact JSON; numbers with the fewest digits that read back as they are.
std::string to_json(const boost::json::value& value);
/// Whether JSON Schema takes the values for one: 1 and 1.0 are equal.
bool is_equal(const boost::json::value& a, const boost::json::value& b);

}  // namespace tandem::grammar
