#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace tandem::server {

/// The generations that have been accepted and not ended, by engine id. Thread: any.
class InFlight {
 public:
  /// False once closed.
  bool enter(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    return !is_closed_ && ids_.insert(id).second;
  }
  void leave(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    ids_.erase(id);
    if (ids_.empty()) is_empty_.notify_all();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  /// True when none was left before the time was up.
  bool wait_empty(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return is_empty_.wait_for(lock, limit, [this] { return ids_.empty(); });
  }
  std::vector<std::uint64_t> ids() const {
    const std::lock_guard lock(mutex_);
    return {ids_.begin(), ids_.end()};
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable is_empty_;
  std::unordered_set<std::uint64_t> ids_;
  bool is_closed_ = false;
};

}  // namespace tandem::server
