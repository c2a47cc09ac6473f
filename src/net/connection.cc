#include "tandem/net/connection.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <exception>
#include <utility>

#include "tandem/core/log.h"

namespace tandem::net {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using error_code = ErrorCode;

constexpr std::size_t kReadBytes = 16 * 1024;
/// Bytes of later requests that are read ahead while one is answered.
constexpr std::size_t kReadAheadBytes = 32 * 1024;
/// The kernel's share of what a stream has not delivered; left alone it grows to megabytes.
constexpr int kSendBufferBytes = 256 * 1024;
/// A refused client may still be sending; closing at once would reset the connection and the
/// client might never see why.
constexpr std::chrono::milliseconds kLingerTime{2'000};

/// The responder that the handler owns. Its destruction ends an exchange that has no answer.
class ExchangeResponder final : public Responder {
 public:
  ExchangeResponder(std::shared_ptr<Exchange> exchange, HttpServer::ErrorBody error_body)
      : exchange_(std::move(exchange)), error_body_(std::move(error_body)) {}
  ~ExchangeResponder() override {
    exchange_->abandon([this] { return error_body_(500, "The request got no answer."); });
  }
  ExchangeResponder(const ExchangeResponder&) = delete;
  ExchangeResponder& operator=(const ExchangeResponder&) = delete;

  void respond(int status, Headers headers, std::string body) override {
    exchange_->respond(status, headers, body);
  }
  void start_stream(int status, Headers headers) override {
    exchange_->start_stream(status, headers);
  }
  bool write(std::string_view chunk) override { return exchange_->write(chunk); }
  using Responder::finish;
  bool finish(std::string_view last_chunk) override { return exchange_->finish(last_chunk); }
  void on_disconnect(std::function<void()> callback) override {
    exchange_->on_disconnect(std::move(callback));
  }

 private:
  std::shared_ptr<Exchange> exchange_;
  HttpServer::ErrorBody error_body_;
};

struct Refusal {
  int status;
  std::string message;
};

Refusal refusal_of(const error_code& error, const HttpServerOptions& options) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return {431,
            "The request headers exceed " + std::to_string(options.max_header_bytes) + " bytes."};
  }
  if (error == http::error::body_limit) {
    return {413, "The request body exceeds " + std::to_string(options.max_body_bytes) + " bytes."};
  }
  return {400, "The request is not valid HTTP/1.1 (" + error.message() + ")."};
}

/// An absolute-form target (RFC 9112, 3.2.2) becomes path and query, and its host goes before the
/// Host header.
void set_target(std::string target, HttpRequest& request) {
  const std::size_t scheme = target.find("://");
  const std::string_view name = std::string_view(target).substr(0, scheme);
  if (beast::iequals(name, "http") || beast::iequals(name, "https")) {
    const std::size_t begin = scheme + 3;
    const std::size_t end = std::min(target.find_first_of("/?", begin), target.size());
    for (auto& [key, value] : request.headers) {
      if (beast::iequals(key, "Host")) value = target.substr(begin, end - begin);
    }
    target.erase(0, end);
    if (target.empty() || target.front() == '?') target.insert(0, "/");
  }
  request.target = std::move(target);
}

}  // namespace

/// The parser and what has been charged to the server's budget for its body.
struct Connection::Incoming {
  explicit Incoming(ServerContext& shared) : context(shared) {
    parser.header_limit(static_cast<std::uint32_t>(shared.options.max_header_bytes));
    parser.body_limit(shared.options.max_body_bytes);
  }
  ~Incoming() { context.receiving_bytes -= charged_bytes; }
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;

  ServerContext& context;
  http::request_parser<http::string_body> parser;
  std::size_t charged_bytes = 0;
  bool has_header = false;
};

Connection::Connection(std::unique_ptr<Transport> transport, ServerContext& context)
    : context_(context), transport_(std::move(transport)), socket_(transport_->socket()) {
  context_.connections.insert(this);
  context_.num_connections = context_.connections.size();
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  socket_.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
}

Connection::~Connection() {
  context_.connections.erase(this);
  context_.num_connections = context_.connections.size();
}

void Connection::start() {
  asio::co_spawn(
      socket_.get_executor(), [self = shared_from_this()] { return self->serve(); },
      [self = shared_from_this()](std::exception_ptr error) {
        if (!error) return;
        self->abort();
        try {
          std::rethrow_exception(error);
        } catch (const std::exception& failure) {
          core::log_error(std::string("http: a connection was dropped: ") + failure.what());
        }
      });
}

void Connection::refuse_service() {
  is_refused_ = true;
  start();
}

Task<bool> Connection::handshake() {
  enter(Phase::kReceiving, context_.options.header_timeout);
  const error_code error = co_await transport_->handshake();
  co_return !error;
}

void Connection::enter(Phase phase, Clock::duration limit) {
  phase_ = phase;
  is_expired_ = false;
  const auto now = Clock::now();
  deadline_ = limit == Clock::duration::max() ? Clock::time_point::max() : now + limit;
}

Task<void> Connection::serve() {
  if (!co_await handshake()) co_return;
  if (is_refused_) {
    co_await refuse(503, "The server has too many connections; try again later.");
    co_return;
  }
  for (;;) {
    HttpRequest request;
    Exchange::Traits traits;
    if (!co_await receive(request, traits)) break;
    enter(Phase::kAnswering, Clock::duration::max());
    is_answered_ = false;
    traits.max_outbox_bytes = context_.options.max_outbox_bytes;
    exchange_ = std::make_shared<Exchange>(context_.hub, weak_from_this(), traits);
    context_.handler(std::move(request),
                     std::make_shared<ExchangeResponder>(exchange_, context_.error_body));
    flush_exchange();
    const bool is_answered = co_await await_answer();
    const std::shared_ptr<Exchange> exchange = std::exchange(exchange_, nullptr);
    if (!is_answered) {
      abort();
      exchange->disconnect();
      break;
    }
    exchange->complete();
    if (!exchange->keep_alive()) {
      co_await linger();
      break;
    }
  }
}

/// Reads into buffer_. False at the end of the stream, on an error or a deadline.
Task<bool> Connection::read_some() {
  // A socket tells of its end once: another read would wait for ever.
  if (has_ended_) co_return false;
  error_code error;
  const std::size_t bytes = co_await transport_->read_some(buffer_.prepare(kReadBytes), error);
  buffer_.commit(bytes);
  has_ended_ = error && error != asio::error::operation_aborted;
  has_finished_ = error == asio::error::eof;
  co_return !error;
}

/// The next request. False: refused or gone, the connection must end.
Task<bool> Connection::receive(HttpRequest& request, Exchange::Traits& traits) {
  if (context_.hub->is_draining()) co_return false;
  if (buffer_.size() == 0) buffer_.shrink_to_fit();
  enter(Phase::kIdle, context_.options.idle_timeout);
  Incoming incoming(context_);
  if (!co_await parse(incoming)) co_return false;

  auto message = incoming.parser.release();
  traits.is_http_1_1 = message.version() >= 11;
  traits.keep_alive = message.keep_alive();
  traits.is_head = message.method() == http::verb::head;
  request.method = std::string(message.method_string());
  for (const auto& field : message) {
    request.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  }
  set_target(std::string(message.target()), request);
  request.body = std::move(message.body());
  co_return true;
}

Task<bool> Connection::parse(Incoming& incoming) {
  auto& parser = incoming.parser;
  for (;;) {
    if (phase_ == Phase::kIdle) {  // RFC 9112, 2.2: empty lines before a request are ignored
      const auto* text = static_cast<const char*>(buffer_.data().data());
      const auto is_blank = [](char c) {
        return c == '\r' || c == '\n';
      };
      const auto* begin = std::find_if_not(text, text + buffer_.size(), is_blank);
      buffer_.consume(static_cast<std::size_t>(begin - text));
    }
    if (buffer_.size() > 0) {
      if (phase_ == Phase::kIdle) enter(Phase::kReceiving, context_.options.header_timeout);
      error_code error;
      buffer_.consume(parser.put(buffer_.data(), error));
      if (error && error != http::error::need_more) {
        Refusal refusal = refusal_of(error, context_.options);
        co_await refuse(refusal.status, std::move(refusal.message));
        co_return false;
      }
      if (parser.is_header_done() && !std::exchange(incoming.has_header, true)) {
        if (!co_await accept_header(incoming)) co_return false;
        error = {};
      }
      if (!charge_body(incoming)) {
        co_await refuse(503, "The server is receiving too many bytes; try again later.");
        co_return false;
      }
      if (buffer_.size() > context_.options.max_header_bytes + kReadAheadBytes) {
        co_await refuse(400, "A chunk header or trailer of the request is too long.");
        co_return false;
      }
      if (parser.is_done()) co_return true;
      if (!error && buffer_.size() > 0) continue;
    }
    if (!co_await read_some()) {
      if (is_expired_ && phase_ == Phase::kReceiving) {
        co_await refuse(408, "The request was not received in time.");
      }
      co_return false;
    }
  }
}

/// Checks what the header promises, and asks for a body that waits to be asked for.
Task<bool> Connection::accept_header(Incoming& incoming) {
  auto& parser = incoming.parser;
  parser.eager(true);
  const auto& message = parser.get();
  const auto coding = message.find(http::field::transfer_encoding);
  if (coding != message.end() && !beast::iequals(coding->value(), "chunked")) {
    co_await refuse(501, "Transfer-Encoding must be chunked.");
    co_return false;
  }
  const auto expect = message.find(http::field::expect);
  if (expect == message.end()) co_return true;
  if (!beast::iequals(expect->value(), "100-continue")) {
    co_await refuse(417, "Expect must be 100-continue.");
    co_return false;
  }
  if (parser.is_done() || buffer_.size() > 0 || message.version() < 11) co_return true;
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  const error_code error = co_await transport_->write_all(asio::buffer(kContinue));
  co_return !error;
}

/// Counts the body against the server's budget. False when that is spent.
bool Connection::charge_body(Incoming& incoming) {
  if (!incoming.has_header) return true;
  const auto& parser = incoming.parser;
  const auto announced = parser.content_length();
  const std::size_t bytes = std::max<std::size_t>(
      announced ? static_cast<std::size_t>(*announced) : 0, parser.get().body().size());
  const std::size_t added = bytes - std::min(bytes, incoming.charged_bytes);
  if (added > context_.options.max_receiving_bytes - context_.receiving_bytes) return false;
  context_.receiving_bytes += added;
  incoming.charged_bytes += added;
  return true;
}

/// Reads on while the answer is made: early requests are kept, and a client that leaves is noticed.
/// False when it left before the answer was complete.
Task<bool> Connection::await_answer() {
  const auto is_open = [this] {
    return !is_answered_ && !is_aborted_;
  };
  while (is_open() && !has_ended_ && buffer_.size() < kReadAheadBytes) co_await read_some();
  // A client that has finished sending may still read. If it does not, it resets the connection
  // when something comes.
  if (is_open() && has_ended_) {
    if (!has_finished_ || !exchange_->probe()) co_return false;
    flush_exchange();
  }
  if (is_open()) {
    error_code error;
    co_await socket_.async_wait(Socket::wait_error, resume(error));
  }
  co_return is_answered_;
}

void Connection::flush(const Exchange& exchange) {
  if (exchange_.get() == &exchange) flush_exchange();
}

void Connection::flush_exchange() {
  if (is_aborted_ || is_answered_) return;
  if (exchange_->must_abort()) return abort();
  if (is_writing_) return;
  switch (exchange_->take(sending_)) {
    case Exchange::Next::kNothing:
      return;
    case Exchange::Next::kBytes:
      return write_some();
    case Exchange::Next::kDone:
      is_answered_ = true;
      deadline_ = Clock::time_point::max();
      error_code ignored;
      socket_.cancel(ignored);  // wakes await_answer()
      return;
  }
}

void Connection::write_some() {
  is_writing_ = true;
  deadline_ = Clock::now() + context_.options.write_timeout;
  transport_->write_some(asio::buffer(sending_.data() + sent_bytes_, sending_.size() - sent_bytes_),
                         [self = shared_from_this()](const error_code& error, std::size_t bytes) {
                           self->is_writing_ = false;
                           if (self->is_aborted_ || !self->exchange_) return;
                           if (error) return self->abort();
                           self->sent_bytes_ += bytes;
                           if (self->sent_bytes_ < self->sending_.size()) return self->write_some();
                           self->sending_.clear();
                           self->sent_bytes_ = 0;
                           self->deadline_ = Clock::time_point::max();
                           self->flush_exchange();
                         });
}

/// Answers a request that never became one, and closes.
Task<void> Connection::refuse(int status, std::string message) {
  enter(Phase::kClosing, context_.options.write_timeout);
  const std::string body = context_.error_body(status, message);
  std::string answer;
  Headers headers = {{"Content-Type", "application/json"},
                     {"Content-Length", std::to_string(body.size())},
                     {"Connection", "close"}};
  if (status == 503) headers.emplace_back("Retry-After", "1");
  append_response_head(answer, status, headers);
  answer.append("\r\n").append(body);
  const error_code error = co_await transport_->write_all(asio::buffer(answer));
  if (!error) co_await linger();
}

/// Half-closes and discards what still comes for a while, so that the client reads the answer.
Task<void> Connection::linger() {
  enter(Phase::kClosing, kLingerTime);
  buffer_.consume(buffer_.size());
  co_await transport_->end_sending();
  error_code error;
  std::array<char, kReadBytes / 4> scratch;
  while (!error && !is_expired_) {
    co_await socket_.async_read_some(asio::buffer(scratch), resume(error));
  }
}

void Connection::check_deadline(Clock::time_point now) {
  if (now < deadline_) return;
  deadline_ = Clock::time_point::max();
  if (phase_ == Phase::kAnswering) return abort();  // no progress in writing
  is_expired_ = true;
  error_code ignored;
  socket_.cancel(ignored);
}

void Connection::close_if_idle() {
  if (phase_ == Phase::kIdle) check_deadline(deadline_);
}

void Connection::abort() {
  if (std::exchange(is_aborted_, true)) return;
  error_code ignored;
  // Reset rather than close: the kernel must not go on sending to a client that reads nothing.
  socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  socket_.close(ignored);
}

}  // namespace tandem::net
