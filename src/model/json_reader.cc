#include "tandem/model/json_reader.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "tandem/core/printable.h"

namespace tandem::model {

namespace json = boost::json;

namespace {

constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kMaxShownBytes = 64;

}  // namespace

core::Result<json::object> parse_json_object(std::string_view text, const std::string& file) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::error_code error;
  json::value value = json::parse(text, error, {}, options);
  if (error) {
    return core::data_loss(fmt::format("{}: is {}; download it again", file,
                                       core::why_not_json(text, error.message())));
  }
  if (!value.is_object()) {
    return core::data_loss(fmt::format("{}: is not a JSON object; download it again", file));
  }
  return std::move(value.get_object());
}

const json::value* JsonReader::find(std::string_view key) const {
  const json::value* value = object_->if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

core::Status JsonReader::error(std::string_view message) const {
  return core::data_loss(fmt::format("{}: {}", file_, message));
}

core::Status JsonReader::bad_value(std::string_view key, std::string_view expected,
                                   const json::value& value) const {
  return error(
      fmt::format("\"{}\" must be {}, but is {}; the file is damaged or of a kind that "
                  "Tandem does not know",
                  name(key), expected, core::printable(json::serialize(value), kMaxShownBytes)));
}

core::Result<int> JsonReader::to_int(std::string_view key, IntRange range,
                                     const json::value& value) const {
  json::error_code error;
  const auto number = value.to_number<std::int64_t>(error);
  if (error || !range.contains(number)) return bad_value(key, range.describe(), value);
  return static_cast<int>(number);
}

core::Result<int> JsonReader::required_int(std::string_view key, IntRange range) const {
  const json::value* value = find(key);
  if (value == nullptr) {
    return core::not_found(fmt::format(
        "{}: \"{}\" is missing; use the config.json of a Gemma 4 model", file_, name(key)));
  }
  return to_int(key, range, *value);
}

core::Result<int> JsonReader::optional_int(std::string_view key, IntRange range,
                                           int fallback) const {
  const json::value* value = find(key);
  if (value == nullptr) return fallback;
  return to_int(key, range, *value);
}

core::Result<double> JsonReader::optional_float(std::string_view key, FloatRange range,
                                                double fallback) const {
  const json::value* value = find(key);
  if (value == nullptr) return fallback;
  json::error_code error;
  const double number = value->to_number<double>(error);
  if (error || !range.contains(number)) return bad_value(key, range.describe(), *value);
  return number;
}

core::Result<bool> JsonReader::optional_bool(std::string_view key, bool fallback) const {
  const json::value* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) return bad_value(key, "true or false", *value);
  return value->get_bool();
}

core::Result<std::string> JsonReader::required_string(std::string_view key) const {
  if (!has(key)) {
    return core::not_found(fmt::format(
        "{}: \"{}\" is missing; use the config.json of a Gemma 4 model", file_, name(key)));
  }
  return optional_string(key, "");
}

core::Result<std::string> JsonReader::optional_string(std::string_view key,
                                                      std::string fallback) const {
  const json::value* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) return bad_value(key, "a string", *value);
  return std::string(value->get_string());
}

core::Result<std::vector<int>> JsonReader::optional_ints(std::string_view key,
                                                         IntRange range) const {
  std::vector<int> out;
  const json::value* value = find(key);
  if (value == nullptr) return out;
  if (!value->is_array()) {
    TANDEM_ASSIGN(const int single, to_int(key, range, *value));
    out.push_back(single);
    return out;
  }
  for (const json::value& entry : value->get_array()) {
    TANDEM_ASSIGN(const int number, to_int(key, range, entry));
    out.push_back(number);
  }
  return out;
}

core::Result<std::vector<int>> JsonReader::per_layer(std::string_view key, std::size_t count,
                                                     IntRange range) const {
  const json::value* value = find(key);
  if (value == nullptr || !value->is_array()) {
    TANDEM_ASSIGN(const int single, required_int(key, range));
    return std::vector<int>(count, single);
  }
  if (value->get_array().size() != count) {
    return error(fmt::format("\"{}\" has {} values where {} are expected, one per layer", name(key),
                             value->get_array().size(), count));
  }
  return optional_ints(key, range);
}

core::Result<std::vector<std::string>> JsonReader::optional_strings(std::string_view key) const {
  std::vector<std::string> out;
  const json::value* value = find(key);
  if (value == nullptr) return out;
  if (!value->is_array()) return bad_value(key, "an array of strings", *value);
  for (const json::value& entry : value->get_array()) {
    if (!entry.is_string()) return bad_value(key, "an array of strings", *value);
    out.emplace_back(entry.get_string());
  }
  return out;
}

core::Result<std::optional<JsonReader>> JsonReader::optional_object(std::string_view key) const {
  const json::value* value = find(key);
  if (value == nullptr) return std::optional<JsonReader>();
  if (!value->is_object()) return bad_value(key, "an object", *value);
  return std::optional(JsonReader(value->get_object(), file_, name(key) + "."));
}

}  // namespace tandem::model
