#pragma once

#include <atomic>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <unordered_set>

#include "tandem/net/exchange.h"
#include "tandem/net/http_server.h"
#include "tandem/net/transport.h"

namespace tandem::net {

using Clock = std::chrono::steady_clock;

/// What the connections of a server share. Thread: I/O, but for what says otherwise.
struct ServerContext {
  HttpServerOptions options;
  HttpHandler handler;
  HttpServer::ErrorBody error_body;
  std::shared_ptr<Hub> hub;                      ///< thread: any
  std::unordered_set<Connection*> connections;   ///< each removes itself when it ends
  std::atomic<std::size_t> num_connections = 0;  ///< thread: any
  std::size_t receiving_bytes = 0;               ///< request bodies being received
};

/// One client connection: a coroutine that reads a request, hands it out, watches for the client's
/// leaving until the answer is sent, and starts over. Writing goes on beside it, one write at a
/// time for everything queued. Thread: I/O.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::unique_ptr<Transport> transport, ServerContext& context);
  ~Connection();

  /// Serves until the client leaves or the connection must close.
  void start();
  /// Answers 503 and closes: the server has too many connections.
  void refuse_service();

  /// The exchange has bytes to send or has ended.
  void flush(const Exchange& exchange);
  /// Ends what lasts too long: idle, receiving, or stalled in writing.
  void check_deadline(Clock::time_point now);
  void close_if_idle();
  /// Drops the connection and what it has not sent.
  void abort();

 private:
  enum class Phase { kIdle, kReceiving, kAnswering, kClosing };
  struct Incoming;  // a request being parsed

  Task<void> serve();
  Task<bool> handshake();
  Task<bool> receive(HttpRequest& request, Exchange::Traits& traits);
  Task<bool> parse(Incoming& incoming);
  Task<bool> accept_header(Incoming& incoming);
  bool charge_body(Incoming& incoming);
  Task<bool> await_answer();
  Task<bool> read_some();
  Task<void> refuse(int status, std::string message);
  Task<void> linger();

  void enter(Phase phase, Clock::duration limit);
  void flush_exchange();
  void write_some();

  ServerContext& context_;
  const std::unique_ptr<Transport> transport_;
  Socket& socket_;                    // of the transport
  boost::beast::flat_buffer buffer_;  // received, not yet parsed
  bool has_ended_ = false;            // nothing more will be received
  bool has_finished_ = false;         // in order: the client may still read
  bool is_refused_ = false;           // too many connections
  Phase phase_ = Phase::kIdle;
  Clock::time_point deadline_ = Clock::time_point::max();
  bool is_expired_ = false;
  std::shared_ptr<Exchange> exchange_;
  bool is_answered_ = false;
  bool is_writing_ = false;
  bool is_aborted_ = false;
  std::string sending_;  // bytes of the write in flight
  std::size_t sent_bytes_ = 0;
};

}  // namespace tandem::net
