#include "tandem/server/reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "tandem/core/log.h"
#include "tandem/server/json_text.h"

namespace tandem::server {
namespace {

/// nginx's code for a request whose client left before the answer.
constexpr int kClientClosedRequest = 499;
constexpr std::size_t kMaxLoggedPathBytes = 120;
constexpr std::size_t kMaxRequestIdBytes = 128;

bool is_fit_to_print(std::string_view id) {
  const auto is_fit = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-_.:/+=").find(c) != std::string_view::npos;
  };
  return !id.empty() && id.size() <= kMaxRequestIdBytes &&
         std::all_of(id.begin(), id.end(), is_fit);
}

}  // namespace

Reply::Reply(const net::HttpRequest& request, std::shared_ptr<net::Responder> responder,
             Options options)
    : responder_(std::move(responder)),
      options_(std::move(options)),
      method_(request.method),
      path_(request.path().substr(0, kMaxLoggedPathBytes)) {
  const std::string_view sent_id = request.header("X-Request-Id");
  request_id_ = is_fit_to_print(sent_id) ? std::string(sent_id) : options_.fallback_request_id;
}

Reply::~Reply() {
  if (options_.metrics) options_.metrics->count_response(final_status());
  if (options_.log) core::log_info(log_line());
}

int Reply::final_status() const {
  if (is_client_gone_) return kClientClosedRequest;
  return http_status_ == 0 ? 500 : http_status_;  // a responder that is dropped answers 500
}

std::string Reply::log_line() const {
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - arrival_;
  std::string line = fmt::format("access method={} path={} status={}", well_formed(method_),
                                 well_formed(path_), final_status());
  if (usage_.prompt_tokens > 0) {
    line += fmt::format(
        " prompt_tokens={} cached_tokens={} completion_tokens={} drafted_tokens={} "
        "accepted_tokens={}",
        usage_.prompt_tokens, usage_.cached_tokens, usage_.completion_tokens, usage_.drafted_tokens,
        usage_.accepted_tokens);
  }
  return line + fmt::format(" duration_ms={:.1f} request_id={}", elapsed.count(), request_id_);
}

net::Headers Reply::headers(std::string_view content_type) const {
  net::Headers all = options_.headers;
  all.emplace_back("Content-Type", content_type);
  all.emplace_back("X-Request-Id", request_id_);
  return all;
}

void Reply::send(int http_status, std::string_view content_type, std::string body,
                 net::Headers more_headers) {
  http_status_ = http_status;
  net::Headers all = headers(content_type);
  all.insert(all.end(), std::make_move_iterator(more_headers.begin()),
             std::make_move_iterator(more_headers.end()));
  responder_->respond(http_status, std::move(all), std::move(body));
}

void Reply::send_error(const ApiError& error) {
  net::Headers headers;
  if (error.http_status == 429 || error.http_status == 503) {
    headers.emplace_back("Retry-After", std::to_string(error.retry_seconds));
  }
  send(error.http_status, "application/json", to_json(error), std::move(headers));
}

void Reply::start_stream() {
  http_status_ = 200;
  is_stream_started_ = true;
  net::Headers all = headers("text/event-stream; charset=utf-8");
  all.emplace_back("Cache-Control", "no-cache");
  all.emplace_back("X-Accel-Buffering", "no");  // proxies must not collect events
  responder_->start_stream(200, std::move(all));
}

}  // namespace tandem::server
