#include "tandem/model/key_reader.h"

#include <fmt/format.h>

#include <cmath>

namespace tandem::model {
namespace {

std::string describe(IntRange range) {
  return range.min == range.max ? fmt::format("{}", range.min)
                                : fmt::format("{} to {}", range.min, range.max);
}

bool contains(IntRange range, std::int64_t value) {
  return value >= range.min && value <= range.max;
}

}  // namespace

core::Result<int> KeyReader::required_int(std::string_view key, IntRange range) const {
  if (!file_.has(name(key))) {
    return error(fmt::format("key '{}' is missing; convert the model again", name(key)));
  }
  return optional_int(key, range, 0);
}

core::Result<int> KeyReader::optional_int(std::string_view key, IntRange range,
                                          int fallback) const {
  if (!file_.has(name(key))) return fallback;
  auto value = file_.get_uint(name(key));
  if (!value.ok()) return located(value.status());
  // A value beyond int64 is out of every range.
  const auto signed_value = static_cast<std::int64_t>(std::min<std::uint64_t>(*value, INT64_MAX));
  if (!contains(range, signed_value)) {
    return bad_value(key, describe(range), static_cast<double>(*value));
  }
  return static_cast<int>(signed_value);
}

core::Result<double> KeyReader::required_float(std::string_view key, FloatRange range) const {
  if (!file_.has(name(key))) {
    return error(fmt::format("key '{}' is missing; convert the model again", name(key)));
  }
  return optional_float(key, range, 0.0);
}

core::Result<double> KeyReader::optional_float(std::string_view key, FloatRange range,
                                               double fallback) const {
  if (!file_.has(name(key))) return fallback;
  auto value = file_.get_float(name(key));
  if (!value.ok()) return located(value.status());
  if (!std::isfinite(*value) || *value < range.min || *value > range.max) {
    return bad_value(key, fmt::format("{:g} to {:g}", range.min, range.max), *value);
  }
  return *value;
}

core::Result<std::vector<int>> KeyReader::per_layer(std::string_view key, std::size_t count,
                                                    IntRange range) const {
  if (!file_.has(name(key))) {
    return error(fmt::format("key '{}' is missing; convert the model again", name(key)));
  }
  auto values = file_.get_ints_or_scalar(name(key), count);
  if (!values.ok()) return located(values.status());
  std::vector<int> out;
  for (std::int64_t value : *values) {
    if (!contains(range, value)) {
      return bad_value(key, describe(range), static_cast<double>(value));
    }
    out.push_back(static_cast<int>(value));
  }
  return out;
}

core::Status KeyReader::error(std::string_view message) const {
  return core::data_loss(fmt::format("{}: {}", file_.path(), message));
}

core::Status KeyReader::bad_value(std::string_view key, std::string_view expected,
                                  double value) const {
  return error(
      fmt::format("key '{}' must be {}, but is {:g}; the file is damaged or of a kind "
                  "that Tandem does not know",
                  name(key), expected, value));
}

core::Status KeyReader::located(const core::Status& status) const {
  if (status.message().find(file_.path()) != std::string::npos) return status;
  return status.with_context(file_.path());
}

}  // namespace tandem::model
