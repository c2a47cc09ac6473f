#include "tandem/bench/statistics.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace tandem::bench {
namespace {

/// `sorted` must not be empty; `share` in [0, 1].
double percentile(const std::vector<double>& sorted, double share) {
  const double rank = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(rank);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = rank - static_cast<double>(below);
  return sorted[below] + (sorted[above] - sorted[below]) * weight;
}

}  // namespace

std::optional<Distribution> summarize(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  Distribution out;
  out.mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  out.p50 = percentile(values, 0.50);
  out.p90 = percentile(values, 0.90);
  out.p99 = percentile(values, 0.99);
  return out;
}

double covered_time(std::vector<std::pair<double, double>> intervals) {
  std::sort(intervals.begin(), intervals.end());
  double total = 0.0;
  double covered_until = 0.0;
  bool is_first = true;
  for (const auto& [begin, end] : intervals) {
    const double from = is_first ? begin : std::max(begin, covered_until);
    total += std::max(0.0, end - from);
    covered_until = is_first ? end : std::max(covered_until, end);
    is_first = false;
  }
  return total;
}

}  // namespace tandem::bench
