#include "tandem/server/server.h"

#include <thread>
#include <utility>

#include "tandem/server/generation.h"
#include "tandem/server/routes.h"
#include "tandem/server/service.h"

namespace tandem::server {
namespace {

using std::chrono::milliseconds;

/// How long cancelled requests may take to end, and finished answers to reach their clients.
constexpr milliseconds kCancelTime{5'000};
constexpr milliseconds kFlushTime{1'000};

class ServerImpl final : public Server {
 public:
  explicit ServerImpl(const ServerOptions& options)
      : service_(std::make_shared<Service>(options)) {}
  ~ServerImpl() override { drain(milliseconds(0)); }
  ServerImpl(const ServerImpl&) = delete;
  ServerImpl& operator=(const ServerImpl&) = delete;

  core::Status open() {
    const ServerOptions& options = service_->options();
    net::HttpServerOptions http;
    http.host = options.host;
    http.port = options.port;
    http.tls_certificate_file = options.tls_certificate_file;
    http.tls_key_file = options.tls_key_file;
    http.max_body_bytes = options.max_body_bytes;
    http.max_connections = options.max_connections;
    http.max_outbox_bytes = options.max_outbox_bytes;
    TANDEM_ASSIGN(http_, net::HttpServer::start(
                             http,
                             [service = service_](net::HttpRequest request,
                                                  std::shared_ptr<net::Responder> responder) {
                               route(service, std::move(request), std::move(responder));
                             },
                             [](int status, std::string_view message) {
                               return to_json(http_error(status, message));
                             }));
    port_ = http_->port();
    return {};
  }

  void attach(ServedModel model) override { service_->attach(std::move(model)); }
  std::uint16_t port() const override { return port_; }
  bool healthy() const override {
    return http_ ? service_->phase() != Service::Phase::kFailed : was_healthy_;
  }

  bool drain(milliseconds patience) override {
    if (!http_) return true;
    service_->begin_drain();
    const bool is_complete = service_->in_flight().wait_empty(patience);
    if (service_->has_model()) {
      service_->model().engine->begin_drain();
      for (const auto& generation : service_->in_flight().all()) generation->cancel();
    }
    service_->in_flight().wait_empty(kCancelTime);
    http_->stop_accepting();
    const auto end = std::chrono::steady_clock::now() + kFlushTime;
    while (http_->open_connections() > 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    was_healthy_ = healthy();
    http_.reset();
    service_->prompts().stop();
    return is_complete;
  }

 private:
  const std::shared_ptr<Service> service_;
  std::unique_ptr<net::HttpServer> http_;
  std::uint16_t port_ = 0;
  bool was_healthy_ = true;  // at the end of drain()
};

}  // namespace

core::Result<std::unique_ptr<Server>> Server::start(const ServerOptions& options) {
  auto server = std::make_unique<ServerImpl>(options);
  TANDEM_TRY(server->open());
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace tandem::server
