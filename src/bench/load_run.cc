#include "tandem/bench/load_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "tandem/bench/json_util.h"
#include "tandem/bench/process_memory.h"
#include "tandem/bench/prometheus_text.h"

namespace tandem::bench {
namespace {

namespace json = boost::json;
using std::chrono::milliseconds;

constexpr milliseconds kTickInterval{250};
constexpr milliseconds kMemoryInterval{1000};
constexpr milliseconds kMetricsTimeout{5000};

milliseconds to_milliseconds(double seconds) {
  return milliseconds(static_cast<std::int64_t>(seconds * 1000.0));
}

/// What an error answer says: OpenAI's message, or the beginning of the body.
std::string body_message(const std::string& body) {
  boost::system::error_code parse_error;
  const json::value answer = json::parse(body, parse_error);
  if (!parse_error) {
    const std::string_view message = as_text(member(member(&answer, "error"), "message"));
    if (!message.empty()) return std::string(message);
  }
  return body.substr(0, 200);
}

const char* connection_error_kind(core::Code code) {
  switch (code) {
    case core::Code::kUnavailable:
      return "connect";
    case core::Code::kCancelled:
      return "timeout";
    default:
      return "cut_stream";
  }
}

}  // namespace

net::HttpRequest make_request(const Target& target, std::string method, std::string path,
                              std::string body) {
  net::HttpRequest request;
  request.method = std::move(method);
  request.target = std::move(path);
  if (!body.empty()) request.headers.emplace_back("Content-Type", "application/json");
  if (!target.api_key.empty()) {
    request.headers.emplace_back("Authorization", "Bearer " + target.api_key);
  }
  request.body = std::move(body);
  return request;
}

LoadRun::LoadRun(const BenchOptions& options, const Target& target,
                 std::vector<std::string> prompts)
    : options_(options),
      target_(target),
      prompts_(std::move(prompts)),
      client_(net::HttpClient::create()) {}

LoadRun::~LoadRun() = default;

double LoadRun::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

Observations LoadRun::run() {
  client_->every(kTickInterval, [this] { on_tick(); });
  client_->every(kMemoryInterval, [this] { sample_memory(); });
  start_ = std::chrono::steady_clock::now();
  sample_memory();
  for (int i = 0; i < options_.concurrency; ++i) send_next();
  client_->run();
  if (options_.pid > 0) sample_memory();
  progress_.show({now(), options_.duration_s, static_cast<int>(seen_.completed.size()),
                  static_cast<int>(prompts_.size()), num_running(), errors_, completion_tokens_});
  progress_.finish();
  // Cut requests ran until the end of the time; else the last answer ended the run.
  seen_.wall_s = running_.empty() ? last_answer_at_ : now();
  for (const auto& request : running_) seen_.cut.push_back(answer_of(*request, seen_.wall_s));
  client_.reset();  // closes the connections of cancelled requests
  return std::move(seen_);
}

std::string LoadRun::request_body(const std::string& prompt) const {
  json::object body{{"model", target_.model},
                    {"messages", json::array{{{"role", "user"}, {"content", prompt}}}},
                    {"max_tokens", options_.max_tokens},
                    {"temperature", options_.temperature},
                    {"stream", true},
                    {"stream_options", {{"include_usage", true}}}};
  for (const auto& member : target_.extra_members) body.insert(member);
  return json::serialize(body);
}

void LoadRun::send_next() {
  if (is_stopping_ || next_prompt_ >= prompts_.size()) return;
  const std::string& prompt = prompts_[next_prompt_++];
  auto request = std::make_shared<InFlight>();
  request->prompt_bytes = prompt.size();
  net::HttpRequest http =
      make_request(target_, "POST", "/v1/chat/completions", request_body(prompt));
  net::HttpClient::Callbacks callbacks;
  callbacks.on_data = [this, request](std::string_view data) {
    request->stream.feed(data, now());
  };
  callbacks.on_done = [this, request](const core::Result<net::ClientResponse>& response) {
    on_done(request, response);
  };
  ++seen_.asked;
  running_.insert(request);
  request->sent_at = now();
  client_->send(target_.url, std::move(http), to_milliseconds(options_.timeout_s),
                std::move(callbacks));
}

void LoadRun::on_done(const std::shared_ptr<InFlight>& request,
                      const core::Result<net::ClientResponse>& response) {
  running_.erase(request);
  last_answer_at_ = now();
  const ChatStream& stream = request->stream;
  if (!response.ok()) {
    on_error(connection_error_kind(response.status().code()), response.status().message());
  } else if (response->status != 200) {
    on_error(fmt::format("http_{}", response->status), body_message(response->body));
  } else if (!stream.error().empty()) {
    on_error("stream_error", stream.error());
  } else if (stream.finish_reason().empty()) {
    on_error("cut_stream", "the stream ended without a finish reason");
  } else if (!stream.usage()) {
    on_error("no_usage", "the stream ended without usage; tokens cannot be counted");
  } else {
    ++seen_.finish_reasons[stream.finish_reason()];
    completion_tokens_ += static_cast<double>(stream.usage()->completion_tokens);
    if (const auto& drafts = stream.draft_timings()) {
      seen_.draft_timings.drafted += drafts->drafted;
      seen_.draft_timings.accepted += drafts->accepted;
    }
    seen_.completed.push_back(answer_of(*request, *stream.end_at()));
    seen_.completed.back().usage = *stream.usage();
  }
  send_next();
  if (running_.empty()) client_->stop();  // a poll of /metrics may still be on its way
}

Answer LoadRun::answer_of(const InFlight& request, double end_at) {
  const ChatStream& stream = request.stream;
  return {request.sent_at,
          stream.first_event_at(),
          stream.first_content_at(),
          end_at,
          request.prompt_bytes,
          stream.text_bytes(),
          {}};
}

void LoadRun::on_error(std::string kind, std::string message) {
  ++errors_;
  ++seen_.errors_by_kind[kind];
  seen_.error_examples.try_emplace(std::move(kind), std::move(message));
}

void LoadRun::on_tick() {
  const bool is_interrupted = options_.interrupt != nullptr && options_.interrupt->load();
  if (now() >= options_.duration_s || is_interrupted) {
    seen_.is_cut_short = true;
    is_stopping_ = true;
    client_->stop();
  }
  progress_.show({now(), options_.duration_s, static_cast<int>(seen_.completed.size()),
                  static_cast<int>(prompts_.size()), num_running(), errors_, completion_tokens_});
}

void LoadRun::sample_memory() {
  const auto keep = [this](std::uint64_t bytes) {
    seen_.peak_memory_bytes = std::max(seen_.peak_memory_bytes, bytes);
  };
  if (options_.pid > 0) {
    if (const auto bytes = peak_memory_of_tree(options_.pid)) keep(*bytes);
    return;
  }
  if (is_polling_metrics_ || is_stopping_) return;
  is_polling_metrics_ = true;
  net::HttpClient::Callbacks callbacks;
  callbacks.on_done = [this, keep](const core::Result<net::ClientResponse>& response) {
    is_polling_metrics_ = false;
    if (!response.ok() || response->status != 200) return;
    const auto bytes = PrometheusText::parse(response->body).sum("process_resident_memory_bytes");
    if (bytes && *bytes > 0.0) keep(static_cast<std::uint64_t>(*bytes));
  };
  client_->send(target_.url, make_request(target_, "GET", "/metrics", ""), kMetricsTimeout,
                std::move(callbacks));
}

}  // namespace tandem::bench
