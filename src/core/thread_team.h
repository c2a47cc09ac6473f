#pragma once

#include <functional>
#include <memory>

namespace tandem::core {

/// A fixed team of threads that runs one job at a time; the caller is member 0. Workers spin a
/// short while between jobs and then sleep, so an idle server costs nothing.
///
///   team.run([&](ThreadTeam::Member m) { phase_one(m); m.barrier();
///     for (int i = m.claim(); i < n; i = m.claim()) work(i); });
///
/// Thread: run() from one thread at a time. The job must not throw.
class ThreadTeam {
 public:
  class Member {
   public:
    int index() const { return index_; }
    int size() const;
    /// All members wait for each other; also resets the counter behind claim().
    void barrier();
    /// The next unclaimed index of the current phase (from the last barrier on), counted from 0.
    /// Who claims what never changes a result, only the balance.
    int claim();

   private:
    friend class ThreadTeam;
    Member(ThreadTeam& team, int index) : team_(&team), index_(index) {}
    ThreadTeam* team_;
    int index_;
  };

  /// size >= 1 members.
  explicit ThreadTeam(int size);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const;
  void run(const std::function<void(Member)>& job);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Cores this process may run on, no more than its quota of time (core/cgroup.h).
int usable_cores();

}  // namespace tandem::core
