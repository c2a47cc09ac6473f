// Whatever arrives on a socket, cut wherever it may be: the server answers or closes, stays up, and
// keeps nothing of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <random>

#include "server_fixture.h"

namespace tandem::net::testing {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

std::ptrdiff_t num_file_descriptors() {
  const std::filesystem::directory_iterator begin("/proc/self/fd");
  return std::distance(begin, {});
}

/// Bytes that are nearly, or not at all, what a server expects.
class NoiseMaker {
 public:
  explicit NoiseMaker(unsigned seed) : random_(seed) {}

  unsigned below(unsigned n) { return static_cast<unsigned>(random_() % n); }
  bool one_in(unsigned n) { return below(n) == 0; }

  std::string make() {
    std::string bytes;
    for (unsigned i = 0; i < 1 + below(5); ++i) bytes += request();
    if (one_in(3)) damage(bytes);
    if (one_in(4)) bytes.resize(below(static_cast<unsigned>(bytes.size()) + 1));
    return bytes;
  }

 private:
  std::string request() {
    switch (below(9)) {
      case 0:
        return std::string(kGetHello);
      case 1:
        return post("/echo", random_bytes(below(2000)));
      case 2:
        return "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks();
      case 3:
        return random_bytes(1 + below(600));
      case 4:
        return many_headers(below(400));
      case 5:
        return "HEAD /hello HTTP/1.1\r\nExpect: 100-continue\r\n\r\n";
      case 6:
        return "POST /echo HTTP/1.1\r\nContent-Length: " + std::to_string(random_()) + "\r\n\r\nab";
      case 7:
        return "GET /" + random_bytes(below(40)) + " HTTP/1." + std::to_string(below(4)) +
               "\r\n\r\n";
      default:
        return post("/drop", "x", "Connection: " + random_bytes(below(8)) + "\r\n");
    }
  }

  std::string chunks() {
    constexpr const char* kSizes[] = {"0",  "1",  "a", "FFFFFFFF", "-1",
                                      "zz", "3;", "",  "07",       "8000000000000000"};
    std::string bytes;
    for (unsigned i = 0; i < below(6); ++i) {
      bytes += std::string(kSizes[below(10)]) + (one_in(5) ? "\n" : "\r\n") +
               random_bytes(below(12)) + "\r\n";
    }
    return bytes + (one_in(2) ? "0\r\n\r\n" : "");
  }

  std::string many_headers(unsigned count) {
    std::string bytes = "GET /hello HTTP/1.1\r\n";
    for (unsigned i = 0; i < count; ++i) {
      bytes += "x" + std::to_string(i) + ": " + random_bytes(below(80)) + "\r\n";
    }
    return bytes + "\r\n";
  }

  std::string random_bytes(unsigned count) {
    std::string bytes(count, '\0');
    const bool is_text = one_in(2);
    for (char& c : bytes) c = static_cast<char>(is_text ? ' ' + below(95) : below(256));
    return bytes;
  }

  void damage(std::string& bytes) {
    for (unsigned i = 0; !bytes.empty() && i < 1 + below(4); ++i) {
      const auto at = below(static_cast<unsigned>(bytes.size()));
      if (one_in(2)) {
        bytes[at] = static_cast<char>(below(256));
      } else {
        bytes.erase(at, 1 + below(20));
      }
    }
  }

  std::mt19937 random_;
};

class HttpNoiseTest : public HttpServerTest {
 protected:
  /// Sends noise in pieces and leaves in one of the ways that clients leave.
  void make_noise(NoiseMaker& noise) {
    RawSocket client = connect();
    ASSERT_TRUE(client.is_connected());
    const std::string bytes = noise.make();
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t size = 1 + noise.below(noise.one_in(2) ? 7 : 4000);
      if (!client.send(std::string_view(bytes).substr(at, size))) break;
      at += size;
    }
    switch (noise.below(4)) {
      case 0:
        return client.reset();
      case 1:
        return client.close();
      default:  // an answer, or the end: never silence for longer than the limits
        client.half_close();
        const std::string answer = client.receive_all(5s);
        EXPECT_TRUE(client.is_closed_by_peer()) << ::testing::PrintToString(bytes) << answer;
        if (!answer.empty()) {
          EXPECT_THAT(answer, StartsWith("HTTP/1."));
        }
    }
  }
};

TEST_F(HttpNoiseTest, IsAnsweredOrClosedAndLeavesNothingBehind) {
  HttpServerOptions options;
  options.header_timeout = 500ms;
  options.max_header_bytes = 4096;
  options.max_body_bytes = 1 << 16;
  start(options);
  ASSERT_THAT(exchange(kGetHelloClose), EndsWith("hello"));
  ASSERT_TRUE(eventually([this] { return server_->open_connections() == 0; }));
  const auto descriptors = num_file_descriptors();
  NoiseMaker noise(11);
  for (int i = 0; i < 4000; ++i) {
    SCOPED_TRACE(i);
    make_noise(noise);
    if (i % 100 == 0) {
      ASSERT_THAT(exchange(kGetHelloClose), EndsWith("hello"));
    }
    if (HasFailure()) return;
  }
  EXPECT_TRUE(eventually([this] { return server_->open_connections() == 0; }));
  EXPECT_TRUE(eventually([&] { return num_file_descriptors() <= descriptors; }, 1s))
      << num_file_descriptors() << " open, " << descriptors << " before";
  EXPECT_GT(num_handled_, 1500);
}

}  // namespace
}  // namespace tandem::net::testing
