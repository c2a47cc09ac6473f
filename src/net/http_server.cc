#include "tandem/net/http_server.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <thread>
#include <utility>

#include "tandem/core/log.h"
#include "tandem/net/connection.h"

namespace tandem::net {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Acceptor = asio::basic_socket_acceptor<tcp, Executor>;

/// Connections beyond the limit that are still told why they are refused.
constexpr std::size_t kMaxRefusals = 64;
constexpr std::chrono::milliseconds kAcceptRetry{50};

/// Resolves, binds and listens on the first address that works.
core::Result<Acceptor> listen(asio::io_context& io, const HttpServerOptions& options) {
  const auto fail = [&options](const error_code& error) {
    return core::unavailable("cannot listen on " + options.host + ":" +
                             std::to_string(options.port) + ": " + error.message() +
                             "; choose another host or port");
  };
  error_code error;
  tcp::resolver resolver(io);
  const auto addresses =
      resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (error) return fail(error);
  for (const auto& address : addresses) {
    Acceptor acceptor(io);
    acceptor.open(address.endpoint().protocol(), error);
    if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor.bind(address.endpoint(), error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (!error) return acceptor;
  }
  return fail(error);
}

/// How often deadlines are looked at: often enough for the shortest.
std::chrono::milliseconds sweep_interval(const HttpServerOptions& options) {
  const auto shortest =
      std::min({options.header_timeout, options.idle_timeout, options.write_timeout});
  return std::clamp(shortest / 8, std::chrono::milliseconds(5), std::chrono::milliseconds(250));
}

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(const HttpServerOptions& options, HttpHandler handler, ErrorBody error_body)
      : acceptor_(io_), retry_(io_), sweep_(io_), work_(io_.get_executor()) {
    context_.options = options;
    context_.handler = std::move(handler);
    context_.error_body = std::move(error_body);
    context_.hub = std::make_shared<Hub>([this] { asio::post(io_, [this] { drain_news(); }); });
  }

  ~HttpServerImpl() override {
    if (!thread_.joinable()) return;
    asio::post(io_, [this] { shut_down(); });
    thread_.join();
    context_.hub->close();
  }
  HttpServerImpl(const HttpServerImpl&) = delete;
  HttpServerImpl& operator=(const HttpServerImpl&) = delete;

  core::Status open() {
    const HttpServerOptions& options = context_.options;
    if (!options.tls_certificate_file.empty()) {
      TANDEM_ASSIGN(tls_, TlsContext::load(options.tls_certificate_file, options.tls_key_file));
    }
    TANDEM_ASSIGN(acceptor_, listen(io_, context_.options));
    error_code error;
    port_ = acceptor_.local_endpoint(error).port();
    sweep_deadlines();
    accept_next();
    thread_ = std::thread([this] { io_.run(); });
    return {};
  }

  std::uint16_t port() const override { return port_; }
  std::size_t open_connections() const override { return context_.num_connections; }
  void stop_accepting() override {
    context_.hub->set_draining();
    asio::post(io_, [this] { close_listener(); });
  }

 private:
  void accept_next() {
    acceptor_.async_accept([this](const error_code& error, Socket socket) {
      if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
      if (error) return retry_accept(error);
      admit(std::move(socket));
      accept_next();
    });
  }

  void admit(Socket socket) {
    const std::size_t count = context_.connections.size();
    const std::size_t limit = context_.options.max_connections;
    if (count >= limit + kMaxRefusals) return;  // closed as it is
    auto transport = tls_ ? tls_->wrap(std::move(socket)) : make_plain_transport(std::move(socket));
    const auto connection = std::make_shared<Connection>(std::move(transport), context_);
    count < limit ? connection->start() : connection->refuse_service();
  }

  /// Out of file descriptors or memory: the pending client waits in the backlog for a while.
  void retry_accept(const error_code& error) {
    core::log_warning("http: cannot accept a connection: " + error.message());
    retry_.expires_after(kAcceptRetry);
    retry_.async_wait([this](const error_code& cancelled) {
      if (!cancelled && acceptor_.is_open()) accept_next();
    });
  }

  void sweep_deadlines() {
    const auto now = Clock::now();
    for (Connection* connection : context_.connections) connection->check_deadline(now);
    sweep_.expires_after(sweep_interval(context_.options));
    sweep_.async_wait([this](const error_code& cancelled) {
      if (!cancelled && !is_shut_down_) sweep_deadlines();
    });
  }

  void drain_news() {
    for (const auto& exchange : context_.hub->take()) {
      if (const auto connection = exchange->connection()) connection->flush(*exchange);
      exchange->report_disconnect();
    }
  }

  void close_listener() {
    error_code ignored;
    acceptor_.close(ignored);
    for (Connection* connection : context_.connections) connection->close_if_idle();
  }

  /// Every coroutine ends with its socket; then run() returns.
  void shut_down() {
    is_shut_down_ = true;
    context_.hub->set_draining();
    close_listener();
    for (Connection* connection : context_.connections) connection->abort();
    retry_.cancel();
    sweep_.cancel();
    work_.reset();
  }

  // Destroyed last: responders and connections end before what they use.
  std::unique_ptr<TlsContext> tls_;
  asio::io_context io_{1};
  Acceptor acceptor_;
  asio::steady_timer retry_;
  asio::steady_timer sweep_;
  asio::executor_work_guard<Executor> work_;
  ServerContext context_;
  bool is_shut_down_ = false;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace

core::Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpServerOptions& options,
                                                            HttpHandler handler,
                                                            ErrorBody error_body) {
  auto server =
      std::make_unique<HttpServerImpl>(options, std::move(handler), std::move(error_body));
  TANDEM_TRY(server->open());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace tandem::net
