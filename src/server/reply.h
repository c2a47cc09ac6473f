#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "tandem/engine/request.h"
#include "tandem/net/http_server.h"
#include "tandem/server/api_error.h"
#include "tandem/server/metrics.h"

namespace tandem::server {

/// The answering side of one HTTP request: adds X-Request-Id, counts the answer and writes one line
/// of the access log when it is destroyed. Thread: one at a time.
class Reply {
 public:
  struct Options {
    std::string fallback_request_id;  ///< used when the client sent none that is fit to print
    bool log = true;
    net::Headers headers;  ///< of every answer
    std::shared_ptr<Metrics> metrics;
  };
  Reply(const net::HttpRequest& request, std::shared_ptr<net::Responder> responder,
        Options options);
  ~Reply();
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;

  void send(int http_status, std::string_view content_type, std::string body,
            net::Headers more_headers = {});
  void send_json(int http_status, std::string body) {
    send(http_status, "application/json", std::move(body));
  }
  /// Adds Retry-After where trying again makes sense.
  void send_error(const ApiError& error);

  void start_stream();
  bool is_stream_started() const { return is_stream_started_; }
  bool write(std::string_view bytes) { return responder_->write(bytes); }
  bool finish(std::string_view last_bytes) { return responder_->finish(last_bytes); }

  void on_disconnect(std::function<void()> callback) {
    responder_->on_disconnect(std::move(callback));
  }
  void mark_client_gone() { is_client_gone_ = true; }
  void set_usage(const engine::Usage& usage) { usage_ = usage; }
  std::chrono::steady_clock::time_point arrival() const { return arrival_; }

 private:
  int final_status() const;
  net::Headers headers(std::string_view content_type) const;
  std::string log_line() const;

  std::shared_ptr<net::Responder> responder_;
  Options options_;
  std::chrono::steady_clock::time_point arrival_ = std::chrono::steady_clock::now();
  std::string method_;
  std::string path_;
  std::string request_id_;
  int http_status_ = 0;  // 0: not answered
  bool is_stream_started_ = false;
  bool is_client_gone_ = false;
  engine::Usage usage_;
};

}  // namespace tandem::server
