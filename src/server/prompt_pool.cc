#include "tandem/server/prompt_pool.h"

#include <algorithm>
#include <utility>

namespace tandem::server {

PromptPool::PromptPool(int num_threads, std::size_t max_jobs, std::size_t max_bytes)
    : max_jobs_(max_jobs), max_bytes_(max_bytes) {
  for (int i = 0; i < std::max(1, num_threads); ++i) threads_.emplace_back([this] { work(); });
}

bool PromptPool::submit(std::size_t bytes, std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_ || jobs_.size() >= max_jobs_ || bytes > max_bytes_ - queued_bytes_) {
      return false;
    }
    queued_bytes_ += bytes;
    jobs_.push_back({bytes, std::move(job)});
  }
  wake_.notify_one();
  return true;
}

void PromptPool::stop() {
  std::deque<Job> dropped;  // destroyed after the lock is released
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    dropped.swap(jobs_);
    queued_bytes_ = 0;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void PromptPool::work() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return is_stopped_ || !jobs_.empty(); });
      if (is_stopped_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      queued_bytes_ -= job.bytes;
    }
    job.run();
  }
}

}  // namespace tandem::server
