#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <functional>
#include <memory>
#include <string>

#include "tandem/core/status.h"

namespace tandem::net {

using Executor = boost::asio::io_context::executor_type;
using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp, Executor>;
template <typename T>
using Task = boost::asio::awaitable<T, Executor>;
using ErrorCode = boost::system::error_code;

/// A completion token: the coroutine goes on with what happened in `error`.
inline auto resume(ErrorCode& error) {
  return boost::asio::redirect_error(boost::asio::use_awaitable_t<Executor>{}, error);
}

/// A client's bytes: the socket's own, or those within TLS. At most one reading and one writing
/// operation at a time; closing or cancelling the socket ends them. Thread: I/O.
class Transport {
 public:
  using WriteHandler = std::function<void(const ErrorCode& error, std::size_t bytes)>;

  virtual ~Transport() = default;
  /// Before anything else.
  virtual Task<ErrorCode> handshake() = 0;
  virtual Task<std::size_t> read_some(boost::asio::mutable_buffer buffer, ErrorCode& error) = 0;
  virtual void write_some(boost::asio::const_buffer buffer, WriteHandler handler) = 0;
  virtual Task<ErrorCode> write_all(boost::asio::const_buffer buffer) = 0;
  /// Tells the client that nothing more will be sent.
  virtual Task<void> end_sending() = 0;
  virtual Socket& socket() = 0;
};

/// A server's certificate and key. Outlives the transports that use it.
class TlsContext {
 public:
  /// From PEM files: the certificate with its chain, and its key. TLS 1.2 and 1.3.
  /// kInvalidArgument says which file is wrong and why.
  static core::Result<std::unique_ptr<TlsContext>> load(const std::string& certificate_file,
                                                        const std::string& key_file);
  virtual ~TlsContext() = default;
  virtual std::unique_ptr<Transport> wrap(Socket socket) = 0;
};

std::unique_ptr<Transport> make_plain_transport(Socket socket);

}  // namespace tandem::net
