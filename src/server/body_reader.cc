#include "tandem/server/body_reader.h"

#include <fmt/format.h>

#include <boost/json/value.hpp>
#include <cmath>

#include "tandem/chat/wire_json.h"

namespace tandem::server {
namespace json = boost::json;

std::optional<std::string_view> text_of(const json::value& value) {
  const json::string* text = value.if_string();
  if (text == nullptr || chat::big_integer(value)) return std::nullopt;
  return std::string_view(*text);
}

std::variant<json::object, ApiError> parse_object(std::string_view body) {
  core::Result<json::value> value = chat::parse_json(body);
  if (!value.ok()) {
    return invalid_request("The body is " + value.status().message() + ".");
  }
  json::object* object = value->if_object();
  if (object == nullptr) return invalid_request("The body must be a JSON object.");
  return std::move(*object);
}

const json::value* BodyReader::find(std::string_view name) const {
  const json::value* value = object_.if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string BodyReader::path_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

void BodyReader::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void BodyReader::fail(std::string_view name, std::string_view rule) {
  const std::string path = path_of(name);
  fail(invalid_request(fmt::format("'{}' {}.", path, rule), path));
}

std::optional<bool> BodyReader::boolean(std::string_view name) {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (const bool* flag = value->if_bool()) return *flag;
  fail(name, "must be true or false");
  return std::nullopt;
}

std::optional<std::int64_t> BodyReader::integer(std::string_view name, std::int64_t min,
                                                std::int64_t max) {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  // Integers that do not fit arrive as other kinds of values: they are outside every range.
  std::optional<std::int64_t> number;
  if (const std::int64_t* exact = value->if_int64()) number = *exact;
  if (const double* real = value->if_double()) {  // 8.0 is an integer, as JSON Schema has it
    constexpr double kLargestExact = 1LL << 53;
    const bool is_whole = std::abs(*real) <= kLargestExact && *real == std::floor(*real);
    if (is_whole) number = static_cast<std::int64_t>(*real);
  }
  if (number && *number >= min && *number <= max) return *number;
  // Where any integer of 64 bits will do, both ends say so.
  using Limits = std::numeric_limits<std::int64_t>;
  const bool is_bounded = max != Limits::max() || min == Limits::min();
  fail(name, is_bounded ? fmt::format("must be an integer from {} to {}", min, max)
                        : fmt::format("must be an integer of at least {}", min));
  return std::nullopt;
}

std::optional<double> BodyReader::number(std::string_view name, double min, double max) {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) {
    const auto number = value->to_number<double>();
    if (number >= min && number <= max) return number;
  }
  fail(name, fmt::format("must be a number from {} to {}", min, max));
  return std::nullopt;
}

std::optional<std::string_view> BodyReader::string(std::string_view name) {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (const auto text = text_of(*value)) return text;
  fail(name, "must be a string");
  return std::nullopt;
}

}  // namespace tandem::server
