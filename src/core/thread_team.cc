#include "tandem/core/thread_team.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "tandem/core/cgroup.h"
#include "tandem/core/check.h"

namespace tandem::core {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// A futex wake costs about 40 us, so a member that expects work soon spins about as long first.
constexpr microseconds kLongestSpin{50};
constexpr microseconds kShortestSpin{2};

inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

/// Waits until `value` differs from `old`: spins for `budget`, then sleeps. All that happened
/// before the change is visible after.
void wait_for_change(const std::atomic<std::uint32_t>& value, std::uint32_t old,
                     Clock::time_point start, microseconds budget) {
  constexpr int kPollsPerClockRead = 32;
  do {
    for (int i = 0; i < kPollsPerClockRead; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      cpu_pause();
    }
  } while (Clock::now() - start < budget);
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

// The counters live on cache lines of their own: `epoch` is polled by idle workers, `phase` by
// members at a barrier, `arrived` and `next` are hit by every member.
struct ThreadTeam::State {
  struct alignas(64) SpinBudget {
    microseconds value = kLongestSpin;
  };

  explicit State(int members) : size(members), budgets(static_cast<std::size_t>(members)) {}

  const int size;
  std::vector<std::thread> workers;
  std::vector<SpinBudget> budgets;  // [member], each touched by its member only
  bool oversubscribed = false;      // more members than cores: spinning only steals time

  // Written by run() before it raises `epoch`, read by workers after they have seen the change.
  const std::function<void(Member)>* job = nullptr;
  bool stop = false;

  alignas(64) std::atomic<std::uint32_t> epoch{0};
  alignas(64) std::atomic<std::uint32_t> phase{0};
  Clock::time_point released;  // when the phase was raised last; written before it is
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<int> next{0};

  void worker(ThreadTeam& team, int index);
  void wait_at_barrier(int index);
};

void ThreadTeam::State::worker(ThreadTeam& team, int index) {
  std::uint32_t seen = 0;
  for (;;) {
    wait_for_change(epoch, seen, Clock::now(), oversubscribed ? kShortestSpin : kLongestSpin);
    ++seen;
    if (stop) return;
    (*job)(Member(team, index));
    wait_at_barrier(index);
  }
}

void ThreadTeam::State::wait_at_barrier(int index) {
  // Nobody can raise the phase before this member has arrived, so the relaxed load is current.
  const std::uint32_t old = phase.load(std::memory_order_relaxed);
  if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
    arrived.store(0, std::memory_order_relaxed);
    next.store(0, std::memory_order_relaxed);
    released = Clock::now();
    // A read-modify-write, not a store: it is ordered before notify_all's look at the sleepers.
    phase.fetch_add(1, std::memory_order_seq_cst);
    phase.notify_all();
    return;
  }
  // A member whose peers have lost their core waits in vain, so the budget follows what a wait
  // took. Not whether the member slept: with a budget once small, every wait would end in a sleep.
  microseconds& budget = budgets[static_cast<std::size_t>(index)].value;
  const Clock::time_point start = Clock::now();
  wait_for_change(phase, old, start, budget);
  const microseconds longest = oversubscribed ? kShortestSpin : kLongestSpin;
  const bool was_short = released - start < longest;
  budget = was_short ? std::min(longest, budget * 2) : std::max(kShortestSpin, budget / 2);
}

ThreadTeam::ThreadTeam(int size) : state_(std::make_unique<State>(size)) {
  TANDEM_CHECK(size >= 1, "a team has at least its caller");
  state_->oversubscribed = size > usable_cores();
  for (int i = 1; i < size; ++i) {
    state_->workers.emplace_back([this, i] { state_->worker(*this, i); });
  }
}

ThreadTeam::~ThreadTeam() {
  state_->stop = true;
  state_->epoch.fetch_add(1, std::memory_order_seq_cst);
  state_->epoch.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadTeam::size() const {
  return state_->size;
}

void ThreadTeam::run(const std::function<void(Member)>& job) {
  state_->next.store(0, std::memory_order_relaxed);
  if (state_->size == 1) {
    job(Member(*this, 0));
    return;
  }
  state_->job = &job;
  state_->epoch.fetch_add(1, std::memory_order_seq_cst);
  state_->epoch.notify_all();
  job(Member(*this, 0));
  state_->wait_at_barrier(0);
}

int ThreadTeam::Member::size() const {
  return team_->state_->size;
}

void ThreadTeam::Member::barrier() {
  team_->state_->wait_at_barrier(index_);
}

int ThreadTeam::Member::claim() {
  return team_->state_->next.fetch_add(1, std::memory_order_relaxed);
}

int usable_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return 1;
  const int cpus = std::max(1, CPU_COUNT(&mask));
  return std::min(cpus, cpu_quota().value_or(cpus));
}

}  // namespace tandem::core
