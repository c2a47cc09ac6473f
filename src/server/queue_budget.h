#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <mutex>

namespace tandem::server {

/// Counts the prompt tokens that wait for their first token, up to a limit, and how fast they
/// leave. Thread: any.
class QueueBudget {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kMaxWaitSeconds = 120;

  /// limit 0: none.
  explicit QueueBudget(std::int64_t limit) : limit_(limit) {}

  /// Adds `tokens`, or returns false. What finds nobody waiting is always taken: a prompt above
  /// the limit is served when it is alone.
  bool take(std::int64_t tokens, Clock::time_point now = Clock::now()) {
    const std::lock_guard lock(mutex_);
    if (limit_ > 0 && waiting_ > 0 && tokens > limit_ - waiting_) return false;
    if (waiting_ == 0) last_ = now;
    waiting_ += tokens;
    return true;
  }
  void give(std::int64_t tokens, Clock::time_point now = Clock::now()) {
    const std::lock_guard lock(mutex_);
    if (tokens == 0) return;
    waiting_ -= tokens;
    tokens_ = tokens_ * kMemory + static_cast<double>(tokens);
    seconds_ = seconds_ * kMemory + std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }
  std::int64_t waiting() const {
    const std::lock_guard lock(mutex_);
    return waiting_;
  }
  /// How long what waits now will wait, at the pace of the last ones, in whole seconds from 1 to
  /// kMaxWaitSeconds.
  int wait_seconds() const {
    const std::lock_guard lock(mutex_);
    if (tokens_ == 0) return 1;
    const double wait = static_cast<double>(waiting_) * seconds_ / tokens_;
    return std::clamp(static_cast<int>(std::ceil(std::min<double>(wait, kMaxWaitSeconds))), 1,
                      kMaxWaitSeconds);
  }

 private:
  static constexpr double kMemory = 31.0 / 32;  // the pace is that of about the last 32 prompts

  const std::int64_t limit_;
  mutable std::mutex mutex_;
  std::int64_t waiting_ = 0;
  Clock::time_point last_ = {};  // of the last change while somebody waits
  double tokens_ = 0, seconds_ = 0;
};

}  // namespace tandem::server
