#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "fake_engine.h"

namespace tandem::server::testing {

/// An engine with a thread that gives every request one token a step until its max_tokens, and
/// refuses more than `max_live` at a time. Everything it is told ends exactly once.
class AutoEngine final : public engine::Engine {
 public:
  explicit AutoEngine(std::size_t max_live, std::chrono::microseconds step_time)
      : max_live_(max_live), step_time_(step_time), thread_([this] { run(); }) {}
  ~AutoEngine() override {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  core::Status submit(engine::Request request, engine::EventSink sink) override {
    const std::lock_guard lock(mutex_);
    if (jobs_.size() >= max_live_) return core::resource_exhausted("too many requests");
    const std::uint64_t id = request.id;
    jobs_[id] = {std::move(request), std::move(sink), 0, false};
    wake_.notify_one();
    return {};
  }
  int context() const override { return 100'000; }

  void cancel(std::uint64_t id) override {
    const std::lock_guard lock(mutex_);
    if (const auto it = jobs_.find(id); it != jobs_.end()) it->second.is_cancelled = true;
    wake_.notify_one();
  }
  void begin_drain() override {}
  bool idle() const override { return num_live() == 0; }
  engine::EngineStats stats() const override { return {}; }

  std::size_t num_live() const {
    const std::lock_guard lock(mutex_);
    return jobs_.size();
  }
  std::size_t num_cancelled() const { return num_cancelled_; }

 private:
  struct Job {
    engine::Request request;
    engine::EventSink sink;
    int num_tokens = 0;
    bool is_cancelled = false;
  };
  struct Delivery {
    engine::EventSink sink;
    engine::Event event;
  };

  void run() {
    for (;;) {
      std::vector<Delivery> deliveries;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return is_stopping_ || !jobs_.empty(); });
        if (is_stopping_) return;
        for (auto it = jobs_.begin(); it != jobs_.end();) {
          deliveries.push_back(step(it->second));
          it = deliveries.back().event.finish ? jobs_.erase(it) : std::next(it);
        }
      }
      for (const Delivery& each : deliveries) each.sink(each.event);
      deliveries.clear();
      std::this_thread::sleep_for(step_time_);
    }
  }

  Delivery step(Job& job) {
    engine::Event event;
    event.request_id = job.request.id;
    if (job.is_cancelled) {
      event.finish = engine::FinishReason::kCancelled;
      ++num_cancelled_;
    } else {
      event.tokens = byte_tokens("x");
      event.text = "x";
      if (++job.num_tokens >= job.request.max_tokens) event.finish = engine::FinishReason::kLength;
    }
    event.usage.prompt_tokens = static_cast<int>(job.request.prompt.size());
    event.usage.completion_tokens = job.num_tokens;
    return {job.sink, std::move(event)};
  }

  const std::size_t max_live_;
  const std::chrono::microseconds step_time_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::uint64_t, Job> jobs_;
  std::atomic<std::size_t> num_cancelled_ = 0;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem::server::testing
