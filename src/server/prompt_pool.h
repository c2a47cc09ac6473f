#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tandem::server {

/// A few threads that turn request bodies into prompts, behind a queue bounded in jobs and bytes.
/// Jobs must not throw. Thread: any.
class PromptPool {
 public:
  PromptPool(int num_threads, std::size_t max_jobs, std::size_t max_bytes);
  ~PromptPool() { stop(); }
  PromptPool(const PromptPool&) = delete;
  PromptPool& operator=(const PromptPool&) = delete;

  /// Queues a job that holds about `bytes`. False, and the job is dropped, when that is too much or
  /// the pool has stopped.
  bool submit(std::size_t bytes, std::function<void()> job);
  /// Drops the jobs that wait and ends the threads once they have finished theirs.
  void stop();

 private:
  struct Job {
    std::size_t bytes = 0;
    std::function<void()> run;
  };

  void work();

  const std::size_t max_jobs_;
  const std::size_t max_bytes_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  std::size_t queued_bytes_ = 0;
  bool is_stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tandem::server
