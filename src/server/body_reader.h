#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "tandem/server/api_error.h"

namespace tandem::server {

/// The text of a JSON string; nothing for other values (chat::parse_json keeps large integers in
/// strings, they are no text).
std::optional<std::string_view> text_of(const boost::json::value& value);

/// Parses a request body, which must be a JSON object.
std::variant<boost::json::object, ApiError> parse_object(std::string_view body);

/// Reads typed fields of a JSON object and keeps the first error, which names the field by its
/// path. A field that is absent or null yields nothing. Thread: one.
class BodyReader {
 public:
  /// `path`: of the object inside the body, empty for the body itself.
  explicit BodyReader(const boost::json::object& object, std::string path = {})
      : object_(object), path_(std::move(path)) {}

  const boost::json::value* find(std::string_view name) const;
  std::optional<bool> boolean(std::string_view name);
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t min, std::int64_t max);
  std::optional<double> number(std::string_view name, double min, double max);
  std::optional<std::string_view> string(std::string_view name);

  std::string path_of(std::string_view name) const;
  /// Records that a field is wrong: "'path' RULE."
  void fail(std::string_view name, std::string_view rule);
  void fail(ApiError error);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  const boost::json::object& object_;
  std::string path_;
  std::optional<ApiError> error_;
};

}  // namespace tandem::server
