#include "tandem/engine/draft_policy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace tandem::engine {
namespace {

/// A machine and a text: seconds of a step, and the chance that draft i is accepted after those
/// before it.
struct World {
  std::function<double(const StepWork&)> seconds;
  std::vector<double> chance;
  double noise = 0.05;  // of step times, either way

  double expected_tokens(int k) const {
    double tokens = 1;
    double reach = 1;
    for (int i = 0; i < k; ++i) tokens += reach *= chance[static_cast<std::size_t>(i)];
    return tokens;
  }
  double rate(int sequences, int k) const {
    return sequences * expected_tokens(k) / seconds(StepWork::steady(sequences, k));
  }
  double best_rate(int sequences, int max_draft) const {
    double best = 0;
    for (int k = 0; k <= max_draft; ++k) best = std::max(best, rate(sequences, k));
    return best;
  }
};

/// Linear costs in units of an empty step.
World linear(double per_row, double per_draft_step, double per_draft_row,
             std::vector<double> chance) {
  World world;
  world.seconds = [=](const StepWork& w) {
    return 1e-3 *
           (1 + per_row * w.rows + per_draft_step * w.draft_steps + per_draft_row * w.draft_rows);
  };
  world.chance = std::move(chance);
  return world;
}

/// Runs a policy on a world with a fixed number of sequences.
class Simulation {
 public:
  Simulation(int sequences, int max_draft, unsigned seed = 1)
      : policy_(max_draft), histories_(static_cast<std::size_t>(sequences)), random_(seed) {}

  /// Tokens per second over `steps` steps.
  double run(const World& world, int steps) {
    double tokens = 0;
    double seconds = 0;
    std::vector<const AcceptanceHistory*> pointers;
    for (const auto& history : histories_) pointers.push_back(&history);
    std::uniform_real_distribution<double> unit(0, 1);
    const int n = static_cast<int>(histories_.size());
    for (int step = 0; step < steps; ++step) {
      const int next = policy_.choose(pointers);
      const StepWork work = {n, n * (1 + held_), next, n * next};
      const double time = world.seconds(work) * (1 + world.noise * (2 * unit(random_) - 1));
      policy_.observe_step(work, time);
      seconds += time;
      for (AcceptanceHistory& history : histories_) {
        int accepted = 0;
        while (accepted < held_ &&
               unit(random_) < world.chance[static_cast<std::size_t>(accepted)]) {
          ++accepted;
        }
        tokens += 1 + accepted;
        if (held_ > 0) policy_.observe_acceptance(history, held_, accepted);
      }
      held_ = next;
    }
    return tokens / seconds;
  }
  /// Two steps with k drafts each before the first one counts.
  void measure(const World& world, int k) {
    const StepWork work = StepWork::steady(static_cast<int>(histories_.size()), k);
    for (int i = 0; i < 2; ++i) policy_.observe_step(work, world.seconds(work));
  }
  /// Sequences end, others begin.
  void resize(int sequences) { histories_.resize(static_cast<std::size_t>(sequences)); }
  const DraftPolicy& policy() const { return policy_; }

 private:
  DraftPolicy policy_;
  std::vector<AcceptanceHistory> histories_;
  std::mt19937 random_;
  int held_ = 0;
};

const std::vector<double> kGood = {0.9, 0.88, 0.86, 0.84, 0.82, 0.8, 0.78, 0.76};
const std::vector<double> kFair = {0.71, 0.79, 0.84, 0.66, 0.6, 0.6, 0.6, 0.6};
const std::vector<double> kUseless(kMaxDraft, 0.02);
const std::vector<double> kBad = {0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1};

TEST(DraftPolicy, WithoutADrafterItIsZero) {
  Simulation simulation(4, 0);
  simulation.run(linear(0.1, 0, 0, kGood), 100);
  EXPECT_EQ(simulation.policy().current(), 0);
}

TEST(DraftPolicy, GrowsWhereRowsAreFree) {
  Simulation simulation(1, 6);
  simulation.run(linear(0.01, 0.02, 0.005, kGood), 400);
  EXPECT_GE(simulation.policy().current(), 5);
}

TEST(DraftPolicy, FallsToZeroWhereRowsCostWhatTheyYield) {
  // 32 streams on a machine that is bound by arithmetic: a row costs the same whatever it is.
  Simulation simulation(32, 6);
  const World world = linear(1.0, 0.5, 0.5, kFair);
  const double rate = simulation.run(world, 3000);
  EXPECT_EQ(simulation.policy().current(), 0);
  EXPECT_GT(rate, 0.98 * world.rate(32, 0));
}

TEST(DraftPolicy, NeverPaysMuchForDraftsThatAreRefused) {
  for (const int sequences : {1, 4, 32}) {
    Simulation simulation(sequences, 8);
    const World world = linear(0.05, 0.1, 0.02, kBad);
    simulation.run(world, 200);
    const double rate = simulation.run(world, 4000);
    EXPECT_EQ(simulation.policy().current(), 0);
    EXPECT_GT(rate, 0.985 * world.rate(sequences, 0)) << sequences;
  }
}

TEST(DraftPolicy, ComesCloseToTheBestFixedLengthOnManyMachines) {
  double worst = 1;
  for (const double per_row : {0.005, 0.02, 0.06, 0.2, 1.0}) {
    for (const double draft : {0.02, 0.1, 0.3}) {
      for (const auto& chance : {kGood, kFair, kBad}) {
        for (const int sequences : {1, 3, 8, 32}) {
          const World world = linear(per_row, draft, draft * per_row, chance);
          Simulation simulation(sequences, 6);
          simulation.run(world, 500);
          const double share = simulation.run(world, 3000) / world.best_rate(sequences, 6);
          worst = std::min(worst, share);
          EXPECT_GT(share, 0.92) << per_row << " " << draft << " " << chance[0] << " " << sequences;
        }
      }
    }
  }
  RecordProperty("worst_share", std::to_string(worst));
}

TEST(DraftPolicy, FindsItsWayOverSteps) {
  // 4 -> 5 rows cost 1.4 times, then 8 rows are as cheap as 5: kernels look like this.
  World world = linear(0, 0, 0, kGood);
  world.seconds = [](const StepWork& w) {
    const double rows = w.rows <= 1 ? 1.0 : w.rows <= 4 ? 1.1 : 1.54;
    return 1e-3 * (rows + 0.04 * w.draft_steps);
  };
  Simulation simulation(1, 6);
  simulation.run(world, 1000);
  EXPECT_GT(simulation.run(world, 3000), 0.94 * world.best_rate(1, 6));
}

TEST(DraftPolicy, NoticesWhenDraftsStartAndCeaseToPay) {
  for (const int sequences : {1, 32}) {
    Simulation simulation(sequences, 6);
    const World bad = linear(0.03, 0.05, 0.01, kUseless);
    const World good = linear(0.03, 0.05, 0.01, kGood);
    simulation.run(bad, 3000);
    EXPECT_EQ(simulation.policy().current(), 0);
    simulation.run(good, 3000);
    EXPECT_GE(simulation.policy().current(), 2);
    EXPECT_GT(simulation.run(good, 2000), 0.93 * good.best_rate(sequences, 6));
    simulation.run(bad, 300);
    EXPECT_EQ(simulation.policy().current(), 0);
  }
}

TEST(DraftPolicy, NoticesWhenTheMachineChanges) {
  Simulation simulation(8, 6);
  const World cheap = linear(0.01, 0.02, 0.002, kFair);
  const World dear = linear(1.0, 0.5, 0.5, kFair);
  simulation.run(cheap, 1000);
  EXPECT_GE(simulation.policy().current(), 3);
  simulation.run(dear, 500);
  EXPECT_EQ(simulation.policy().current(), 0);
  simulation.run(cheap, 6000);
  EXPECT_GE(simulation.policy().current(), 3);
}

TEST(DraftPolicy, TrialsAreRare) {
  for (const auto& chance : {kGood, kFair, kBad}) {
    Simulation simulation(16, 6);
    simulation.run(linear(0.05, 0.05, 0.01, chance), 10000);
    EXPECT_LT(static_cast<double>(simulation.policy().trial_steps()), 0.025 * 10000);
    EXPECT_GT(simulation.policy().trial_steps(), 10U);
  }
}

/// The demo pair on two cores of an EPYC and an E4B cut to 12 layers (docs/performance.md):
/// milliseconds of a step that verifies and makes k drafts a sequence, k = 0 ..
struct MeasuredMachine {
  int sequences;
  std::vector<double> ms;

  World world(std::vector<double> chance) const {
    World world;
    // A step that makes other drafts than it verifies costs half of each.
    world.seconds = [*this](const StepWork& w) {
      return 5e-4 * (at(w.rows - w.sequences) + at(w.draft_rows));
    };
    world.chance = std::move(chance);
    return world;
  }
  double at(int drafts) const { return ms[static_cast<std::size_t>(drafts / sequences)]; }
};

TEST(DraftPolicy, IsHardlyBelowTheBetterOfOnAndOffOnMeasuredMachines) {
  const std::vector<MeasuredMachine> machines = {
      {1, {0.954, 1.776, 2.433, 2.847, 3.549}},
      {8, {3.72, 6.88, 11.0, 13.9, 16.7}},
      {32, {12.9, 24.2, 35.9, 49.9, 62.7}},
      {1, {34.3, 41.7, 50.2, 57.8, 68.0}},
  };
  const std::vector<double> demo = {0.868, 0.8, 0.8, 0.7};
  const std::vector<double> reference = {0.71, 0.79, 0.84, 0.66};
  const std::vector<double> synthetic = {0.646, 0.647, 0.665, 0.6};
  for (const MeasuredMachine& machine : machines) {
    for (const auto& chance : {demo, reference, synthetic}) {
      const World world = machine.world(chance);
      const int n = machine.sequences;
      // As measure_steps() leaves it.
      Simulation simulation(n, 4);
      for (const int k : {0, 1, 2, 4}) simulation.measure(world, k);
      const double rate = simulation.run(world, 6000);
      const std::string where =
          fmt::format("{} sequences, {} ms, first chance {}", n, machine.ms[0], chance[0]);
      for (const int k : {0, 1, 2, 4})
        EXPECT_GT(rate, 0.98 * world.rate(n, k)) << where << " " << k;
      // Another length must be better by a margin.
      EXPECT_GT(rate, 0.96 * world.best_rate(n, 4)) << where;
    }
  }
}

// Each row costs the same, so that a trial of 8 drafts takes as long as nine plain steps, and the
// number of sequences changes, so that its cost is never well known.
TEST(DraftPolicy, TrialsLoseLittleWhereSequencesComeAndGo) {
  const World world = linear(0.37, 0.1, 0.01, {0.875, 0.83, 0.8, 0.79, 0.74, 0.67, 0.63, 0.63});
  double worst = 1;
  for (unsigned seed = 1; seed <= 5; ++seed) {
    Simulation simulation(32, 8, seed);
    std::mt19937 random(seed);
    double got = 0;
    double plain = 0;
    for (int i = 0; i < 75; ++i) {
      const int n = 24 + static_cast<int>(random() % 9);
      simulation.resize(n);
      got += simulation.run(world, 20);
      plain += world.rate(n, 0);
    }
    worst = std::min(worst, got / plain);
  }
  EXPECT_GT(worst, 0.991);
}

TEST(StepCost, InterpolatesWhatWasNeverMeasured) {
  StepCost cost;
  const auto truth = [](const StepWork& w) {
    return 2e-3 + 1e-4 * w.rows + 3e-4 * w.draft_steps + 2e-5 * w.draft_rows;
  };
  for (int i = 0; i < 20; ++i) {
    for (const int n : {1, 4, 16, 32}) {
      for (const int k : {0, 2, 5}) {
        cost.observe(StepWork::steady(n, k), truth(StepWork::steady(n, k)));
      }
    }
  }
  for (const int n : {2, 8, 24}) {
    for (int k = 0; k <= 6; ++k) {
      const StepWork work = StepWork::steady(n, k);
      EXPECT_NEAR(cost.predict(work) / truth(work), 1.0, 0.1) << n << " " << k;
    }
  }
}

TEST(StepCost, ALateStepCountsLittle) {
  StepCost cost;
  const StepWork work = StepWork::steady(4, 2);
  for (int i = 0; i < 20; ++i) cost.observe(work, 1e-3);
  cost.observe(work, 1.0);
  EXPECT_LT(cost.predict(work), 1.4e-3);
}

TEST(AcceptanceModel, LearnsByPositionAndSequence) {
  AcceptanceModel model;
  AcceptanceHistory easy;
  AcceptanceHistory hard;
  for (int i = 0; i < 200; ++i) {
    model.observe(easy, 3, i % 10 < 9 ? 3 : 1);
    model.observe(hard, 3, i % 10 < 3 ? 1 : 0);
  }
  const auto chances = model.conditional();
  const auto of_easy = AcceptanceModel::expected_tokens(easy, chances);
  const auto of_hard = AcceptanceModel::expected_tokens(hard, chances);
  EXPECT_GT(of_easy[3], 3.0);
  EXPECT_LT(of_hard[3], 2.0);
  EXPECT_EQ(of_easy[0], 1.0);
  for (std::size_t k = 1; k < of_easy.size(); ++k) EXPECT_GE(of_easy[k], of_easy[k - 1]);
}

}  // namespace
}  // namespace tandem::engine
