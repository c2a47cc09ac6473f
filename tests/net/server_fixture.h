#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "raw_socket.h"
#include "tandem/net/http_server.h"

namespace tandem::net::testing {

using namespace std::chrono_literals;

/// Waits until `condition` holds; false after `limit`.
inline bool eventually(const std::function<bool()>& condition,
                       std::chrono::milliseconds limit = 10s) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return condition();
}

/// A server with routes: /hello answers at once, /echo sends the body back, /park keeps the
/// responder in `parked`, /drop destroys it, /stream is a parked stream that has begun, all else is
/// answered with 404.
class HttpServerTest : public ::testing::Test {
 protected:
  void start(HttpServerOptions options = {}) {
    options.port = 0;
    auto server = HttpServer::start(
        options,
        [this](HttpRequest request, std::shared_ptr<Responder> responder) {
          handle(std::move(request), std::move(responder));
        },
        [](int status, std::string_view message) {
          return "{\"status\":" + std::to_string(status) + ",\"message\":\"" +
                 std::string(message) + "\"}";
        });
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
  }

  void handle(HttpRequest request, std::shared_ptr<Responder> responder) {
    ++num_handled_;
    {
      const std::lock_guard lock(mutex_);
      last_request_ = request;
    }
    const std::string path(request.path());
    if (path == "/hello") return responder->respond(200, {}, "hello");
    if (path == "/echo") return responder->respond(200, {}, std::move(request.body));
    if (path == "/drop") return;
    if (path != "/park" && path != "/stream") return responder->respond(404, {}, "");
    responder->on_disconnect([this] { ++num_disconnects_; });
    if (path == "/stream") responder->start_stream(200, {{"Content-Type", "text/event-stream"}});
    const std::lock_guard lock(mutex_);
    parked_.push_back(std::move(responder));
  }

  HttpRequest last_request() {
    const std::lock_guard lock(mutex_);
    return last_request_;
  }
  std::shared_ptr<Responder> parked(std::size_t index = 0) {
    const bool is_there = eventually([&] {
      const std::lock_guard lock(mutex_);
      return parked_.size() > index;
    });
    const std::lock_guard lock(mutex_);
    return is_there ? parked_[index] : nullptr;
  }
  void release_all() {
    std::vector<std::shared_ptr<Responder>> released;
    const std::lock_guard lock(mutex_);
    released.swap(parked_);
  }

  RawSocket connect(int receive_buffer_bytes = 0) {
    return RawSocket(server_->port(), receive_buffer_bytes);
  }
  /// Sends `bytes` on a new connection and returns all that comes back.
  std::string exchange(std::string_view bytes) {
    RawSocket client = connect();
    client.send(bytes);
    return client.receive_all();
  }

  std::atomic<int> num_handled_ = 0;
  std::atomic<int> num_disconnects_ = 0;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Responder>> parked_;
  HttpRequest last_request_;
  std::unique_ptr<HttpServer> server_;  // ends first: its thread uses the members above
};

inline constexpr std::string_view kGetHello = "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n";
inline constexpr std::string_view kGetHelloClose =
    "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

inline std::string post(std::string_view path, std::string_view body,
                        std::string_view more_headers = "") {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         std::string(more_headers) + "\r\n" + std::string(body);
}

}  // namespace tandem::net::testing
