#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace tandem::server {

class Generation;

/// The generations that have been accepted and not ended, by id. Thread: any.
class InFlight {
 public:
  /// False once closed.
  bool enter(std::uint64_t id, std::weak_ptr<Generation> generation) {
    const std::lock_guard lock(mutex_);
    return !is_closed_ && generations_.emplace(id, std::move(generation)).second;
  }
  void leave(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    generations_.erase(id);
    if (generations_.empty()) is_empty_.notify_all();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  /// True when none was left before the time was up.
  bool wait_empty(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return is_empty_.wait_for(lock, limit, [this] { return generations_.empty(); });
  }
  std::vector<std::shared_ptr<Generation>> all() const {
    std::vector<std::shared_ptr<Generation>> found;  // may be the last to hold one: dropped outside
    const std::lock_guard lock(mutex_);
    for (const auto& [id, generation] : generations_) {
      if (auto alive = generation.lock()) found.push_back(std::move(alive));
    }
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable is_empty_;
  std::unordered_map<std::uint64_t, std::weak_ptr<Generation>> generations_;
  bool is_closed_ = false;
};

}  // namespace tandem::server
