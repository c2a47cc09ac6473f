#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/net/http_server.h"

namespace tandem::net {

class Connection;
class Exchange;

/// What the responders of a server share with its I/O thread: the list of exchanges with news. It
/// wakes the I/O thread once for any number of them, and outlives the server. Thread: any.
class Hub {
 public:
  /// `wake` schedules a run of the drain on the I/O thread; not called after close().
  explicit Hub(std::function<void()> wake) : wake_(std::move(wake)) {}

  void notify(std::shared_ptr<Exchange> exchange);
  /// The exchanges with news since the last call. Thread: I/O.
  std::vector<std::shared_ptr<Exchange>> take();
  /// From now on notify() does nothing.
  void close();

  /// While draining, answers ask the client to close the connection.
  void set_draining();
  bool is_draining() const;

 private:
  mutable std::mutex mutex_;
  std::function<void()> wake_;  // empty once closed
  std::vector<std::shared_ptr<Exchange>> news_;
  bool is_draining_ = false;
};

/// Answer of one request: bytes queued by responder threads, taken by the I/O thread.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  struct Traits {
    bool is_http_1_1 = true;
    bool keep_alive = true;
    bool is_head = false;  ///< HEAD: headers only
    std::size_t max_outbox_bytes = 0;
  };
  Exchange(std::shared_ptr<Hub> hub, std::weak_ptr<Connection> connection, Traits traits)
      : hub_(std::move(hub)), connection_(std::move(connection)), traits_(traits) {}

  // Thread: any. See Responder.
  void respond(int status, const Headers& headers, std::string_view body);
  void start_stream(int status, const Headers& headers);
  bool write(std::string_view chunk);
  bool finish(std::string_view last_chunk);
  void on_disconnect(std::function<void()> callback);
  /// The responder was destroyed; `error_body` makes the body of the 500 if nothing was sent.
  void abandon(const std::function<std::string()>& error_body);

  // Thread: I/O.
  enum class Next {
    kNothing,  ///< no bytes yet
    kBytes,    ///< `out` holds bytes to send
    kDone,     ///< everything has been taken before this call
  };
  /// Moves the queued bytes to `out`, which must be empty; what was taken before has been sent.
  Next take(std::string& out);
  /// Queues bytes that mean nothing where the answer is now, so that a client that has gone resets
  /// the connection. False where there are none: nobody knows whether it still reads.
  bool probe();
  /// The connection must be cut, even while a write is on its way.
  bool must_abort() const;
  /// The client has gone: responders learn it, the callback is called.
  void disconnect();
  /// Calls the callback if the client had gone before it was set.
  void report_disconnect();
  /// The answer has been sent: drops the callback.
  void complete();
  /// Valid once take() said kDone.
  bool keep_alive() const;
  std::shared_ptr<Connection> connection() const { return connection_.lock(); }

 private:
  enum class State { kOpen, kStreaming, kFinished, kAborted };

  bool append_chunk(std::string_view chunk);  // false, and aborted, over the limit
  void append_head(int status, const Headers& headers, const std::size_t* content_length);
  bool mark_news();          // with mutex_ held: true if the hub has to be told
  void tell(bool has_news);  // without
  std::function<void()> take_callback();

  const std::shared_ptr<Hub> hub_;
  const std::weak_ptr<Connection> connection_;
  const Traits traits_;

  mutable std::mutex mutex_;
  State state_ = State::kOpen;
  bool is_gone_ = false;
  bool has_news_ = false;  // in the hub's list
  bool keep_alive_ = true;
  bool is_chunked_ = false;
  std::string queued_;
  std::size_t sending_bytes_ = 0;
  std::function<void()> on_disconnect_;
};

/// Status line and headers of an answer; control characters in values become spaces.
void append_response_head(std::string& out, int status, const Headers& headers);

}  // namespace tandem::net
