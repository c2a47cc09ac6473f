#include "tandem/grammar/schema_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "tandem/core/json_escape.h"

namespace tandem::grammar {
namespace {

namespace json = boost::json;

void append_json(const json::value& value, std::string& out) {
  switch (value.kind()) {
    case json::kind::string:
      out += '"';
      core::append_json_escaped(value.get_string(), out);
      out += '"';
      return;
    case json::kind::array: {
      const char* separator = "[";
      for (const json::value& element : value.get_array()) {
        out += std::exchange(separator, ",");
        append_json(element, out);
      }
      out += value.get_array().empty() ? "[]" : "]";
      return;
    }
    case json::kind::object: {
      const char* separator = "{";
      for (const auto& member : value.get_object()) {
        out += std::exchange(separator, ",");
        out += '"';
        core::append_json_escaped(member.key(), out);
        out += "\":";
        append_json(member.value(), out);
      }
      out += value.get_object().empty() ? "{}" : "}";
      return;
    }
    case json::kind::double_:
      fmt::format_to(std::back_inserter(out), "{}", value.get_double());
      return;
    case json::kind::int64:
      fmt::format_to(std::back_inserter(out), "{}", value.get_int64());
      return;
    case json::kind::uint64:
      fmt::format_to(std::back_inserter(out), "{}", value.get_uint64());
      return;
    case json::kind::bool_:
      out += value.get_bool() ? "true" : "false";
      return;
    case json::kind::null:
      out += "null";
  }
}

}  // namespace

unsigned type_of(const json::value& value) {
  if (value.is_null()) return kNullType;
  if (value.is_bool()) return kBooleanType;
  if (value.is_string()) return kStringType;
  if (value.is_array()) return kArrayType;
  if (value.is_object()) return kObjectType;
  const double number = value.to_number<double>();
  return number == std::floor(number) ? kIntegerType : kFractionType;
}

bool is_equal(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) return a.to_number<double>() == b.to_number<double>();
  if (const auto* x = a.if_array(), *y = b.if_array(); x != nullptr && y != nullptr) {
    return std::equal(x->begin(), x->end(), y->begin(), y->end(), is_equal);
  }
  if (const auto* x = a.if_object(), *y = b.if_object(); x != nullptr && y != nullptr) {
    return x->size() == y->size() && std::all_of(x->begin(), x->end(), [&](const auto& member) {
             const json::value* other = y->if_contains(member.key());
             return other != nullptr && is_equal(member.value(), *other);
           });
  }
  return a == b;
}

std::string to_json(const json::value& value) {
  std::string out;
  append_json(value, out);
  return out;
}

}  // namespace tandem::grammar
