#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace tandem::model {

/// Accepted values of an integer hyper-parameter, both ends included.
struct IntRange {
  std::int64_t min = 0;
  std::int64_t max = 0;

  bool contains(std::int64_t value) const { return value >= min && value <= max; }
  /// For messages: "1 to 6", or the one value.
  std::string describe() const {
    return min == max ? fmt::format("{}", min) : fmt::format("{} to {}", min, max);
  }
};

/// Accepted values of a real hyper-parameter, both ends included.
struct FloatRange {
  double min = 0;
  double max = 0;

  /// False for what is not a number.
  bool contains(double value) const { return value >= min && value <= max; }
  std::string describe() const { return fmt::format("{:g} to {:g}", min, max); }
};

}  // namespace tandem::model
