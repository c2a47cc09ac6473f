#include "tandem/engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "scripted_runner.h"

namespace tandem::engine {
namespace {

using testing::ScriptedRunner;

/// Collects the events of many requests from the engine's thread.
class Collector {
 public:
  struct Record {
    std::vector<TokenId> tokens;
    std::string text;
    std::optional<FinishReason> finish;
    Usage usage;
    int events_after_finish = 0;
  };

  EventSink sink() {
    return [this](const Event& event) {
      const std::lock_guard lock(mutex_);
      Record& r = records_[event.request_id];
      if (r.finish) ++r.events_after_finish;
      r.tokens.insert(r.tokens.end(), event.tokens.begin(), event.tokens.end());
      r.text += event.text;
      r.usage = event.usage;
      if (event.finish) {
        r.finish = event.finish;
        ++finished_;
      }
      changed_.notify_all();
    };
  }

  bool wait_finished(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return finished_ >= count; });
  }
  bool wait_tokens(std::uint64_t id, std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60),
                             [&] { return records_[id].tokens.size() >= count; });
  }
  Record get(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    return records_[id];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Record> records_;
  int finished_ = 0;
};

/// A runner that can be held inside a step.
class GatedRunner final : public model::StepRunner {
 public:
  explicit GatedRunner(const ScriptedRunner::Options& options) : inner_(options) {}
  const Limits& limits() const override { return inner_.limits(); }
  void set_slot(int slot, const kernels::SamplingParams& sampling) override {
    inner_.set_slot(slot, sampling);
  }
  core::Result<kernels::StepResult> step(const kernels::StepPlan& plan,
                                         const std::function<void()>& meanwhile) override {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return is_open_; });
    return inner_.step(plan, meanwhile);
  }
  void set_open(bool is_open) {
    const std::lock_guard lock(mutex_);
    is_open_ = is_open;
    opened_.notify_all();
  }
  void fail_now() {
    const std::lock_guard lock(mutex_);
    inner_.fail_from(0);
  }
  std::vector<std::string> faults() {
    const std::lock_guard lock(mutex_);
    return inner_.faults();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = true;
  ScriptedRunner inner_;
};

Request make_request(std::uint64_t id, int max_tokens) {
  Request request;
  request.id = id;
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0.0F;
  for (std::uint64_t i = 0; i < 5 + id % 7; ++i) {
    request.prompt.push_back(testing::kFirstLetter + static_cast<TokenId>((id * 5 + i * 3) % 26));
  }
  return request;
}

class EngineTest : public ::testing::Test {
 protected:
  void start(const EngineOptions& options, ScriptedRunner::Options runner_options = {}) {
    runner_options_ = runner_options;
    runner_ = std::make_unique<GatedRunner>(runner_options);
    auto made = Engine::create(*runner_, *tokenizer_, options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    engine_ = std::move(made).value();
  }
  void wait_idle() {
    for (int i = 0; i < 6000 && !engine_->idle(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_TRUE(engine_->idle());
  }

  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_ = testing::scripted_tokenizer();
  ScriptedRunner::Options runner_options_;
  Collector collector_;  // outlives the engine
  std::unique_ptr<GatedRunner> runner_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, ServesManyThreads) {
  start({.max_queue = 1000}, {.kv_memory_bytes = 250});
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kEach = 25;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < kEach; ++i) {
        EXPECT_TRUE(engine_->submit(make_request(t * 1000 + i, 20), collector_.sink()).ok());
        if (i % 5 == 4) engine_->cancel(t * 1000 + i - 1);
        engine_->stats();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(collector_.wait_finished(kThreads * kEach));
  wait_idle();
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    for (std::uint64_t i = 0; i < kEach; ++i) {
      const Request request = make_request(t * 1000 + i, 20);
      const auto record = collector_.get(request.id);
      EXPECT_EQ(record.events_after_finish, 0);
      if (record.finish == FinishReason::kCancelled) continue;
      const auto expected = testing::oracle(runner_options_.model, *tokenizer_, request, 100);
      EXPECT_EQ(record.tokens, expected.tokens);
      EXPECT_EQ(record.text, expected.text);
    }
  }
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.requests_finished + stats.requests_cancelled, kThreads * kEach);
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.kv_bytes_used, 0U);
  EXPECT_GT(stats.busy_seconds, 0.0);
  EXPECT_TRUE(runner_->faults().empty()) << runner_->faults().front();
}

TEST_F(EngineTest, ABoundedQueueRefusesMore) {
  start({.max_queue = 2}, {.max_sequences = 1});
  runner_->set_open(false);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    EXPECT_TRUE(engine_->submit(make_request(id, 5), collector_.sink()).ok());
  }
  const core::Status refused = engine_->submit(make_request(4, 5), collector_.sink());
  EXPECT_EQ(refused.code(), core::Code::kResourceExhausted);
  EXPECT_EQ(engine_->submit(make_request(2, 5), collector_.sink()).code(),
            core::Code::kInvalidArgument);
  EXPECT_FALSE(engine_->idle());
  runner_->set_open(true);
  ASSERT_TRUE(collector_.wait_finished(3));
  wait_idle();
  EXPECT_TRUE(engine_->submit(make_request(4, 5), collector_.sink()).ok());
  ASSERT_TRUE(collector_.wait_finished(4));
  EXPECT_EQ(engine_->stats().requests_rejected, 2U);
  EXPECT_FALSE(collector_.get(99).finish.has_value());
}

TEST_F(EngineTest, CancelTakesEffectWithinAStep) {
  start({});
  EXPECT_TRUE(engine_->submit(make_request(1, 0), collector_.sink()).ok());
  ASSERT_TRUE(collector_.wait_tokens(1, 1));
  runner_->set_open(false);
  engine_->cancel(1);
  engine_->cancel(77);  // unknown: ignored
  runner_->set_open(true);
  ASSERT_TRUE(collector_.wait_finished(1));
  wait_idle();
  const auto record = collector_.get(1);
  EXPECT_TRUE(record.finish == FinishReason::kCancelled || record.finish == FinishReason::kLength);
  EXPECT_EQ(record.events_after_finish, 0);
}

TEST_F(EngineTest, DrainsWhatItHasAndRefusesNew) {
  start({});
  runner_->set_open(false);
  for (std::uint64_t id = 1; id <= 6; ++id) {
    EXPECT_TRUE(engine_->submit(make_request(id, 10), collector_.sink()).ok());
  }
  engine_->begin_drain();
  EXPECT_EQ(engine_->submit(make_request(7, 5), collector_.sink()).code(),
            core::Code::kUnavailable);
  runner_->set_open(true);
  ASSERT_TRUE(collector_.wait_finished(6));
  wait_idle();
  for (std::uint64_t id = 1; id <= 6; ++id) {
    EXPECT_EQ(collector_.get(id).finish, FinishReason::kLength);
  }
}

TEST_F(EngineTest, AfterADeviceFaultItRefuses) {
  start({});
  runner_->set_open(false);
  for (std::uint64_t id = 1; id <= 6; ++id) {
    EXPECT_TRUE(engine_->submit(make_request(id, 10), collector_.sink()).ok());
  }
  std::thread([this] {
    runner_->fail_now();
    runner_->set_open(true);
  }).join();
  ASSERT_TRUE(collector_.wait_finished(6));
  wait_idle();
  for (std::uint64_t id = 1; id <= 6; ++id) {
    EXPECT_EQ(collector_.get(id).finish, FinishReason::kError);
  }
  EXPECT_FALSE(engine_->stats().healthy);
  EXPECT_EQ(engine_->submit(make_request(7, 5), collector_.sink()).code(),
            core::Code::kUnavailable);
}

TEST_F(EngineTest, DestructionEndsEveryRequestOnce) {
  start({});
  for (std::uint64_t id = 1; id <= 8; ++id) {
    EXPECT_TRUE(engine_->submit(make_request(id, 0), collector_.sink()).ok());
  }
  engine_.reset();
  EXPECT_TRUE(collector_.wait_finished(8));
  for (std::uint64_t id = 1; id <= 8; ++id) {
    EXPECT_EQ(collector_.get(id).events_after_finish, 0);
  }
}

TEST_F(EngineTest, ASinkMaySubmitAndCancel) {
  start({});
  std::atomic<int> left{5};
  EventSink sink;
  sink = [&](const Event& event) {
    if (!event.finish) return;
    if (--left > 0) {
      Request next = make_request(event.request_id + 1, 4);
      EXPECT_TRUE(engine_->submit(std::move(next), sink).ok());
      engine_->cancel(event.request_id);
    }
  };
  EXPECT_TRUE(engine_->submit(make_request(1, 4), sink).ok());
  for (int i = 0; i < 6000 && left > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(left, 0);
  wait_idle();
}

TEST_F(EngineTest, RefusesOptionsThatServeNobody) {
  GatedRunner small({.kv_memory_bytes = 4});
  EXPECT_EQ(Engine::create(small, *tokenizer_, {}).status().code(), core::Code::kResourceExhausted);
  GatedRunner good({});
  EXPECT_EQ(Engine::create(good, *tokenizer_, {.draft_length = 9}).status().code(),
            core::Code::kInvalidArgument);
  EXPECT_EQ(Engine::create(good, *tokenizer_, {.max_queue = -1}).status().code(),
            core::Code::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::engine
