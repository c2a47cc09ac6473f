#include "tandem/model/key_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace tandem::model {

core::Result<int> KeyReader::required_int(std::string_view key, IntRange range) const {
  TANDEM_ASSIGN(const std::uint64_t value, file_.get_uint(name(key)));
  // Values beyond int64 are out of every range, too.
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  const auto signed_value = static_cast<std::int64_t>(std::min(value, kMax));
  if (!range.contains(signed_value)) return bad_value(key, range.describe(), value);
  return static_cast<int>(signed_value);
}

core::Result<int> KeyReader::optional_int(std::string_view key, IntRange range,
                                          int fallback) const {
  if (!file_.has(name(key))) return fallback;
  return required_int(key, range);
}

core::Result<double> KeyReader::required_float(std::string_view key, FloatRange range) const {
  TANDEM_ASSIGN(const double value, file_.get_float(name(key)));
  if (!range.contains(value)) return bad_value(key, range.describe(), value);
  return value;
}

core::Result<double> KeyReader::optional_float(std::string_view key, FloatRange range,
                                               double fallback) const {
  if (!file_.has(name(key))) return fallback;
  return required_float(key, range);
}

core::Result<std::vector<int>> KeyReader::per_layer(std::string_view key, std::size_t count,
                                                    IntRange range) const {
  TANDEM_ASSIGN(const auto values, file_.get_ints_or_scalar(name(key), count));
  std::vector<int> out;
  out.reserve(count);
  for (std::int64_t value : values) {
    if (!range.contains(value)) return bad_value(key, range.describe(), value);
    out.push_back(static_cast<int>(value));
  }
  return out;
}

core::Status KeyReader::error(std::string_view message) const {
  return core::data_loss(fmt::format("{}: {}", file_.path(), message));
}

core::Status KeyReader::bad_text(std::string_view key, std::string_view expected,
                                 std::string_view value) const {
  return error(
      fmt::format("metadata key \"{}\" must be {}, but is {}; the file is damaged or of a kind "
                  "that Tandem does not know",
                  name(key), expected, value));
}

}  // namespace tandem::model
