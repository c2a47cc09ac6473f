#include "tandem/net/http_client.h"

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <exception>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace tandem::net {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

using Executor = asio::io_context::executor_type;
using Socket = asio::basic_stream_socket<tcp, Executor>;
template <typename T>
using Task = asio::awaitable<T, Executor>;

constexpr std::size_t kReadBytes = 16 * 1024;
constexpr std::size_t kMaxHeaderBytes = 64 * 1024;
constexpr std::size_t kMaxCollectedBytes = 64 * 1024 * 1024;

auto resume(error_code& error) {
  return asio::redirect_error(asio::use_awaitable_t<Executor>{}, error);
}

/// A Beast body that hands its bytes to a callback, or collects them.
struct SinkBody {
  struct value_type {  // NOLINT: the name is Beast's
    std::function<void(std::string_view)> on_data;
    std::string collected;
  };

  class reader {  // NOLINT: the name is Beast's
   public:
    template <bool kIsRequest, typename Fields>
    reader(http::header<kIsRequest, Fields>& header, value_type& body) : body_(&body) {
      if constexpr (std::is_same_v<decltype(header), http::header<false>&>) header_ = &header;
    }

    void init(const boost::optional<std::uint64_t>&, error_code& error) { error = {}; }
    template <typename Buffers>
    std::size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      const bool is_streamed = body_->on_data && header_->result_int() / 100 == 2;
      std::size_t bytes = 0;
      const auto end = asio::buffer_sequence_end(buffers);
      for (auto part = asio::buffer_sequence_begin(buffers); part != end; ++part) {
        const asio::const_buffer buffer = *part;
        const std::string_view data(static_cast<const char*>(buffer.data()), buffer.size());
        bytes += data.size();
        if (is_streamed) {
          body_->on_data(data);
        } else if (data.size() > kMaxCollectedBytes - body_->collected.size()) {
          error = http::error::body_limit;
          return bytes;
        } else {
          body_->collected.append(data);
        }
      }
      return bytes;
    }
    void finish(error_code& error) { error = {}; }

   private:
    const http::header<false>* header_ = nullptr;
    value_type* body_;
  };
};

using Parser = http::response_parser<SinkBody>;

/// A connection and what has been read from it but not parsed.
struct Link {
  explicit Link(asio::io_context& io) : socket(io) {}
  Socket socket;
  beast::flat_buffer buffer;
};

/// One request on its way.
struct Call {
  Call(asio::io_context& io, Url target) : url(std::move(target)), timer(io) {}
  Url url;
  bool is_head = false;
  std::string wire;  // the request as sent
  HttpClient::Callbacks callbacks;
  asio::basic_waitable_timer<std::chrono::steady_clock,
                             asio::wait_traits<std::chrono::steady_clock>, Executor>
      timer;
  std::unique_ptr<Link> link;
  bool is_expired = false;
  bool has_answer_bytes = false;
  core::Result<ClientResponse> result = core::internal_error("the request has not run");
};

std::string address_of(const Url& url) {
  return url.host + ":" + std::to_string(url.port);
}

bool has_control_character(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

/// The request's bytes. kInvalidArgument if a part would break the message apart.
core::Result<std::string> serialize(const Url& url, const HttpRequest& request) {
  std::string target = url.path + request.target;
  if (target.empty()) target = "/";
  const bool is_broken = request.method.empty() || has_control_character(request.method) ||
                         has_control_character(target) || target.find(' ') != std::string::npos;
  if (is_broken) return core::invalid_argument("the request's method or target is not valid");
  std::string wire = request.method + " " + target + " HTTP/1.1\r\n";
  const bool is_ipv6 = url.host.find(':') != std::string::npos;
  const std::string host = is_ipv6 ? "[" + url.host + "]" : url.host;
  wire += "Host: " + host + ":" + std::to_string(url.port) + "\r\nUser-Agent: tandem\r\n";
  for (const auto& [name, value] : request.headers) {
    if (has_control_character(name) || has_control_character(value)) {
      return core::invalid_argument("header '" + name + "' holds a control character");
    }
    wire.append(name).append(": ").append(value).append("\r\n");
  }
  if (!request.body.empty() || request.method == "POST") {
    wire += "Content-Length: " + std::to_string(request.body.size()) + "\r\n";
  }
  return wire.append("\r\n").append(request.body);
}

class HttpClientImpl final : public HttpClient {
 public:
  void send(const Url& url, HttpRequest request, std::chrono::milliseconds timeout,
            Callbacks callbacks) override;
  void every(std::chrono::milliseconds interval, std::function<void()> tick) override;
  void run() override;
  void stop() override { io_.stop(); }

 private:
  using Timer = decltype(Call::timer);

  Task<void> perform(Call& call);
  Task<core::Status> connect(Call& call);
  Task<core::Result<ClientResponse>> exchange(Call& call);
  Task<error_code> receive(Call& call, Parser& parser);
  void finish(Call& call, core::Result<ClientResponse> result);
  void arm(Timer& timer, std::chrono::milliseconds interval, std::function<void()> tick);

  asio::io_context io_{1};
  std::map<std::string, tcp::resolver::results_type> addresses_;
  std::map<std::string, std::vector<std::unique_ptr<Link>>> idle_links_;
  std::vector<std::unique_ptr<Timer>> tickers_;
  std::size_t num_in_flight_ = 0;
};

void HttpClientImpl::send(const Url& url, HttpRequest request, std::chrono::milliseconds timeout,
                          Callbacks callbacks) {
  auto call = std::make_shared<Call>(io_, url);
  call->callbacks = std::move(callbacks);
  ++num_in_flight_;
  auto wire = serialize(url, request);
  if (!wire.ok()) {
    asio::post(io_, [this, call, status = wire.status()] { finish(*call, status); });
    return;
  }
  call->wire = std::move(wire).value();
  call->is_head = request.method == "HEAD";
  call->timer.expires_after(timeout);
  call->timer.async_wait([call](const error_code& cancelled) {
    if (cancelled) return;
    call->is_expired = true;
    error_code ignored;
    if (call->link) call->link->socket.close(ignored);
  });
  asio::co_spawn(
      io_, [this, call] { return perform(*call); },
      [this, call](std::exception_ptr error) {
        if (error) call->result = core::internal_error("the HTTP client failed unexpectedly");
        finish(*call, std::move(call->result));
      });
}

void HttpClientImpl::finish(Call& call, core::Result<ClientResponse> result) {
  call.timer.cancel();
  const auto on_done = std::move(call.callbacks.on_done);
  call.callbacks = {};
  if (on_done) on_done(std::move(result));
  if (--num_in_flight_ == 0) io_.stop();
}

Task<void> HttpClientImpl::perform(Call& call) {
  auto& idle = idle_links_[address_of(call.url)];
  if (!idle.empty()) {
    call.link = std::move(idle.back());
    idle.pop_back();
    call.result = co_await exchange(call);
    // The server may have closed the idle connection just before: try once more on a new one.
    if (call.result.ok() || call.is_expired || call.has_answer_bytes) co_return;
  }
  const core::Status connected = co_await connect(call);
  if (connected.ok()) {
    call.result = co_await exchange(call);
  } else {
    call.result = connected;
  }
}

Task<core::Status> HttpClientImpl::connect(Call& call) {
  const std::string address = address_of(call.url);
  error_code error;
  auto known = addresses_.find(address);
  if (known == addresses_.end()) {
    asio::ip::basic_resolver<tcp, Executor> resolver(io_);
    auto found = co_await resolver.async_resolve(call.url.host, std::to_string(call.url.port),
                                                 resume(error));
    if (error) co_return core::unavailable("cannot resolve " + address + ": " + error.message());
    known = addresses_.insert_or_assign(address, std::move(found)).first;
  }
  call.link = std::make_unique<Link>(io_);
  if (call.is_expired) co_return core::cancelled("timed out while resolving " + address);
  co_await asio::async_connect(call.link->socket, known->second, resume(error));
  if (call.is_expired) co_return core::cancelled("timed out while connecting to " + address);
  if (error) co_return core::unavailable("cannot connect to " + address + ": " + error.message());
  call.link->socket.set_option(tcp::no_delay(true), error);
  co_return core::Status();
}

/// Sends the request over call.link and reads the answer; keeps the link if it may be used again.
Task<core::Result<ClientResponse>> HttpClientImpl::exchange(Call& call) {
  const std::string address = address_of(call.url);
  const auto fail = [&call, &address](const error_code& error) {
    if (call.is_expired) return core::cancelled("timed out waiting for " + address);
    return core::data_loss("the exchange with " + address + " failed: " + error.message());
  };
  error_code error;
  co_await asio::async_write(call.link->socket, asio::buffer(call.wire), resume(error));
  // A server may refuse before it has read everything: its answer counts, not the write error.
  const error_code write_error = error;

  std::optional<Parser> parser;
  do {  // answers 1xx precede the final one
    parser.emplace();
    parser->header_limit(kMaxHeaderBytes);
    parser->body_limit(boost::none);
    parser->eager(true);
    parser->skip(call.is_head);
    parser->get().body().on_data = call.callbacks.on_data;
    error = co_await receive(call, *parser);
    if (error) co_return fail(write_error && !call.has_answer_bytes ? write_error : error);
  } while (parser->get().result_int() / 100 == 1);

  const bool is_reusable = parser->keep_alive() && call.link->buffer.size() == 0 && !write_error;
  if (is_reusable) idle_links_[address].push_back(std::move(call.link));
  auto message = parser->release();
  ClientResponse response;
  response.status = static_cast<int>(message.result_int());
  for (const auto& field : message) {
    response.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  }
  response.body = std::move(message.body().collected);
  co_return response;
}

Task<error_code> HttpClientImpl::receive(Call& call, Parser& parser) {
  Link& link = *call.link;
  for (;;) {
    error_code error;
    while (link.buffer.size() > 0 && !parser.is_done()) {
      const std::size_t used = parser.put(link.buffer.data(), error);
      link.buffer.consume(used);
      if (error == http::error::need_more) break;
      if (error) co_return error;
    }
    if (parser.is_done()) co_return error_code();
    if (link.buffer.size() > 2 * kMaxHeaderBytes) co_return http::error::buffer_overflow;
    const std::size_t bytes =
        co_await link.socket.async_read_some(link.buffer.prepare(kReadBytes), resume(error));
    link.buffer.commit(bytes);
    call.has_answer_bytes |= bytes > 0;
    if (error == asio::error::eof && parser.got_some()) {
      parser.put_eof(error);
      co_return error;
    }
    if (error) co_return error;
  }
}

void HttpClientImpl::every(std::chrono::milliseconds interval, std::function<void()> tick) {
  tickers_.push_back(std::make_unique<Timer>(io_));
  arm(*tickers_.back(), interval, std::move(tick));
}

void HttpClientImpl::arm(Timer& timer, std::chrono::milliseconds interval,
                         std::function<void()> tick) {
  timer.expires_after(interval);
  timer.async_wait([this, &timer, interval, tick = std::move(tick)](const error_code& cancelled) {
    if (cancelled) return;
    tick();
    arm(timer, interval, tick);
  });
}

void HttpClientImpl::run() {
  if (num_in_flight_ == 0) return;
  io_.restart();
  io_.run();
}

}  // namespace

std::unique_ptr<HttpClient> HttpClient::create() {
  return std::make_unique<HttpClientImpl>();
}

core::Result<ClientResponse> fetch(const Url& url, const HttpRequest& request,
                                   std::chrono::milliseconds timeout) {
  core::Result<ClientResponse> answer = core::internal_error("the request has not run");
  const auto client = HttpClient::create();
  HttpClient::Callbacks callbacks;
  callbacks.on_done = [&answer](core::Result<ClientResponse> result) {
    answer = std::move(result);
  };
  client->send(url, request, timeout, std::move(callbacks));
  client->run();
  return answer;
}

}  // namespace tandem::net
