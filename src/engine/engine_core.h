#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/engine/draft_policy.h"
#include "tandem/engine/engine.h"
#include "tandem/engine/kv_manager.h"
#include "tandem/engine/output.h"
#include "tandem/engine/output_rules.h"
#include "tandem/engine/prompt_scores.h"
#include "tandem/engine/request.h"
#include "tandem/engine/scheduler.h"
#include "tandem/model/step_runner.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::engine {

/// The engine without its thread: plan, run, commit; then deliver the events. Everything is called
/// by one thread, except check_request(), which any thread may call.
class EngineCore {
 public:
  /// Seconds of std::chrono::steady_clock, so that a request's deadline can be compared with it.
  using Clock = std::function<double()>;

  /// `runner` and `tokenizer` must outlive the core. Fails with kInvalidArgument or
  /// kResourceExhausted when options and limits leave no room for a single request.
  static core::Result<std::unique_ptr<EngineCore>> create(model::StepRunner& runner,
                                                          const tokenizer::Tokenizer& tokenizer,
                                                          const EngineOptions& options,
                                                          Clock clock);
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  /// Whether a request is well-formed and can ever be served.
  core::Status check_request(const Request& request) const;
  int max_sequences() const { return scheduler_options_.max_sequences; }
  /// Most tokens of a text, prompt and output.
  int context() const { return context_; }

  /// Queues a request that check_request() found good.
  void add(Request request, EventSink sink);
  void cancel(std::uint64_t id);
  /// Preempts a running request as if memory had run out: its output stays the same. For tests;
  /// true if it was running.
  bool preempt(std::uint64_t id);
  /// Ends all requests with `reason`.
  void finish_all(FinishReason reason, const core::Status& error);

  bool has_work() const { return scheduler_.has_work(); }
  /// Runs one step and gathers its events. Needs has_work(). `meanwhile` may deliver() what earlier
  /// steps gathered; it is called, unless nothing runs after all, while the device works if it is
  /// one that leaves the time, else before the step.
  void step(const std::function<void()>& meanwhile);
  /// Sends the gathered events and forgets finished requests; returns the ids of those.
  std::vector<std::uint64_t> deliver();

  EngineStats stats() const;
  const DraftPolicy& draft_policy() const { return draft_policy_; }
  /// Between steps: see KvManager::check.
  core::Status check_invariants() const;

 private:
  struct Job {
    Job(Request&& request, EventSink&& event_sink, const tokenizer::Tokenizer& tokenizer)
        : id(request.id),
          sampling(request.sampling),
          rules(OutputRules::make(request, tokenizer)),
          scores(PromptScores::make(request)),
          output(tokenizer, std::move(request.stop), std::move(request.stop_tokens),
                 request.ignore_eos),
          is_prompt_only(request.is_prompt_only),
          deadline(request.deadline),
          sink(std::move(event_sink)) {
      sequence.tokens = std::move(request.prompt);
    }
    std::uint64_t id;
    kernels::SamplingParams sampling;
    Sequence sequence;
    std::unique_ptr<OutputRules> rules;    // null: the request has none
    std::unique_ptr<PromptScores> scores;  // null: the request wants none
    Output output;
    bool is_prompt_only;
    std::optional<std::chrono::steady_clock::time_point> deadline;
    std::optional<double> added_at;  // until its first step
    Usage usage;
    EventSink sink;
  };
  struct PendingEvent {
    Job* job = nullptr;
    Event event;
  };

  EngineCore(model::StepRunner& runner, const tokenizer::Tokenizer& tokenizer,
             const EngineOptions& options, Clock clock);

  void end_overdue();
  void set_rules(PlannedStep& step);
  void choose_drafts(PlannedStep& step);
  void commit(const PlannedStep& step, const kernels::StepResult& result);
  void commit_span(Sequence& sequence, const kernels::Span& span,
                   const kernels::SpanResult& result);
  /// The tokens of a span that samples, to sequence and event.
  void commit_output(Job& job, const kernels::SpanResult& result);
  static void take_tokens(Job& job, const kernels::SpanResult& result, Event& event);
  void count_drafts(Job& job, const kernels::SpanResult& result);
  void count_step(const PlannedStep& step, std::uint64_t generated);
  void observe_cost(const PlannedStep& step, double seconds);
  /// Ends a request without more tokens.
  void finish(Job& job, FinishReason reason, const core::Status& error);
  /// Ends a request with the event that says why.
  void finish(Job& job, Event event);

  model::StepRunner* runner_;
  const tokenizer::Tokenizer* tokenizer_;
  EngineOptions options_;
  Clock clock_;
  SchedulerOptions scheduler_options_;
  KvManager kv_;
  Scheduler scheduler_;
  DraftPolicy draft_policy_;
  int context_ = 0;
  bool is_context_bound_by_kv_ = false;

  std::uint64_t next_age_ = 0;
  std::unordered_map<std::uint64_t, std::unique_ptr<Job>> jobs_;
  std::vector<std::unique_ptr<Job>> finished_;  // until their last event was delivered
  std::vector<PendingEvent> events_;
  std::vector<const AcceptanceHistory*> adaptive_;  // scratch of choose_drafts
  grammar::TrieWalker walker_;                      // scratch of set_rules
  EngineStats stats_;
  core::Status failure_;  // of the device; nothing runs after it
  bool has_warned_ = false;
};

}  // namespace tandem::engine
