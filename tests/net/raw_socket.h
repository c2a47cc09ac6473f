#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace tandem::net::testing {

/// A blocking TCP client that does exactly what a test says, rude things included.
class RawSocket {
 public:
  /// `source`: a loopback address (127.0.0.0/8) to come from; each has its own ports to use up.
  explicit RawSocket(std::uint16_t port, int receive_buffer_bytes = 0,
                     std::uint32_t source = INADDR_LOOPBACK)
      : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer_bytes > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
    }
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    if (source != INADDR_LOOPBACK) {
      address.sin_addr.s_addr = htonl(source);
      ::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    }
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ||
                    (errno == EINTR && connects_later());
  }
  ~RawSocket() { close(); }
  RawSocket(RawSocket&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), is_connected_(other.is_connected_) {}
  RawSocket& operator=(RawSocket&&) = delete;

  bool is_connected() const { return is_connected_; }
  int fd() const { return fd_; }

  /// False when the peer has gone.
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  /// What arrives until `needle` has been seen, the peer closes, or the time is up.
  std::string receive_until(std::string_view needle,
                            std::chrono::milliseconds limit = std::chrono::seconds(10)) {
    std::string text;
    const auto end = std::chrono::steady_clock::now() + limit;
    while (needle.empty() || text.find(needle) == std::string::npos) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          end - std::chrono::steady_clock::now());
      pollfd poller = {fd_, POLLIN, 0};
      if (left.count() <= 0) break;
      const int num_ready = ::poll(&poller, 1, static_cast<int>(left.count()));
      if (num_ready < 0 && errno == EINTR) continue;
      if (num_ready <= 0) break;
      char bytes[4096];
      const ssize_t count = ::recv(fd_, bytes, sizeof bytes, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        is_closed_by_peer_ = true;
        break;
      }
      text.append(bytes, static_cast<std::size_t>(count));
    }
    return text;
  }
  /// Everything until the peer closes.
  std::string receive_all(std::chrono::milliseconds limit = std::chrono::seconds(10)) {
    return receive_until({}, limit);
  }
  bool is_closed_by_peer() const { return is_closed_by_peer_; }

  void half_close() const { ::shutdown(fd_, SHUT_WR); }
  /// Closes with a reset instead of an orderly end.
  void reset() {
    const linger hard = {1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  /// A signal (a fuzzer's timer) has cut connect() short, which goes on by itself.
  bool connects_later() const {
    pollfd poller = {fd_, POLLOUT, 0};
    while (::poll(&poller, 1, -1) < 0 && errno == EINTR) {
    }
    int error = 0;
    socklen_t size = sizeof error;
    return ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  }

  int fd_;
  bool is_connected_ = false;
  bool is_closed_by_peer_ = false;
};

}  // namespace tandem::net::testing
