// The program on a device that is not the CPU: what it says about memory, and what becomes of its
// requests when the device fails. The device is fake_device.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <thread>

#include "program.h"
#include "tandem/net/http_client.h"

namespace tandem::app {
namespace {

namespace json = boost::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr seconds kPatience{60};
const std::string kTiny = TANDEM_SOURCE_DIR "/tests/data/tiny/";

/// The program with a tiny pair on the fake device.
Program start(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--device", "cuda", "--model", kTiny + "tiny-e-Q8_0.gguf"});
  return Program(arguments, FAKE_DEVICE_PROGRAM);
}

core::Result<net::ClientResponse> fetch(const std::string& url, net::HttpRequest request) {
  request.headers.emplace_back("Content-Type", "application/json");
  return net::fetch(*net::parse_url(url), request, kPatience);
}

/// Its base URL once it serves.
std::string wait_until_ready(const Program& program) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    const std::string log = program.errors();
    const std::size_t ready = log.find("ready: ");
    const std::size_t url_end = log.find("/v1", ready);
    if (ready != std::string::npos && url_end != std::string::npos) {
      return log.substr(ready + 7, url_end - ready - 7);
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
  ADD_FAILURE() << "not ready: " << program.errors();
  return "http://127.0.0.1:1";
}

TEST(Device, MemoryIsPlannedAndPrinted) {
  const Program server =
      start({"serve", "--port", "0", "--kv-memory", "512MiB", "--gpu-memory", "400MiB"});
  wait_until_ready(server);
  EXPECT_THAT(server.errors(), HasSubstr("GPU memory: weights "));
  EXPECT_THAT(server.errors(), HasSubstr("driver and graphs about 124 MiB: 400 MiB of 400 MiB"));
}

TEST(Device, MemoryThatDoesNotSufficeIsASentence) {
  Program server = start({"serve", "--port", "0", "--gpu-memory", "100MiB"});
  EXPECT_EQ(server.wait(kPatience), 1);
  EXPECT_THAT(server.errors(), HasSubstr("but 100 MiB are what --gpu-memory allows"));
}

TEST(Device, AFaultFailsTheRunningRequestsAndEndsTheServer) {
  ::setenv("FAKE_DEVICE_BREAKS_IN_STEP", "200", 1);
  Program server = start({"serve", "--port", "0", "--kv-memory", "64MiB", "--context", "2048"});
  ::unsetenv("FAKE_DEVICE_BREAKS_IN_STEP");
  const std::string url = wait_until_ready(server);
  const auto ask = [&url](bool streams) {
    const json::object body = {
        {"messages", json::array{json::object{{"role", "user"}, {"content", "hi"}}}},
        {"max_tokens", 1500},
        {"ignore_eos", true},
        {"stream", streams}};
    return fetch(url, {"POST", "/v1/chat/completions", {}, json::serialize(body)});
  };
  core::Result<net::ClientResponse> whole = core::internal_error("not asked");
  std::thread client([&] { whole = ask(false); });
  const auto stream = ask(true);
  client.join();
  ASSERT_TRUE(whole.ok() && stream.ok());
  EXPECT_EQ(whole->status, 500);
  EXPECT_THAT(whole->body, HasSubstr("the GPU failed: an illegal memory access"));
  EXPECT_EQ(stream->status, 200);  // it had begun
  EXPECT_THAT(stream->body, HasSubstr(R"(data: {"error":{"message":"the GPU failed)"));
  // Red until it has ended.
  if (const auto health = fetch(url, {"GET", "/health", {}, ""}); health.ok()) {
    EXPECT_EQ(health->status, 503);
  }
  EXPECT_EQ(server.wait(kPatience), 1);
  EXPECT_THAT(server.errors(), HasSubstr("the compute device failed; see the log, then restart"));
}

}  // namespace
}  // namespace tandem::app
