// Any bytes on a connection, in any pieces: the HTTP server answers or closes within its limits,
// keeps no connection, and goes on serving.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>
#include <thread>

#include "raw_socket.h"
#include "tandem/net/http_server.h"

namespace {

using namespace tandem;
using namespace std::chrono_literals;

void require(bool condition) {
  if (!condition) __builtin_trap();
}

std::unique_ptr<net::HttpServer> make_server() {
  net::HttpServerOptions options;
  options.port = 0;
  options.max_body_bytes = 1 << 16;
  options.header_timeout = 1s;
  auto server = net::HttpServer::start(
      options,
      [](net::HttpRequest request, std::shared_ptr<net::Responder> responder) {
        if (request.path().starts_with("/s")) {
          responder->start_stream(200, {{"Content-Type", "text/plain"}});
          responder->write(request.target);
          responder->finish(request.body);
        } else {
          responder->respond(200, {}, std::move(request.body));
        }
      },
      [](int, std::string_view message) { return std::string(message); });
  require(server.ok());
  return std::move(server).value();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::unique_ptr<net::HttpServer> server = make_server();
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  // A closed connection keeps its port for a minute: the runs of one would use up an address.
  static std::uint32_t num_runs = 0;
  net::testing::RawSocket client(server->port(), 0, INADDR_LOOPBACK + num_runs++ % 200);
  require(client.is_connected());
  // The first byte says how long the pieces are.
  const std::size_t piece = size == 0 ? 1 : std::size_t{1} + data[0];
  if (!rest.empty()) rest.remove_prefix(1);
  while (!rest.empty() && client.send(rest.substr(0, piece))) {
    rest.remove_prefix(std::min(piece, rest.size()));
  }
  client.half_close();
  const std::string answer = client.receive_all(20s);
  require(client.is_closed_by_peer());
  require(answer.empty() || answer.starts_with("HTTP/1."));
  // This one, that is: those before it may take a moment to be taken down.
  for (int i = 0; i < 5000 && server->open_connections() > 1; ++i) {
    std::this_thread::sleep_for(1ms);
  }
  require(server->open_connections() <= 1);
  return 0;
}
