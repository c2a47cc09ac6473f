#include "tandem/engine/measure_steps.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <vector>

#include "scripted_runner.h"
#include "tandem/engine/draft_policy.h"

namespace tandem::engine {
namespace {

testing::ScriptedRunner::Options runner_options() {
  testing::ScriptedRunner::Options options;
  options.max_sequences = 20;
  options.max_rows = 128;
  options.max_kept_rows = 100;
  options.page_tokens = 32;
  options.page_bytes = {3, 2};
  options.kv_memory_bytes = 400;
  return options;
}

/// A second passes whenever the time is asked for.
auto ticking_clock() {
  return [seconds = 0.0]() mutable {
    return seconds += 1.0;
  };
}

TEST(MeasureSteps, CoversOneEightAndAllSequencesWithAndWithoutDrafts) {
  testing::ScriptedRunner runner(runner_options());
  const auto measured = measure_steps(runner, ticking_clock(), 1e9);
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  EXPECT_EQ(runner.faults(), std::vector<std::string>());
  std::set<std::tuple<int, int, int, int>> works;
  for (const StepMeasurement& m : *measured) {
    EXPECT_EQ(m.seconds, 1.0);
    works.insert({m.work.sequences, m.work.rows, m.work.draft_steps, m.work.draft_rows});
  }
  const auto has = [&works](int n, int k) {
    return works.contains({n, n * (1 + k), k, n * k});
  };
  for (const int n : {1, 8, 20}) {
    for (const int k : {0, 1, 2, 4}) EXPECT_TRUE(has(n, k)) << n << " " << k;
  }
  EXPECT_EQ(works.size(), 12U);
}

TEST(MeasureSteps, LeavesOutStepsThatPrepareTheirShape) {
  testing::ScriptedRunner runner(runner_options());
  const auto clock = [&runner, seconds = 0.0]() mutable {
    return seconds += runner.was_first_of_shape() ? 100.0 : 1.0;
  };
  const auto measured = measure_steps(runner, clock, 1e9);
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(measured->size(), 24U);
  for (const StepMeasurement& m : *measured) EXPECT_EQ(m.seconds, 1.0);
}

TEST(MeasureSteps, StopsWhenItsTimeIsOver) {
  testing::ScriptedRunner runner(runner_options());
  const auto measured = measure_steps(runner, ticking_clock(), 9.0);
  ASSERT_TRUE(measured.ok());
  EXPECT_FALSE(measured->empty());
  EXPECT_LT(runner.steps(), 12);
}

TEST(MeasureSteps, KeepsToRowsPagesAndMemory) {
  auto options = runner_options();
  options.max_rows = 24;  // six prompts of four tokens
  options.max_kept_rows = 24;
  options.kv_memory_bytes = 14;  // two pages of both kinds
  testing::ScriptedRunner runner(options);
  const auto measured = measure_steps(runner, ticking_clock(), 1e9);
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(runner.faults(), std::vector<std::string>());
  int most = 0;
  for (const StepMeasurement& m : *measured) most = std::max(most, m.work.sequences);
  EXPECT_EQ(most, 2);
}

TEST(MeasureSteps, FailsWhereAStepFails) {
  testing::ScriptedRunner runner(runner_options());
  runner.fail_from(3);
  EXPECT_FALSE(measure_steps(runner, ticking_clock(), 1e9).ok());
}

// With costs from the start a policy drafts in its first step where that pays, and nowhere else.
TEST(MeasureSteps, APolicyStartsFromThem) {
  for (const double per_row : {0.01, 10.0}) {
    DraftPolicy policy(4);
    for (const int k : {0, 1, 2, 4}) {
      for (int i = 0; i < 2; ++i) {
        const StepWork work = StepWork::steady(1, k);
        policy.observe_step(work, 1.0 + per_row * work.rows + 0.01 * work.draft_steps);
      }
    }
    const AcceptanceHistory history;
    const std::vector<const AcceptanceHistory*> sequences = {&history};
    policy.choose(sequences);
    EXPECT_EQ(policy.current() > 0, per_row < 0.1) << per_row;
  }
}

}  // namespace
}  // namespace tandem::engine
