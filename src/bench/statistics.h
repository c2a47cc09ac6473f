#pragma once

#include <optional>
#include <utility>
#include <vector>

namespace tandem::bench {

struct Distribution {
  double mean = 0.0, p50 = 0.0, p90 = 0.0, p99 = 0.0;
};

/// Nothing for no values. Percentiles are interpolated between the two nearest values, so that
/// p50 of an even number of values is the mean of the middle two.
std::optional<Distribution> summarize(std::vector<double> values);

/// Length of the union of [begin, end] intervals, in their unit.
double covered_time(std::vector<std::pair<double, double>> intervals);

}  // namespace tandem::bench
