#include "tandem/core/thread_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace tandem::core {
namespace {

class ThreadTeamTest : public testing::TestWithParam<int> {};

TEST_P(ThreadTeamTest, EveryMemberRunsTheJobOnce) {
  ThreadTeam team(GetParam());
  std::vector<int> runs(static_cast<std::size_t>(team.size()));
  for (int job = 1; job <= 100; ++job) {
    team.run([&](ThreadTeam::Member m) {
      EXPECT_EQ(m.size(), GetParam());
      ++runs[static_cast<std::size_t>(m.index())];
    });
    for (const int count : runs) ASSERT_EQ(count, job);
  }
}

TEST_P(ThreadTeamTest, CallerIsMemberZero) {
  ThreadTeam team(GetParam());
  std::thread::id zero;
  team.run([&](ThreadTeam::Member m) {
    if (m.index() == 0) zero = std::this_thread::get_id();
  });
  EXPECT_EQ(zero, std::this_thread::get_id());
}

TEST_P(ThreadTeamTest, ClaimHandsOutEveryIndexOnceInEveryPhase) {
  constexpr int kItems = 57;
  constexpr int kPhases = 40;
  ThreadTeam team(GetParam());
  std::vector<std::atomic<int>> claims(kItems * kPhases);
  team.run([&](ThreadTeam::Member m) {
    for (int phase = 0; phase < kPhases; ++phase) {
      for (int i = m.claim(); i < kItems; i = m.claim()) {
        claims[static_cast<std::size_t>(phase * kItems + i)].fetch_add(1);
      }
      m.barrier();
    }
  });
  for (const auto& count : claims) EXPECT_EQ(count.load(), 1);
}

TEST_P(ThreadTeamTest, ClaimStartsAtZeroInEveryJob) {
  ThreadTeam team(GetParam());
  for (int job = 0; job < 50; ++job) {
    std::atomic<int> sum = 0;
    team.run([&](ThreadTeam::Member m) {
      for (int i = m.claim(); i < 10; i = m.claim()) sum += i;
    });
    ASSERT_EQ(sum.load(), 45);
  }
}

// Plain (not atomic) data written before a barrier is read by another member after it.
TEST_P(ThreadTeamTest, BarrierPublishesWhatWasWrittenBefore) {
  ThreadTeam team(GetParam());
  const int n = team.size();
  std::vector<int> values(static_cast<std::size_t>(n), 0);
  std::atomic<int> mismatches = 0;
  team.run([&](ThreadTeam::Member m) {
    for (int round = 1; round <= 500; ++round) {
      values[static_cast<std::size_t>(m.index())] = round;
      m.barrier();
      if (values[static_cast<std::size_t>((m.index() + 1) % n)] != round) ++mismatches;
      m.barrier();
    }
  });
  EXPECT_EQ(mismatches.load(), 0);
}

TEST_P(ThreadTeamTest, WakesFromSleep) {
  ThreadTeam team(GetParam());
  std::atomic<int> runs = 0;
  for (int job = 0; job < 5; ++job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than any spin
    team.run([&](ThreadTeam::Member m) {
      if (m.index() == job % m.size()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      m.barrier();
      ++runs;
    });
  }
  EXPECT_EQ(runs.load(), 5 * team.size());
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadTeamTest, testing::Values(1, 2, 3, 8));

TEST(ThreadTeam, ManyMembersOnFewCoresKeepMoving) {
  ThreadTeam team(usable_cores() * 8);
  std::atomic<int> passed = 0;
  team.run([&](ThreadTeam::Member m) {
    for (int i = 0; i < 50; ++i) m.barrier();
    ++passed;
  });
  EXPECT_EQ(passed.load(), team.size());
}

}  // namespace
}  // namespace tandem::core
