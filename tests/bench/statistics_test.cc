#include "tandem/bench/statistics.h"

#include <gtest/gtest.h>

#include "tandem/bench/progress.h"

namespace tandem::bench {
namespace {

TEST(Statistics, NoValuesHaveNoDistribution) {
  EXPECT_FALSE(summarize({}));
}

TEST(Statistics, OneValueIsEveryPercentile) {
  const auto d = summarize({7.0});
  ASSERT_TRUE(d);
  EXPECT_EQ(d->mean, 7.0);
  EXPECT_EQ(d->p50, 7.0);
  EXPECT_EQ(d->p99, 7.0);
}

TEST(Statistics, PercentilesAreInterpolatedInSortedOrder) {
  std::vector<double> values;
  for (int i = 100; i >= 0; --i) values.push_back(i);
  const auto d = summarize(values);
  EXPECT_DOUBLE_EQ(d->mean, 50.0);
  EXPECT_DOUBLE_EQ(d->p50, 50.0);
  EXPECT_DOUBLE_EQ(d->p90, 90.0);
  EXPECT_DOUBLE_EQ(d->p99, 99.0);
  EXPECT_DOUBLE_EQ(summarize({1.0, 2.0, 4.0, 8.0})->p50, 3.0);
}

TEST(Statistics, CoveredTimeCountsOverlapsOnce) {
  EXPECT_EQ(covered_time({}), 0.0);
  EXPECT_DOUBLE_EQ(covered_time({{1.0, 3.0}}), 2.0);
  EXPECT_DOUBLE_EQ(covered_time({{5.0, 6.0}, {1.0, 3.0}, {2.0, 4.0}}), 4.0);
  EXPECT_DOUBLE_EQ(covered_time({{1.0, 9.0}, {2.0, 3.0}, {8.0, 10.0}}), 9.0);
  EXPECT_DOUBLE_EQ(covered_time({{-3.0, -1.0}, {-2.0, 0.0}}), 3.0);
}

TEST(Progress, SaysWhatIsDoneAndLeft) {
  const std::string line = progress_line({30.0, 900.0, 50, 200, 32, 1, 6000.0});
  EXPECT_EQ(line,
            "[######..................] 50/200 done, 32 running, 1 errors, 200 tok/s, 0:30 (about "
            "1:28 left)");
  EXPECT_EQ(progress_line({0.0, 900.0, 0, 200, 0, 0, 0.0}),
            "[........................] 0/200 done, 0 running, 0 errors, 0 tok/s, 0:00");
}

}  // namespace
}  // namespace tandem::bench
