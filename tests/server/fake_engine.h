#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/engine/engine.h"

namespace tandem::server::testing {

/// Ids of a text in the tokenizer of server_fixture.h, a token per byte.
inline std::vector<TokenId> byte_tokens(std::string_view text) {
  constexpr TokenId kFirstByteToken = 8;
  std::vector<TokenId> tokens;
  for (const char c : text) tokens.push_back(kFirstByteToken + static_cast<unsigned char>(c));
  return tokens;
}

/// An engine that does what the test says: it keeps what is submitted, and sends the events that
/// the test emits on the test's thread. A cancelled request ends at once.
class FakeEngine final : public engine::Engine {
 public:
  core::Status submit(engine::Request request, engine::EventSink sink) override {
    const std::lock_guard lock(mutex_);
    if (!submit_status_.ok()) return submit_status_;
    submitted_.push_back({std::move(request), std::move(sink)});
    changed_.notify_all();
    return {};
  }

  void cancel(std::uint64_t id) override {
    engine::EventSink sink;
    {
      const std::lock_guard lock(mutex_);
      cancelled_.insert(id);
      changed_.notify_all();
      for (Submitted& each : submitted_) {
        if (each.request.id == id) sink = std::exchange(each.sink, nullptr);
      }
    }
    engine::Event event;
    event.request_id = id;
    event.finish = engine::FinishReason::kCancelled;
    if (sink) sink(event);
  }

  void begin_drain() override {
    const std::lock_guard lock(mutex_);
    is_draining_ = true;
  }
  bool idle() const override { return true; }
  int context() const override { return 1 << 16; }
  engine::EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

  /// The index-th request submitted, waited for.
  engine::Request request(std::size_t index = 0) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return submitted_.size() > index; });
    return submitted_.at(index).request;
  }
  std::size_t num_submitted() const {
    const std::lock_guard lock(mutex_);
    return submitted_.size();
  }
  bool wait_cancelled(std::uint64_t id) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return cancelled_.contains(id); });
  }

  /// Sends an event of the index-th request; its sink is dropped after the last one.
  void emit(std::size_t index, engine::Event event) {
    engine::EventSink sink;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kPatience, [&] { return submitted_.size() > index; });
      Submitted& target = submitted_.at(index);
      event.request_id = target.request.id;
      sink = event.finish ? std::exchange(target.sink, nullptr) : target.sink;
    }
    if (sink) sink(event);
  }
  void emit_text(std::size_t index, std::string text) {
    engine::Event event;
    event.tokens = byte_tokens(text);
    event.text = std::move(text);
    emit(index, std::move(event));
  }
  void emit_tokens(std::size_t index, std::vector<TokenId> tokens) {
    engine::Event event;
    event.tokens = std::move(tokens);
    emit(index, std::move(event));
  }
  void emit_end(std::size_t index, engine::FinishReason reason, engine::Usage usage = {},
                std::string text = {}) {
    engine::Event event;
    event.tokens = byte_tokens(text);
    event.text = std::move(text);
    event.finish = reason;
    event.usage = usage;
    emit(index, std::move(event));
  }

  void set_submit_status(core::Status status) {
    const std::lock_guard lock(mutex_);
    submit_status_ = std::move(status);
  }
  void set_stats(const engine::EngineStats& stats) {
    const std::lock_guard lock(mutex_);
    stats_ = stats;
  }
  bool is_draining() const {
    const std::lock_guard lock(mutex_);
    return is_draining_;
  }

 private:
  static constexpr std::chrono::seconds kPatience{10};
  struct Submitted {
    engine::Request request;
    engine::EventSink sink;
  };

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  core::Status submit_status_;
  std::deque<Submitted> submitted_;
  std::set<std::uint64_t> cancelled_;
  engine::EngineStats stats_;
  bool is_draining_ = false;
};

}  // namespace tandem::server::testing
