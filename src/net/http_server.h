#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/core/status.h"

namespace tandem::net {

using Headers = std::vector<std::pair<std::string, std::string>>;

/// Value of a header, case-insensitive; empty when absent.
std::string_view find_header(const Headers& headers, std::string_view name);

struct HttpRequest {
  std::string method;  ///< "GET", "POST", ...
  std::string target;  ///< path and query; scheme and host of an absolute one are taken off
  Headers headers;
  std::string body;

  /// Value of a header, case-insensitive; empty when absent.
  std::string_view header(std::string_view name) const;
  std::string_view path() const;  ///< target without the query
};

/// The answer to one request. Either one respond(), or start_stream() followed by any number of
/// write() and one finish(). All calls may come from any thread and never block; after the client
/// has gone they do nothing. Destroying an unanswered responder answers 500; destroying one whose
/// stream is not finished cuts the connection, so that the client sees a truncated body. May
/// outlive the server.
class Responder {
 public:
  virtual ~Responder() = default;

  virtual void respond(int status, Headers headers, std::string body) = 0;

  /// Sends status and headers; the body follows chunked.
  virtual void start_stream(int status, Headers headers) = 0;
  /// Queues a chunk. False when the client has gone or its unsent data exceeded the outbox limit
  /// (the connection is then closed): the caller should stop producing.
  virtual bool write(std::string_view chunk) = 0;
  /// Queues a last chunk together with the end of the stream, so that a client that leaves at the
  /// last chunk has seen the end. False as for write().
  virtual bool finish(std::string_view last_chunk) = 0;
  void finish() { finish({}); }

  /// Calls `callback` once, on the I/O thread, if the client goes away before the answer is
  /// complete, and soon if it has already gone. A client that only closes its sending side is still
  /// there if it takes what then comes at once: an interim response, or a zero before the size of a
  /// stream's next chunk; one of HTTP/1.0, for which there is neither, counts as gone. The callback
  /// is dropped once the answer is complete; set it at most once.
  virtual void on_disconnect(std::function<void()> callback) = 0;
};

/// Runs on the I/O thread and must not block: long work goes to another thread with the responder.
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<Responder>)>;

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;         ///< 0: any free port, see port()
  std::string tls_certificate_file;  ///< PEM, with its chain; empty: no TLS
  std::string tls_key_file;
  std::size_t max_header_bytes = 16 * 1024;
  std::size_t max_body_bytes = 8 * 1024 * 1024;
  std::size_t max_outbox_bytes = 1024 * 1024;           ///< unsent bytes of one stream
  std::size_t max_receiving_bytes = 256 * 1024 * 1024;  ///< bodies being received, all together
  std::size_t max_connections = 4096;                   ///< more get 503 and are closed
  std::chrono::milliseconds header_timeout{30'000};     ///< to receive a request's headers and body
  std::chrono::milliseconds idle_timeout{120'000};      ///< keep-alive without a request
  std::chrono::milliseconds write_timeout{60'000};      ///< no progress while bytes wait
};

/// HTTP/1.1 server, within TLS if it has a certificate, on one I/O thread (Boost.Beast coroutines).
/// Malformed requests, oversized headers or bodies and slow senders are answered (400, 413, 431,
/// 408) with the JSON error body made by `error_body`, and closed. Pipelined requests are answered
/// in order, one at a time. Chunked request bodies, Expect: 100-continue and HEAD (the body is held
/// back) are understood.
class HttpServer {
 public:
  using ErrorBody = std::function<std::string(int status, std::string_view message)>;

  /// Binds and listens; kUnavailable names host, port and reason, kInvalidArgument the TLS file
  /// that is wrong. The server starts accepting.
  static core::Result<std::unique_ptr<HttpServer>> start(const HttpServerOptions& options,
                                                         HttpHandler handler, ErrorBody error_body);
  virtual ~HttpServer() = default;  ///< closes every connection and joins the thread

  virtual std::uint16_t port() const = 0;
  virtual std::size_t open_connections() const = 0;
  /// Closes the listener and idle connections; running answers go on.
  virtual void stop_accepting() = 0;
};

}  // namespace tandem::net
