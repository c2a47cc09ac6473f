#include "tandem/server/generation.h"

#include <algorithm>
#include <ctime>
#include <utility>
#include <variant>

namespace tandem::server {
namespace {

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
  if (event.finish == engine::FinishReason::kError) return from_status(event.error);
  return std::nullopt;
}

}  // namespace

Generation::Generation(std::shared_ptr<Service> service, Endpoint endpoint,
                       std::unique_ptr<Reply> reply, std::uint64_t id)
    : service_(std::move(service)), endpoint_(endpoint), reply_(std::move(reply)), engine_id_(id) {}

Generation::~Generation() {
  if (is_client_gone_) reply_->mark_client_gone();
  service_->in_flight().leave(engine_id_);
}

void Generation::start(std::shared_ptr<Service> service, Endpoint endpoint,
                       net::HttpRequest request, std::unique_ptr<Reply> reply) {
  if (refuse_unless_serving(*service, *reply)) return;
  const std::uint64_t id = service->next_engine_id();
  if (!service->in_flight().enter(id)) {
    return reply->send_error(unavailable_now("The server is shutting down.", "draining"));
  }
  PromptPool& prompts = service->prompts();
  const std::shared_ptr<Generation> self(
      new Generation(std::move(service), endpoint, std::move(reply), id));
  self->reply_->on_disconnect([weak = std::weak_ptr(self)] {
    if (const auto generation = weak.lock()) generation->on_client_gone();
  });
  const std::size_t bytes = request.body.size();
  const auto body = std::make_shared<const std::string>(std::move(request.body));
  if (!prompts.submit(bytes, [self, body] { self->prepare(*body); })) {
    self->reply_->send_error(
        unavailable_now("Too many requests wait to be read; try again soon.", "overloaded"));
  }
}

void Generation::prepare(std::string_view body) {
  if (is_client_gone_) return;
  const ServedModel& model = service_->model();
  const std::string& model_name = service_->options().model_name;
  auto prepared = endpoint_ == Endpoint::kChat ? prepare_chat(body, model, model_name)
                                               : prepare_completion(body, model, model_name);
  if (const auto* error = std::get_if<ApiError>(&prepared)) return reply_->send_error(*error);
  submit(std::get<PreparedRequest>(std::move(prepared)));
}

void Generation::submit(PreparedRequest prepared) {
  const ServedModel& model = service_->model();
  GenerationParams& params = prepared.params;
  is_stream_ = params.stream;
  include_usage_ = params.include_usage;
  writer_.emplace(AnswerWriter::Head{
      .endpoint = endpoint_,
      .id = service_->random_id(endpoint_ == Endpoint::kChat ? "chatcmpl-" : "cmpl-"),
      .created = std::time(nullptr),
      .model = service_->options().model_name,
      .fingerprint = model.fingerprint,
      .include_usage = include_usage_});

  engine::Request request;
  request.id = engine_id_;
  request.prompt = std::move(prepared.prompt);
  request.sampling = params.sampling;
  request.sampling.seed = params.seed ? *params.seed : service_->random_number();
  const int room = model.max_context - static_cast<int>(request.prompt.size());
  request.max_tokens = params.max_tokens == 0 ? room : std::min(params.max_tokens, room);
  request.stop = std::move(params.stop);
  request.ignore_eos = params.ignore_eos;
  request.draft_length = params.draft_length;
  const core::Status status = model.engine->submit(
      std::move(request),
      [self = shared_from_this()](const engine::Event& event) { self->on_event(event); });
  if (!status.ok()) return reply_->send_error(from_status(status));
  // The client may have left between the first look and the submission.
  if (is_client_gone_) model.engine->cancel(engine_id_);
}

void Generation::on_client_gone() {
  is_client_gone_ = true;
  service_->model().engine->cancel(engine_id_);
}

void Generation::on_event(const engine::Event& event) {
  if (!event.tokens.empty()) observe(event);
  if (is_client_gone_ && !event.finish) return;
  is_stream_ ? stream(event) : collect(event);
  if (event.finish) end(event);
}

void Generation::observe(const engine::Event& event) {
  const auto now = std::chrono::steady_clock::now();
  Metrics& metrics = service_->metrics();
  if (!last_token_) {
    metrics.observe_first_token(now - reply_->arrival());
  } else {
    metrics.observe_next_tokens(now - *last_token_, static_cast<int>(event.tokens.size()));
  }
  last_token_ = now;
}

void Generation::stream(const engine::Event& event) {
  const std::optional<ApiError> error = error_of(event);
  if (error && !is_stream_open_) return reply_->send_error(*error);
  text_.clear();
  if (!is_stream_open_) {
    is_stream_open_ = true;
    reply_->start_stream();
    writer_->append_opening(text_);
  }
  if (!event.text.empty()) writer_->append_text(text_, event.text);
  if (error) {
    AnswerWriter::append_error(text_, *error);
  } else if (event.finish) {
    writer_->append_finish(text_, *event.finish);
    if (include_usage_) writer_->append_usage(text_, event.usage);
    AnswerWriter::append_done(text_);
  }
  // False when the client has gone or reads too slowly: on_client_gone() follows.
  if (event.finish) {
    reply_->finish(text_);
  } else if (!text_.empty()) {
    reply_->write(text_);
  }
}

void Generation::collect(const engine::Event& event) {
  text_ += event.text;
  if (!event.finish) return;
  if (const auto error = error_of(event)) return reply_->send_error(*error);
  reply_->send_json(200, writer_->whole(text_, *event.finish, event.usage));
}

void Generation::end(const engine::Event& event) {
  reply_->set_usage(event.usage);
  service_->metrics().observe_end(metric_name(*event.finish),
                                  std::chrono::steady_clock::now() - reply_->arrival(),
                                  event.usage);
}

}  // namespace tandem::server
