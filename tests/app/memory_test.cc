// What `inspect` promises is what a server takes that is used to its bounds.

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <csignal>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "served.h"
#include "tandem/net/http_client.h"

namespace tandem::app {
namespace {

namespace json = boost::json;

const std::string kDemo = TANDEM_SOURCE_DIR "/models/demo/";
constexpr std::chrono::seconds kBusyPatience{300};
constexpr int kContext = 256;
double peak_bytes(const Program& program) {
  std::ifstream in("/proc/" + std::to_string(program.pid()) + "/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) * 1024;
  }
  ADD_FAILURE() << "no VmHWM";
  return 0;
}

/// A completion that fills the context: random tokens, then `answer` sampled ones.
void fill_context(const std::string& url, int answer, unsigned seed) {
  std::mt19937 random(seed);
  json::array prompt = {2};
  while (static_cast<int>(prompt.size()) < kContext - answer)
    prompt.emplace_back(300 + random() % 7000);
  net::HttpRequest request{"POST", "/v1/completions", {}, ""};
  request.headers.emplace_back("Content-Type", "application/json");
  request.body = json::serialize(json::object{{"prompt", std::move(prompt)},
                                              {"max_tokens", answer},
                                              {"ignore_eos", true},
                                              {"temperature", 1.0}});
  const auto response = net::fetch(*net::parse_url(url), request, kBusyPatience);
  ASSERT_TRUE(response.ok()) << response.status().message();
  EXPECT_EQ(response->status, 200) << response->body;
}

/// Fills `sequences` contexts at once with answers of `answer` tokens: the longest step and the
/// most KV both happen if prompts are long, or answers are long and there are many of them.
void expect_promise_holds(int sequences, int answer) {
  const std::vector<std::string> bounds = {
      "--draft",         kDemo + "mtp-demo-it-Q8_0.gguf", "--context",   std::to_string(kContext),
      "--max-sequences", std::to_string(sequences),       "--kv-memory", "128MiB"};
  std::vector<std::string> inspect_arguments = {"inspect", "--json", kDemo + "demo-it-Q4_K_M.gguf"};
  inspect_arguments.insert(inspect_arguments.end(), bounds.begin(), bounds.end());
  Program inspect(inspect_arguments);
  ASSERT_EQ(inspect.wait(kPatience), 0) << inspect.errors();
  const json::value report = json::parse(inspect.output());
  const auto promised = report.at("to_be_served").at("total_bytes").to_number<double>();

  std::vector<std::string> serve_arguments = {"serve",    "--port",  "0",
                                              "--device", "cpu",     "--threads",
                                              "1",        "--model", kDemo + "demo-it-Q4_K_M.gguf"};
  serve_arguments.insert(serve_arguments.end(), bounds.begin(), bounds.end());
  Program server(serve_arguments);
  const std::string url = wait_until_ready(server);
  for (int round = 0; round < std::max(2, 8 / sequences); ++round) {
    std::vector<std::thread> clients;
    for (int i = 0; i < sequences; ++i) {
      clients.emplace_back(fill_context, url, answer, static_cast<unsigned>(100 * round + i));
    }
    for (std::thread& client : clients) client.join();
  }
  EXPECT_NEAR(peak_bytes(server) / promised, 1.0, 0.1)
      << json::serialize(report.at("to_be_served"));
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(kPatience), 0) << server.errors();
}

TEST(Memory, AServerTakesWhatInspectPromised) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take memory of their own";
#endif
  expect_promise_holds(1, 32);
  expect_promise_holds(8, 96);
  expect_promise_holds(32, 192);
}

}  // namespace
}  // namespace tandem::app
