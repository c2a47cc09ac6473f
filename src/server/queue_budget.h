#pragma once

#include <cstdint>
#include <mutex>

namespace tandem::server {

/// Counts the prompt tokens that wait for their first token, up to a limit. Thread: any.
class QueueBudget {
 public:
  /// limit 0: none.
  explicit QueueBudget(std::int64_t limit) : limit_(limit) {}

  /// Adds `tokens`, or returns false. What finds nobody waiting is always taken: a prompt above
  /// the limit is served when it is alone.
  bool take(std::int64_t tokens) {
    const std::lock_guard lock(mutex_);
    if (limit_ > 0 && waiting_ > 0 && tokens > limit_ - waiting_) return false;
    waiting_ += tokens;
    return true;
  }
  void give(std::int64_t tokens) {
    const std::lock_guard lock(mutex_);
    waiting_ -= tokens;
  }
  std::int64_t waiting() const {
    const std::lock_guard lock(mutex_);
    return waiting_;
  }

 private:
  const std::int64_t limit_;
  mutable std::mutex mutex_;
  std::int64_t waiting_ = 0;
};

}  // namespace tandem::server
