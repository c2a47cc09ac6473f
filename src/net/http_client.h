#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tandem/core/status.h"
#include "tandem/net/http_server.h"

namespace tandem::net {

/// scheme://host[:port]/path; only http.
struct Url {
  std::string host;
  std::uint16_t port = 80;
  std::string path;  ///< without a trailing slash; may be empty
};
core::Result<Url> parse_url(std::string_view text);

struct ClientResponse {
  int status = 0;
  Headers headers;
  std::string body;  ///< empty for streamed answers
};

/// Asynchronous HTTP/1.1 client on the thread that calls run(): any number of requests in flight,
/// each on a kept-alive connection of its own. For load generators and tests.
class HttpClient {
 public:
  static std::unique_ptr<HttpClient> create();
  virtual ~HttpClient() = default;

  struct Callbacks {
    /// Body bytes of a 2xx answer as they arrive (already de-chunked). Other bodies, and all when
    /// this is unset, are collected into ClientResponse::body (64 MiB at most).
    std::function<void(std::string_view data)> on_data;
    /// Once: the response, or why there is none. kUnavailable: cannot resolve or connect;
    /// kCancelled: timed out; kDataLoss: cut off or not HTTP; kInvalidArgument: a bad request.
    std::function<void(core::Result<ClientResponse>)> on_done;
  };
  /// Starts a request; `timeout` bounds the whole exchange. Callbacks run inside run(); they may
  /// send again. Connections to the same host and port are reused; a reused one that the server
  /// had closed is replaced once. Host, Content-Length and User-Agent are added. The target
  /// sent is url.path + request.target.
  virtual void send(const Url& url, HttpRequest request, std::chrono::milliseconds timeout,
                    Callbacks callbacks) = 0;
  /// Calls `tick` every `interval` while run() runs (progress lines, memory sampling, deadlines).
  virtual void every(std::chrono::milliseconds interval, std::function<void()> tick) = 0;
  /// Runs until no request is in flight or stop() is called.
  virtual void run() = 0;
  /// Makes run() return; requests in flight are dropped without a callback at destruction.
  /// Thread: any.
  virtual void stop() = 0;
};

/// One blocking request. Not for the server.
core::Result<ClientResponse> fetch(const Url& url, const HttpRequest& request,
                                   std::chrono::milliseconds timeout);

/// Splits a server-sent-event stream into the `data:` payloads of its events, whatever the cuts.
class SseReader {
 public:
  /// Calls `on_event` for each event completed by `bytes`; the lines of a multi-line payload are
  /// joined by LF. Comments and other fields are skipped.
  void feed(std::string_view bytes, const std::function<void(std::string_view data)>& on_event);

  /// An event was longer than this many bytes: it and all that follows is dropped.
  static constexpr std::size_t kMaxEventBytes = std::size_t{16} << 20;
  bool is_too_long() const { return is_too_long_; }

 private:
  void end_line(const std::function<void(std::string_view data)>& on_event);

  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool is_too_long_ = false;
  bool skip_line_feed_ = false;
  bool is_first_line_ = true;
};

}  // namespace tandem::net
