#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::bench {

/// The samples of a /metrics page in Prometheus's text format. Lines that are not understood are
/// skipped: the page belongs to somebody else.
class PrometheusText {
 public:
  struct Sample {
    std::string name;
    std::map<std::string, std::string> labels;
    double value = 0.0;
  };

  static PrometheusText parse(std::string_view page);

  const std::vector<Sample>& samples() const { return samples_; }
  /// The sum of the samples of that name over all label sets (engines, models), or nothing.
  std::optional<double> sum(std::string_view name) const;
  /// The same by the value of one label that is a number >= 0 (up to 63): sums by index.
  std::vector<double> sum_by_index(std::string_view name, std::string_view label) const;

 private:
  std::vector<Sample> samples_;
};

}  // namespace tandem::bench
