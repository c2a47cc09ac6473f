#include "tandem/server/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>
#include <variant>

namespace tandem::server {
namespace {

using Clock = std::chrono::steady_clock;

std::string_view metric_name(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return "stop";
    case engine::FinishReason::kLength:
      return "length";
    case engine::FinishReason::kCancelled:
      return "abort";
    case engine::FinishReason::kError:
      return "error";
  }
  return "error";
}

/// The error of an answer that ended before its end; none if it is complete.
std::optional<ApiError> error_of(const engine::Event& event) {
  if (event.finish == engine::FinishReason::kCancelled) {
    return unavailable_now("The request was cancelled: the server is shutting down.", "draining");
  }
  if (event.finish != engine::FinishReason::kError) return std::nullopt;
  if (event.error.code() == core::Code::kCancelled) {
    ApiError error = http_error(504, "The request was not answered in time.");
    error.code = "deadline_exceeded";
    return error;
  }
  return from_status(event.error);
}

}  // namespace

Generation::Generation(std::shared_ptr<Service> service, const Endpoint& endpoint,
                       std::unique_ptr<Reply> reply, std::uint64_t first_id)
    : service_(std::move(service)),
      endpoint_(endpoint),
      reply_(std::move(reply)),
      first_id_(first_id) {}

Generation::~Generation() {
  if (is_client_gone_) reply_->mark_client_gone();
  service_->in_flight().leave(first_id_);
}

void Generation::start(std::shared_ptr<Service> service, const Endpoint& endpoint,
                       net::HttpRequest request, std::unique_ptr<Reply> reply) {
  if (refuse_unless_serving(*service, *reply)) return;
  const std::uint64_t id = service->reserve_engine_ids(kMaxChoices);
  const std::shared_ptr<Generation> self(
      new Generation(std::move(service), endpoint, std::move(reply), id));
  if (!self->service_->in_flight().enter(id, self)) {
    return self->reply_->send_error(unavailable_now("The server is shutting down.", "draining"));
  }
  self->reply_->on_disconnect([weak = std::weak_ptr(self)] {
    if (const auto generation = weak.lock()) generation->on_client_gone();
  });
  const std::size_t bytes = request.body.size();
  const auto body = std::make_shared<const std::string>(std::move(request.body));
  if (!self->service_->prompts().submit(bytes, [self, body] { self->prepare(*body); })) {
    self->reply_->send_error(
        unavailable_now("Too many requests wait to be read; try again soon.", "overloaded"));
  }
}

void Generation::prepare(std::string_view body) {
  if (is_client_gone_) return;
  auto prepared = endpoint_.prepare(body, service_->model(), service_->options().model_name);
  if (const auto* error = std::get_if<ApiError>(&prepared)) return reply_->send_error(*error);
  make_choices(std::get<PreparedRequest>(std::move(prepared)));
  const core::Status status = submit(0);
  if (!status.ok()) reply_->send_error(refusal(status));
}

void Generation::make_choices(PreparedRequest prepared) {
  GenerationParams& params = prepared.params;
  is_stream_ = params.stream;
  if (!params.seed) params.seed = service_->random_number();
  const auto n = static_cast<std::size_t>(params.n);
  const std::size_t num_choices = prepared.prompts.size() * n;
  n_ = params.n;
  choices_.reserve(num_choices);
  for (std::size_t i = 0; i < num_choices; ++i) {
    const bool has_echo = !prepared.echoes.empty();
    // The choices of a chat show them once.
    const bool shows_prompt = i == 0 || !endpoint_.is_chat;
    const auto prompt_logprobs = shows_prompt ? params.prompt_logprobs : std::nullopt;
    ChoiceOutput output(*service_->model().tokenizer,
                        {.is_chat = endpoint_.is_chat,
                         .stop = params.stop,
                         .stop_tokens = params.stop_tokens,
                         .ignore_eos = params.ignore_eos,
                         .parallel_tool_calls = prepared.parallel_tool_calls,
                         .echo = has_echo ? std::optional(prepared.echoes[i / n]) : std::nullopt,
                         .logprobs = params.logprobs,
                         .prompt_logprobs = prompt_logprobs});
    engine::Request request = engine_request(params, i, prepared.prompts[i / n]);
    request.grammar = prepared.grammar;
    request.prompt_logprobs = prompt_logprobs;
    if (has_echo) request.prompt_logprobs = std::max(prompt_logprobs, params.logprobs);
    choices_.push_back({std::move(request), std::move(output), i % n == 0, 0, {}, {}, {}});
  }
  max_tokens_ = choices_.front().request.max_tokens;
  AnswerHead head = answer_head(params);
  head.num_choices = static_cast<int>(num_choices);
  head.request_members = std::move(prepared.response_members);
  writer_ = endpoint_.make_writer(std::move(head));
}

engine::Request Generation::engine_request(const GenerationParams& params, std::size_t index,
                                           const std::vector<TokenId>& prompt) const {
  engine::Request request;
  request.id = first_id_ + index;
  request.prompt = prompt;
  request.sampling = params.sampling;
  request.sampling.seed = *params.seed + index;
  request.penalties = params.penalties;
  request.logit_bias = params.logit_bias;
  const int room = service_->model().max_context - static_cast<int>(prompt.size());
  request.is_prompt_only = params.max_tokens == 0;
  request.max_tokens = std::max(1, std::min(params.max_tokens.value_or(room), room));
  request.min_tokens = params.min_tokens;
  if (!endpoint_.is_chat) request.stop = params.stop;
  request.stop_tokens = params.stop_tokens;
  request.ignore_eos = params.ignore_eos;
  request.draft_length = params.draft_length;
  request.logprobs = params.logprobs;
  const auto marks = thought_marks(*service_->model().tokenizer);
  if (params.thought_budget && marks) {
    request.thought_budget = {marks->open, marks->close, *params.thought_budget};
  }
  const auto timeout = service_->options().request_timeout;
  if (timeout.count() > 0) request.deadline = reply_->arrival() + timeout;
  return request;
}

AnswerHead Generation::answer_head(const GenerationParams& params) const {
  return {.id = service_->random_id(endpoint_.id_prefix),
          .created = std::time(nullptr),
          .model = service_->options().model_name,
          .fingerprint = service_->model().fingerprint,
          .is_stream = params.stream,
          .include_usage = params.include_usage,
          .continuous_usage = params.continuous_usage,
          .tokenizer = service_->model().tokenizer.get(),
          .new_id = [service =
                         service_](std::string_view prefix) { return service->random_id(prefix); },
          .request_members = {}};
}

core::Status Generation::submit(std::size_t index) {
  engine::Engine& engine = *service_->model().engine;
  Choice& choice = choices_[index];
  const auto tokens = static_cast<int>(choice.request.prompt.size());
  if (choice.leads_prompt) {
    if (!service_->queue().take(tokens)) {
      return core::resource_exhausted(fmt::format("{} prompt tokens wait already; try again later",
                                                  service_->queue().waiting()));
    }
    choice.queued_tokens = tokens;
  }
  choice.submitted = Clock::now();
  // Before the submission, whose first event may submit the next choices on the engine's thread.
  num_submitted_ = index + 1;
  const core::Status status = engine.submit(
      std::move(choice.request), [self = shared_from_this(), index](const engine::Event& event) {
        self->on_event(index, event);
      });
  if (!status.ok()) {
    leave_queue(choice);
    return status;
  }
  // The end may have come between the last look and the submission.
  if (is_client_gone_ || is_cancelled_) engine.cancel(first_id_ + index);
  return {};
}

/// The choice no longer waits for its first token.
void Generation::leave_queue(Choice& choice) {
  service_->queue().give(std::exchange(choice.queued_tokens, 0));
}

/// Why a choice was not taken on, and when to try again.
ApiError Generation::refusal(const core::Status& status) const {
  ApiError error = from_status(status);
  error.retry_seconds = service_->queue().wait_seconds();
  return error;
}

void Generation::cancel() {
  is_cancelled_ = true;
  for (std::size_t i = 0; i < num_submitted_; ++i) service_->model().engine->cancel(first_id_ + i);
}

void Generation::on_client_gone() {
  is_client_gone_ = true;
  cancel();
}

void Generation::on_event(std::size_t index, const engine::Event& event) {
  Choice& choice = choices_[index];
  leave_queue(choice);
  if (!event.tokens.empty()) observe_tokens(choice, event);
  if (!is_done_ && !is_client_gone_ && !choice.output.is_finished()) {
    if (const auto error = error_of(event)) {
      fail(*error);
    } else if (open()) {
      push(index, event);
      send();
    }
  }
  if (event.finish) observe_end(choice, event);
}

/// Begins the answer with its first event. False: the answer has failed.
bool Generation::open() {
  text_.clear();
  if (std::exchange(is_open_, true)) return true;
  for (std::size_t i = 1; i < choices_.size(); ++i) {
    const core::Status status = submit(i);
    if (!status.ok()) {
      fail(refusal(status));
      return false;
    }
  }
  writer_->open(text_);
  return true;
}

void Generation::push(std::size_t index, const engine::Event& event) {
  ChoiceOutput& output = choices_[index].output;
  const int number = static_cast<int>(index);
  Delta delta = output.push(event);
  const AnswerUsage so_far = usage();
  if (!delta.empty()) writer_->add(text_, number, std::move(delta), so_far);
  if (!output.is_finished()) return;
  writer_->end(text_, number, output.finish_reason(), so_far);
  if (!event.finish) service_->model().engine->cancel(first_id_ + index);
  if (++num_finished_ < choices_.size()) return;
  is_done_ = true;
  int most_tokens = 0;
  for (const Choice& choice : choices_) {
    most_tokens = std::max(most_tokens, choice.output.usage().completion_tokens);
  }
  service_->metrics().observe_request(n_, max_tokens_, most_tokens);
  writer_->close(text_, so_far);
  reply_->set_usage(so_far);
}

/// Sends what the event added. A write that fails means that the client has gone or reads too
/// slowly: on_client_gone() follows.
void Generation::send() {
  if (!is_stream_) {
    if (is_done_) reply_->send_json(200, std::move(text_));
    return;
  }
  if (!reply_->is_stream_started()) reply_->start_stream();
  if (is_done_) {
    reply_->finish(text_);
  } else if (!text_.empty()) {
    reply_->write(text_);
  }
}

void Generation::fail(const ApiError& error) {
  is_done_ = true;
  reply_->set_usage(usage());
  if (reply_->is_stream_started()) {
    text_.clear();
    writer_->fail(text_, error);
    reply_->finish(text_);
  } else {
    reply_->send_error(error);
  }
  cancel();
}

void Generation::observe_tokens(Choice& choice, const engine::Event& event) const {
  const auto now = Clock::now();
  Metrics& metrics = service_->metrics();
  if (!choice.last_token) {
    metrics.observe_first_token(now - reply_->arrival());
    choice.first_token = now;
  } else {
    metrics.observe_next_tokens(now - *choice.last_token, static_cast<int>(event.tokens.size()));
  }
  choice.last_token = now;
}

Metrics::Times Generation::times(const Choice& choice, const engine::Usage& usage) const {
  const auto since_arrival = [this](Clock::time_point time) {
    return time - reply_->arrival();
  };
  Metrics::Times times;
  times.first_step =
      since_arrival(choice.submitted) + std::chrono::duration_cast<Clock::duration>(
                                            std::chrono::duration<double>(usage.queued_seconds));
  if (choice.first_token) times.first_token = since_arrival(*choice.first_token);
  if (choice.last_token) times.last_token = since_arrival(*choice.last_token);
  times.end = since_arrival(Clock::now());
  return times;
}

void Generation::observe_end(const Choice& choice, const engine::Event& event) {
  const bool is_complete = choice.output.is_finished();  // perhaps before the engine knew
  const auto reason = is_complete && event.finish == engine::FinishReason::kCancelled
                          ? engine::FinishReason::kStop
                          : *event.finish;
  service_->metrics().observe_end(metric_name(reason), times(choice, event.usage), event.usage);
  if (!is_done_) reply_->set_usage(event.usage);
}

/// Of all choices so far; a prompt counts once.
AnswerUsage Generation::usage() const {
  AnswerUsage total;
  for (const Choice& choice : choices_) {
    const AnswerUsage& each = choice.output.usage();
    if (choice.leads_prompt) {
      total.prompt_tokens += each.prompt_tokens;
      total.cached_tokens += each.cached_tokens;
    }
    total.completion_tokens += each.completion_tokens;
    total.reasoning_tokens += each.reasoning_tokens;
    total.drafted_tokens += each.drafted_tokens;
    total.accepted_tokens += each.accepted_tokens;
  }
  return total;
}

}  // namespace tandem::server
