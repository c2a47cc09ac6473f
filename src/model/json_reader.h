#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/model/range.h"

namespace tandem::model {

/// Parses the text of a JSON file whose outermost value must be an object; kDataLoss names the
/// file. Bounded depth.
core::Result<boost::json::object> parse_json_object(std::string_view text, const std::string& file);

/// Reads members of one JSON object with bounds; a member that is null counts as missing. Failures
/// are one sentence that names the file, the member with its path, and what was expected:
/// kNotFound for a missing member, kDataLoss for one of a wrong type or value. The object must
/// outlive the reader.
class JsonReader {
 public:
  /// `prefix` is the path of `object` in the file, such as "text_config.", for messages.
  JsonReader(const boost::json::object& object, std::string file, std::string prefix = "")
      : object_(&object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  bool has(std::string_view key) const { return find(key) != nullptr; }
  /// Null when missing.
  const boost::json::value* find(std::string_view key) const;

  core::Result<int> required_int(std::string_view key, IntRange range) const;
  core::Result<int> optional_int(std::string_view key, IntRange range, int fallback) const;
  core::Result<double> optional_float(std::string_view key, FloatRange range,
                                      double fallback) const;
  core::Result<bool> optional_bool(std::string_view key, bool fallback) const;
  core::Result<std::string> required_string(std::string_view key) const;
  core::Result<std::string> optional_string(std::string_view key, std::string fallback) const;
  /// One integer or an array of any number of them.
  core::Result<std::vector<int>> optional_ints(std::string_view key, IntRange range) const;
  /// `count` values from one integer or an array with one per layer.
  core::Result<std::vector<int>> per_layer(std::string_view key, std::size_t count,
                                           IntRange range) const;
  core::Result<std::vector<std::string>> optional_strings(std::string_view key) const;
  /// A reader of a member that is an object; nothing when missing.
  core::Result<std::optional<JsonReader>> optional_object(std::string_view key) const;

  const std::string& file() const { return file_; }
  std::string name(std::string_view key) const { return prefix_ + std::string(key); }
  /// kDataLoss "FILE: MESSAGE".
  core::Status error(std::string_view message) const;
  core::Status bad_value(std::string_view key, std::string_view expected,
                         const boost::json::value& value) const;

 private:
  core::Result<int> to_int(std::string_view key, IntRange range,
                           const boost::json::value& value) const;

  const boost::json::object* object_;
  std::string file_;
  std::string prefix_;
};

}  // namespace tandem::model
