#include "tandem/engine/engine.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "tandem/engine/engine_core.h"

namespace tandem::engine {
namespace {

struct SubmitCommand {
  Request request;
  EventSink sink;
};
struct CancelCommand {
  std::uint64_t id = 0;
};
using Command = std::variant<SubmitCommand, CancelCommand>;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The engine's thread around an EngineCore. Other threads only touch the members under mutex_;
/// sinks are called without it, so that they may submit and cancel.
class ThreadedEngine final : public Engine {
 public:
  ThreadedEngine(std::unique_ptr<EngineCore> core, int max_queue)
      : core_(std::move(core)),
        max_live_(static_cast<std::size_t>(core_->max_sequences()) +
                  static_cast<std::size_t>(max_queue)),
        stats_(core_->stats()),
        thread_([this] { run(); }) {}

  ~ThreadedEngine() override {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  core::Status submit(Request request, EventSink sink) override {
    core::Status status = core_->check_request(request);
    const std::lock_guard lock(mutex_);
    if (status.ok()) status = admit(request.id);
    if (!status.ok()) {
      ++rejected_;
      return status;
    }
    ++num_submitted_;
    commands_.emplace_back(SubmitCommand{std::move(request), std::move(sink)});
    wake_.notify_one();
    return {};
  }

  void cancel(std::uint64_t id) override {
    const std::lock_guard lock(mutex_);
    if (!live_.contains(id)) return;
    commands_.emplace_back(CancelCommand{id});
    wake_.notify_one();
  }

  void begin_drain() override {
    const std::lock_guard lock(mutex_);
    is_draining_ = true;
  }

  bool idle() const override {
    const std::lock_guard lock(mutex_);
    return live_.empty();
  }

  int context() const override { return core_->context(); }

  EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    EngineStats stats = stats_;
    stats.requests_rejected = rejected_;
    stats.waiting += num_submitted_;
    return stats;
  }

 private:
  /// Room for one more request; takes it. Needs mutex_.
  core::Status admit(std::uint64_t id) {
    if (!stats_.healthy) {
      return core::unavailable("the device failed; restart the server");
    }
    if (is_draining_ || is_stopping_) {
      return core::unavailable("the server is shutting down; send the request elsewhere");
    }
    if (live_.contains(id)) {
      return core::invalid_argument(fmt::format("a request with the id {} is running", id));
    }
    if (live_.size() >= max_live_) {
      return core::resource_exhausted(
          fmt::format("{} requests are running or waiting; try again later", live_.size()));
    }
    live_.insert(id);
    return {};
  }

  void run() {
    while (wait_for_work()) {
      apply_commands();
      if (core_->has_work()) core_->step([this] { publish(); });
      // What the last step gathered need not wait for another one.
      if (!core_->has_work()) publish();
    }
    apply_commands();
    core_->finish_all(FinishReason::kCancelled, {});
    publish();
  }

  /// Takes the commands; false when the engine stops.
  bool wait_for_work() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return is_stopping_ || !commands_.empty() || core_->has_work(); });
    taken_.swap(commands_);
    return !is_stopping_;
  }

  void apply_commands() {
    for (Command& command : taken_) {
      if (auto* submit = std::get_if<SubmitCommand>(&command)) {
        core_->add(std::move(submit->request), std::move(submit->sink));
      } else {
        core_->cancel(std::get<CancelCommand>(command).id);
      }
    }
    if (taken_.empty()) return;
    taken_.clear();
    update_stats();
  }

  void update_stats() {
    const std::lock_guard lock(mutex_);
    stats_ = core_->stats();
    num_submitted_ = 0;
    for (const Command& command : commands_) {
      if (std::holds_alternative<SubmitCommand>(command)) ++num_submitted_;
    }
  }

  /// Counters first: who has seen the last event of a request finds it counted.
  void publish() {
    update_stats();
    const std::vector<std::uint64_t> finished = core_->deliver();
    if (finished.empty()) return;
    const std::lock_guard lock(mutex_);
    for (const std::uint64_t id : finished) live_.erase(id);
  }

  const std::unique_ptr<EngineCore> core_;  // the engine thread's, but for check_request()
  const std::size_t max_live_;              // running and waiting requests
  std::vector<Command> taken_;              // the engine thread's

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Command> commands_;
  std::unordered_set<std::uint64_t> live_;  // submitted, last event not delivered
  int num_submitted_ = 0;                   // requests among commands_
  std::uint64_t rejected_ = 0;
  bool is_draining_ = false;
  bool is_stopping_ = false;
  EngineStats stats_;
  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace

core::Result<std::unique_ptr<Engine>> Engine::create(model::StepRunner& runner,
                                                     const tokenizer::Tokenizer& tokenizer,
                                                     const EngineOptions& options) {
  TANDEM_ASSIGN(auto core, EngineCore::create(runner, tokenizer, options, steady_seconds));
  return std::unique_ptr<Engine>(
      std::make_unique<ThreadedEngine>(std::move(core), options.max_queue));
}

}  // namespace tandem::engine
