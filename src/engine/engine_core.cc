#include "tandem/engine/engine_core.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "tandem/core/check.h"
#include "tandem/core/log.h"
#include "tandem/engine/request_check.h"

namespace tandem::engine {
namespace {

// A prompt chunk delays the next token of everybody who decodes. 256 rows keep the pause near that
// of a step with 32 verified spans; larger chunks gain little for the prompt.
constexpr int kPromptRowsWhileDecoding = 256;
constexpr std::uint64_t kWarnAfterDrafts = 500;
constexpr double kLowAcceptance = 0.2;

SchedulerOptions scheduler_options(const model::StepRunner::Limits& limits,
                                   const EngineOptions& options) {
  SchedulerOptions out;
  out.max_sequences = std::min({limits.max_sequences, limits.max_rows, limits.max_kept_rows});
  out.max_rows = limits.max_rows;
  out.max_kept_rows = limits.max_kept_rows;
  out.prefill_chunk = std::clamp(options.prefill_chunk, 1, std::max(1, limits.max_rows));
  out.prompt_rows_while_decoding = std::min(out.prefill_chunk, kPromptRowsWhileDecoding);
  return out;
}

KvOptions kv_options(const model::StepRunner::Limits& limits, const EngineOptions& options) {
  KvOptions out;
  out.layout = limits.kv;
  out.budget_bytes = limits.kv_memory_bytes;
  out.window = limits.window;
  out.prefix_cache = options.prefix_cache;
  out.prefix_cache_bytes = limits.kv_memory_bytes;
  if (options.prefix_cache_bytes > 0) {
    out.prefix_cache_bytes = options.prefix_cache_bytes;
  } else if (!limits.kv_is_reserved) {
    out.prefix_cache_bytes /= kPrefixCacheShare;
  }
  return out;
}

}  // namespace

core::Result<std::unique_ptr<EngineCore>> EngineCore::create(model::StepRunner& runner,
                                                             const tokenizer::Tokenizer& tokenizer,
                                                             const EngineOptions& options,
                                                             Clock clock) {
  const model::StepRunner::Limits& limits = runner.limits();
  TANDEM_CHECK(limits.kv.page_tokens > 0 && limits.max_sequences > 0 && limits.max_rows > 0 &&
                   limits.max_kept_rows > 0,
               "a runner has slots, rows and pages");
  if (limits.window < 1 || limits.kv.page_bytes[0] == 0 || limits.kv.page_bytes[1] == 0) {
    return core::failed_precondition(fmt::format(
        "the model keeps {} and {} bytes of sliding and full KV per page with a window of {}; "
        "serving needs layers of both kinds and a window",
        limits.kv.page_bytes[0], limits.kv.page_bytes[1], limits.window));
  }
  if (options.draft_length < -1 || options.draft_length > kMaxDraft) {
    return core::invalid_argument(fmt::format("the draft length is {}; give auto or 0 to {}",
                                              options.draft_length, kMaxDraft));
  }
  if (options.max_queue < 0 || options.max_context < 2) {
    return core::invalid_argument(
        fmt::format("a queue of {} and a context of {} tokens serve nobody; give at least 0 and 2",
                    options.max_queue, options.max_context));
  }
  std::unique_ptr<EngineCore> core(new EngineCore(runner, tokenizer, options, std::move(clock)));
  if (core->context_ < 2) {
    return core::resource_exhausted(
        fmt::format("the KV memory of {} bytes holds {} tokens of one sequence; raise --kv-memory",
                    limits.kv_memory_bytes, core->stats_.kv_capacity_tokens));
  }
  return core;
}

EngineCore::EngineCore(model::StepRunner& runner, const tokenizer::Tokenizer& tokenizer,
                       const EngineOptions& options, Clock clock)
    : runner_(&runner),
      tokenizer_(&tokenizer),
      options_(options),
      clock_(std::move(clock)),
      scheduler_options_(scheduler_options(runner.limits(), options)),
      kv_(kv_options(runner.limits(), options)),
      scheduler_(scheduler_options_, kv_),
      draft_policy_(std::clamp(runner.limits().max_draft, 0, kMaxDraft)) {
  const int wanted = std::min(options.max_context, runner.limits().max_context);
  stats_.kv_capacity_tokens = kv_.capacity_tokens();
  context_ = std::min(wanted, stats_.kv_capacity_tokens);
  is_context_bound_by_kv_ = context_ < wanted;
  stats_.kv_bytes_total = kv_.pool().budget_bytes();
  stats_.kv_page_tokens = kv_.pool().page_tokens();
  stats_.prefix_cache = options_.prefix_cache;
  for (const StepMeasurement& m : options.step_costs) {
    draft_policy_.observe_step(m.work, m.seconds);
  }
}

core::Status EngineCore::check_request(const Request& request) const {
  return engine::check_request(request, tokenizer_->vocab_size(), context_,
                               is_context_bound_by_kv_);
}

void EngineCore::add(Request request, EventSink sink) {
  const int max_tokens = request.max_tokens;
  const bool is_prompt_only = request.is_prompt_only;
  const std::optional<int> draft_length = request.draft_length;
  auto owned = std::make_unique<Job>(std::move(request), std::move(sink), *tokenizer_);
  Job& job = *owned;
  Sequence& s = job.sequence;
  s.request_id = job.id;
  s.age = next_age_++;
  s.num_prompt = s.length();
  if (job.scores) s.score_end = s.num_prompt - 1;
  s.max_length = is_prompt_only ? s.num_prompt : context_;
  if (!is_prompt_only && max_tokens > 0 && max_tokens < context_ - s.num_prompt) {
    s.max_length = s.num_prompt + max_tokens;
  }
  if (draft_length.has_value() || options_.draft_length >= 0) {
    s.draft_length = draft_length.value_or(options_.draft_length);
  }
  job.added_at = clock_();
  job.usage.prompt_tokens = s.num_prompt;
  jobs_.emplace(job.id, std::move(owned));
  scheduler_.add(s);
}

void EngineCore::cancel(std::uint64_t id) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return;
  finish(*it->second, FinishReason::kCancelled, {});
}

bool EngineCore::preempt(std::uint64_t id) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end() || it->second->sequence.state == SequenceState::kWaiting) return false;
  scheduler_.preempt(it->second->sequence);
  return true;
}

void EngineCore::finish_all(FinishReason reason, const core::Status& error) {
  while (!jobs_.empty()) finish(*jobs_.begin()->second, reason, error);
}

void EngineCore::step(const std::function<void()>& meanwhile) {
  if (!failure_.ok()) {  // requests that were on their way when the device failed
    finish_all(FinishReason::kError, failure_);
    return;
  }
  end_overdue();
  if (!scheduler_.has_work()) return;
  PlannedStep& step = scheduler_.plan();
  TANDEM_CHECK(!step.sequences.empty(), "the oldest sequence can always run");
  const double started_at = clock_();
  for (const Sequence* s : step.started) {
    Job& job = *jobs_.at(s->request_id);
    runner_->set_slot(s->slot, job.sampling);
    if (job.added_at) job.usage.queued_seconds = started_at - *job.added_at;
    job.added_at.reset();  // a preempted request comes here again
  }
  choose_drafts(step);
  set_rules(step);
  const bool runs_ahead = runner_->limits().runs_ahead;
  if (!runs_ahead) meanwhile();
  const double start = clock_();
  const core::Result<kernels::StepResult> result =
      runs_ahead ? runner_->step(step.plan, meanwhile) : runner_->step(step.plan);
  const double seconds = clock_() - start;
  ++stats_.steps;
  stats_.busy_seconds += seconds;
  if (!result.ok()) {
    stats_.healthy = false;
    failure_ = result.status();
    core::log_error(
        fmt::format("a step failed, no more requests are served: {}", failure_.message()));
    finish_all(FinishReason::kError, failure_);
    return;
  }
  if (!result->is_first_of_shape) observe_cost(step, seconds);
  const std::uint64_t generated = stats_.generated_tokens;
  commit(step, *result);
  count_step(step, stats_.generated_tokens - generated);
}

void EngineCore::count_step(const PlannedStep& step, std::uint64_t generated) {
  std::uint64_t tokens = generated;
  for (const kernels::Span& span : step.plan.spans) tokens += span.prompt.size();
  stats_.step_tokens += tokens;
  const auto bound = std::ranges::lower_bound(kStepTokenBounds, static_cast<int>(tokens));
  ++stats_.steps_by_tokens[static_cast<std::size_t>(bound - kStepTokenBounds.begin())];
}

void EngineCore::end_overdue() {
  std::vector<Job*> overdue;
  const double now = clock_();
  for (const auto& [id, job] : jobs_) {
    if (job->deadline &&
        std::chrono::duration<double>(job->deadline->time_since_epoch()).count() <= now) {
      overdue.push_back(job.get());
    }
  }
  for (Job* job : overdue) {
    finish(*job, FinishReason::kError,
           core::cancelled(fmt::format(
               "the deadline passed after {} tokens; allow more time or ask for fewer tokens",
               job->usage.completion_tokens)));
  }
}

void EngineCore::choose_drafts(PlannedStep& step) {
  const int max_draft = std::min(runner_->limits().max_draft, kMaxDraft);
  if (max_draft == 0) return;
  adaptive_.clear();
  for (std::size_t i = 0; i < step.sequences.size(); ++i) {
    const Sequence& s = *step.sequences[i];
    if (step.plan.spans[i].samples() && !s.draft_length.has_value())
      adaptive_.push_back(&s.acceptance);
  }
  const int adaptive_length = draft_policy_.choose(adaptive_);
  for (std::size_t i = 0; i < step.sequences.size(); ++i) {
    const Sequence& s = *step.sequences[i];
    if (!step.plan.spans[i].samples()) continue;
    // This step adds at least one token, which leaves one draft less to be useful.
    const int useful = std::min(max_draft, s.useful_drafts() - 1);
    step.plan.spans[i].next_drafts =
        std::max(0, std::min(s.draft_length.value_or(adaptive_length), useful));
  }
}

void EngineCore::set_rules(PlannedStep& step) {
  for (std::size_t i = 0; i < step.sequences.size(); ++i) {
    const Sequence& s = *step.sequences[i];
    kernels::Span& span = step.plan.spans[i];
    if (span.keep == kernels::Keep::kAll) {
      const auto next = std::span(s.tokens).subspan(static_cast<std::size_t>(s.computed) + 1);
      span.rules = jobs_.at(s.request_id)->scores->rows(next.first(span.prompt.size()));
    }
    if (!span.samples()) continue;
    OutputRules* rules = jobs_.at(s.request_id)->rules.get();
    if (rules == nullptr) continue;
    const int num_drafts = span.is_decode() ? span.num_drafts : 0;
    const auto drafts = std::span(s.drafts).first(static_cast<std::size_t>(num_drafts));
    span.rules = rules->rows(drafts, walker_);
  }
}

void EngineCore::observe_cost(const PlannedStep& step, double seconds) {
  StepWork work;
  for (const kernels::Span& span : step.plan.spans) {
    if (!span.is_decode()) return;  // prompt rows have another price
    ++work.sequences;
    work.rows += 1 + span.num_drafts;
    work.draft_steps = std::max(work.draft_steps, span.next_drafts);
    work.draft_rows += span.next_drafts;
  }
  if (seconds > 0) draft_policy_.observe_step(work, seconds);
}

void EngineCore::commit(const PlannedStep& step, const kernels::StepResult& result) {
  TANDEM_CHECK(result.spans.size() == step.sequences.size(), "a result for every span");
  for (std::size_t i = 0; i < step.sequences.size(); ++i) {
    commit_span(*step.sequences[i], step.plan.spans[i], result.spans[i]);
  }
  if (!has_warned_ && stats_.drafted_at[0] >= kWarnAfterDrafts &&
      static_cast<double>(stats_.accepted_at[0]) <
          kLowAcceptance * static_cast<double>(stats_.drafted_at[0])) {
    has_warned_ = true;
    core::log_warning(
        fmt::format("{} of {} first drafts were accepted: the drafter may not belong to this model",
                    stats_.accepted_at[0], stats_.drafted_at[0]));
  }
}

void EngineCore::commit_span(Sequence& s, const kernels::Span& span,
                             const kernels::SpanResult& result) {
  Job& job = *jobs_.at(s.request_id);
  if (result.is_broken) {
    const core::Status error = core::internal_error(
        "the model gave values that are not finite for this text; its file is damaged or "
        "overflows: compare its checksum with the publisher's");
    core::log_warning(fmt::format("a request failed: {}", error.message()));
    return finish(job, FinishReason::kError, error);
  }
  if (!span.is_decode()) s.commit_prompt(static_cast<int>(span.prompt.size()));
  if (span.keep == kernels::Keep::kAll) {
    TANDEM_CHECK(result.logprobs.size() == span.prompt.size(), "a scored row yields logprobs");
    job.scores->commit(result.logprobs);
    s.num_scored = s.computed;
  }
  if (!span.samples()) return kv_.settle(s);
  TANDEM_CHECK(result.slot == s.slot && result.num_tokens >= 1, "a sampled span yields a token");
  if (span.is_decode()) count_drafts(job, result);
  if (job.usage.completion_tokens == 0) {
    job.usage.cached_tokens = s.cached_prompt;
    stats_.prompt_tokens += static_cast<std::uint64_t>(s.num_prompt);
    stats_.cached_tokens += static_cast<std::uint64_t>(s.cached_prompt);
  }
  commit_output(job, result);
}

void EngineCore::commit_output(Job& job, const kernels::SpanResult& result) {
  Sequence& s = job.sequence;
  Event event;
  if (job.scores) event.prompt_logprobs = job.scores->take();
  if (job.is_prompt_only) {
    kv_.settle(s);
    event.finish = FinishReason::kLength;
    return finish(job, std::move(event));
  }
  if (job.rules && !job.rules->status().ok()) {
    return finish(job, FinishReason::kError, job.rules->status());
  }
  take_tokens(job, result, event);
  s.commit_tokens(event.tokens);
  s.state = SequenceState::kDecode;
  s.held_drafts = result.num_next_drafts;
  s.drafts = result.next_drafts;
  if (job.rules) {
    job.rules->commit(event.tokens);
    if (!job.rules->status().ok()) return finish(job, FinishReason::kError, job.rules->status());
    s.held_drafts =
        job.rules->count_useful(std::span(s.drafts).first(static_cast<std::size_t>(s.held_drafts)));
  }
  kv_.settle(s);
  job.usage.completion_tokens += static_cast<int>(event.tokens.size());
  stats_.generated_tokens += event.tokens.size();
  if (event.finish.has_value()) {
    finish(job, std::move(event));
  } else {
    event.request_id = job.id;
    event.usage = job.usage;
    events_.push_back({&job, std::move(event)});
  }
}

void EngineCore::take_tokens(Job& job, const kernels::SpanResult& result, Event& event) {
  const auto chosen = std::span(result.tokens).first(static_cast<std::size_t>(result.num_tokens));
  for (const TokenId token : chosen) {
    event.tokens.push_back(token);
    const int length = job.sequence.length() + static_cast<int>(event.tokens.size());
    if (job.output.push(token, event.text)) {
      event.finish = FinishReason::kStop;
    } else if (length == job.sequence.max_length) {
      event.finish = FinishReason::kLength;
    }
    if (event.finish.has_value()) break;
  }
  if (event.finish.has_value()) job.output.flush(event.text);
  if (!result.logprobs.empty()) {
    const auto num_tokens = static_cast<std::ptrdiff_t>(event.tokens.size());
    event.logprobs.assign(result.logprobs.begin(), result.logprobs.begin() + num_tokens);
  }
}

void EngineCore::count_drafts(Job& job, const kernels::SpanResult& result) {
  const int accepted = result.num_tokens - 1;
  ++stats_.verify_steps;
  if (result.num_drafted == 0) return;
  ++stats_.draft_rounds;
  for (int i = 0; i < result.num_drafted; ++i) {
    ++stats_.drafted_at[static_cast<std::size_t>(i)];
    if (i < accepted) ++stats_.accepted_at[static_cast<std::size_t>(i)];
  }
  job.usage.drafted_tokens += result.num_drafted;
  job.usage.accepted_tokens += accepted;
  draft_policy_.observe_acceptance(job.sequence.acceptance, result.num_drafted, accepted);
}

void EngineCore::finish(Job& job, FinishReason reason, const core::Status& error) {
  Event event;
  event.finish = reason;
  event.error = error;
  finish(job, std::move(event));
}

void EngineCore::finish(Job& job, Event event) {
  scheduler_.remove(job.sequence);
  switch (*event.finish) {
    case FinishReason::kCancelled:
      ++stats_.requests_cancelled;
      break;
    case FinishReason::kError:
      ++stats_.requests_failed;
      break;
    default:
      ++stats_.requests_finished;
  }
  event.request_id = job.id;
  event.usage = job.usage;
  const auto it = jobs_.find(job.id);
  finished_.push_back(std::move(it->second));
  jobs_.erase(it);
  events_.push_back({&job, std::move(event)});
}

std::vector<std::uint64_t> EngineCore::deliver() {
  for (const PendingEvent& pending : events_) pending.job->sink(pending.event);
  events_.clear();
  std::vector<std::uint64_t> ids;
  for (const std::unique_ptr<Job>& job : finished_) ids.push_back(job->id);
  finished_.clear();
  return ids;
}

EngineStats EngineCore::stats() const {
  EngineStats stats = stats_;
  stats.preemptions = scheduler_.preemptions();
  stats.running = scheduler_.num_running();
  stats.waiting = static_cast<int>(jobs_.size()) - stats.running;
  stats.kv_bytes_used = kv_.pool().bytes_used();
  stats.kv_bytes_cached = kv_.pool().bytes_idle();
  return stats;
}

core::Status EngineCore::check_invariants() const {
  std::vector<const Sequence*> sequences;
  for (const auto& [id, job] : jobs_) sequences.push_back(&job->sequence);
  return kv_.check(sequences);
}

}  // namespace tandem::engine
