#include "tandem/net/transport.h"

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <utility>

namespace tandem::net {
namespace {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;

class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(Socket socket) : socket_(std::move(socket)) {}

  Task<ErrorCode> handshake() override { co_return ErrorCode(); }
  Task<std::size_t> read_some(asio::mutable_buffer buffer, ErrorCode& error) override {
    co_return co_await socket_.async_read_some(buffer, resume(error));
  }
  void write_some(asio::const_buffer buffer, WriteHandler handler) override {
    socket_.async_write_some(buffer, std::move(handler));
  }
  Task<ErrorCode> write_all(asio::const_buffer buffer) override {
    ErrorCode error;
    co_await asio::async_write(socket_, buffer, resume(error));
    co_return error;
  }
  Task<void> end_sending() override {
    ErrorCode ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
    co_return;
  }
  Socket& socket() override { return socket_; }

 private:
  Socket socket_;
};

class TlsTransport final : public Transport {
 public:
  TlsTransport(Socket socket, ssl::context& context) : stream_(std::move(socket), context) {}

  Task<ErrorCode> handshake() override {
    ErrorCode error;
    co_await stream_.async_handshake(ssl::stream_base::server, resume(error));
    co_return error;
  }
  Task<std::size_t> read_some(asio::mutable_buffer buffer, ErrorCode& error) override {
    co_return co_await stream_.async_read_some(buffer, resume(error));
  }
  void write_some(asio::const_buffer buffer, WriteHandler handler) override {
    stream_.async_write_some(buffer, std::move(handler));
  }
  Task<ErrorCode> write_all(asio::const_buffer buffer) override {
    ErrorCode error;
    co_await asio::async_write(stream_, buffer, resume(error));
    co_return error;
  }
  Task<void> end_sending() override {
    ErrorCode ignored;  // the client may go on sending, or go
    co_await stream_.async_shutdown(resume(ignored));
  }
  Socket& socket() override { return stream_.next_layer(); }

 private:
  ssl::stream<Socket> stream_;
};

class TlsContextImpl final : public TlsContext {
 public:
  TlsContextImpl() : context_(ssl::context::tls_server) {}

  core::Status load_files(const std::string& certificate_file, const std::string& key_file) {
    ErrorCode error;
    context_.set_options(
        ssl::context::default_workarounds | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1,
        error);
    if (error) return core::internal_error("TLS cannot be set up: " + error.message());
    context_.use_certificate_chain_file(certificate_file, error);
    if (error) {
      return core::invalid_argument("cannot read the TLS certificate '" + certificate_file +
                                    "': " + error.message() + "; give a PEM file");
    }
    context_.use_private_key_file(key_file, ssl::context::pem, error);
    if (error) {
      return core::invalid_argument("cannot use the TLS key '" + key_file +
                                    "': " + error.message() +
                                    "; give the PEM file of the certificate's own key");
    }
    return {};
  }
  std::unique_ptr<Transport> wrap(Socket socket) override {
    return std::make_unique<TlsTransport>(std::move(socket), context_);
  }

 private:
  ssl::context context_;
};

}  // namespace

std::unique_ptr<Transport> make_plain_transport(Socket socket) {
  return std::make_unique<PlainTransport>(std::move(socket));
}

core::Result<std::unique_ptr<TlsContext>> TlsContext::load(const std::string& certificate_file,
                                                           const std::string& key_file) {
  auto context = std::make_unique<TlsContextImpl>();
  TANDEM_TRY(context->load_files(certificate_file, key_file));
  return std::unique_ptr<TlsContext>(std::move(context));
}

}  // namespace tandem::net
