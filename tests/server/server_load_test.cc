// Many clients, rude ones among them: nothing is lost, nothing leaks, the status codes are right.

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <map>
#include <random>

#include "../net/raw_socket.h"
#include "auto_engine.h"
#include "server_fixture.h"

namespace tandem::server::testing {
namespace {

using net::testing::RawSocket;
using Clock = std::chrono::steady_clock;

int num_file_descriptors() {
  int count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (folder != nullptr && ::readdir(folder) != nullptr) ++count;
  if (folder != nullptr) ::closedir(folder);
  return count;
}

class ServerLoadTest : public ::testing::Test {
 protected:
  static constexpr const char* kModel = "m";

  void start(std::size_t max_live, std::chrono::microseconds step_time,
             ServerOptions options = {}) {
    fds_before_ = num_file_descriptors();
    options.port = 0;
    options.model_name = kModel;
    options.access_log = false;
    server_ = Server::start(options).value();
    engine_.emplace(max_live, step_time);
    ServedModel model;
    model.engine = &*engine_;
    model.tokenizer = test_tokenizer();
    model.template_variant = chat::TemplateVariant::kOpenTurn;
    model.max_context = engine_->context();
    model.fingerprint = "fp";
    server_->attach(std::move(model));
  }

  static std::string chat(const std::string& members) {
    return R"({"messages":[{"role":"user","content":"Hi"}],)" + members + "}";
  }
  static std::string request(const std::string& body) {
    return "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
  }

  template <typename Condition>
  static bool soon(Condition condition) {
    const auto end = Clock::now() + 20s;
    while (!condition() && Clock::now() < end) std::this_thread::sleep_for(5ms);
    return condition();
  }

  /// The engine has nothing left, the server ends in order, and every descriptor is closed.
  void expect_no_leak() {
    EXPECT_TRUE(soon([this] { return engine_->num_live() == 0; }));
    EXPECT_TRUE(server_->drain(10s));
    server_.reset();
    EXPECT_EQ(num_file_descriptors(), fds_before_);
  }

  int fds_before_ = 0;
  std::optional<AutoEngine> engine_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerLoadTest, AFloodOverTheQueueLimitLosesNothing) {
  start(/*max_live=*/40, 200us);
  constexpr int kRequests = 10'000;
  std::map<int, int> statuses;
  int num_whole = 0;
  int num_sent = 0;
  auto client = net::HttpClient::create();
  std::function<void()> send_next = [&] {
    if (num_sent == kRequests) return;
    const bool is_stream = num_sent++ % 2 == 0;
    const auto body = std::make_shared<std::string>();
    net::HttpClient::Callbacks callbacks;
    callbacks.on_data = [body](std::string_view data) {
      *body += data;
    };
    callbacks.on_done = [&, body, is_stream](core::Result<net::ClientResponse> answer) {
      const int status = answer.ok() ? answer->status : 0;
      ++statuses[status];
      if (status == 200) {
        const bool is_whole = is_stream ? body->ends_with("data: [DONE]\n\n")
                                        : body->find(R"("content":"xxxx")") != std::string::npos;
        num_whole += is_whole ? 1 : 0;
      }
      send_next();
    };
    client->send({"127.0.0.1", server_->port(), ""},
                 {"POST",
                  "/v1/chat/completions",
                  {},
                  chat(is_stream ? R"("max_tokens":4,"stream":true)" : R"("max_tokens":4)")},
                 30s, std::move(callbacks));
  };
  for (int i = 0; i < 64; ++i) send_next();
  client->run();
  client.reset();
  EXPECT_EQ(statuses[200] + statuses[429], kRequests);
  EXPECT_GT(statuses[200], 0);
  EXPECT_EQ(num_whole, statuses[200]);
  expect_no_leak();
}

TEST_F(ServerLoadTest, ManyIdleStreamsDisturbNobody) {
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const std::size_t kIdle = std::min<std::size_t>(1000, (limit.rlim_cur - 100) / 3);
  start(/*max_live=*/2000, 50ms);
  std::vector<RawSocket> idle;  // open streams that nobody reads
  const std::string endless = request(chat(R"("max_tokens":99000,"stream":true)"));
  for (std::size_t i = 0; i < kIdle; ++i) {
    idle.emplace_back(server_->port());
    ASSERT_TRUE(idle.back().send(endless));
    // All at once could be more than may wait for their prompt to be encoded.
    if (idle.size() % 100 == 0) {
      ASSERT_TRUE(soon([&] { return engine_->num_live() == idle.size(); }));
    }
  }
  ASSERT_TRUE(soon([&] { return engine_->num_live() == kIdle; }));
  for (int round = 0; round < 3; ++round) {
    const auto answer =
        net::fetch({"127.0.0.1", server_->port(), ""},
                   {"POST", "/v1/chat/completions", {}, chat(R"("max_tokens":4)")}, 20s);
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    EXPECT_EQ(answer->status, 200);
  }
  for (RawSocket& socket : idle) socket.close();
  expect_no_leak();
  EXPECT_EQ(engine_->num_cancelled(), kIdle);
}

TEST_F(ServerLoadTest, ClientsThatLeaveAtAnyMomentLeaveNothingBehind) {
  start(/*max_live=*/1000, 500us);
  const std::string bodies[] = {chat(R"("max_tokens":3,"stream":true)"),
                                chat(R"("max_tokens":400,"stream":true,"n":3)"),
                                chat(R"("max_tokens":400)")};
  std::mt19937 random(3);
  for (int i = 0; i < 400; ++i) {
    RawSocket socket(server_->port());
    const std::string message = request(bodies[random() % 3]);
    const bool is_cut_short = random() % 4 == 0;
    ASSERT_TRUE(socket.send(std::string_view(message).substr(
        0, is_cut_short ? random() % message.size() : message.size())));
    if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    random() % 2 == 0 ? socket.reset() : socket.close();
  }
  expect_no_leak();
}

TEST_F(ServerLoadTest, DrainsUnderLoad) {
  start(/*max_live=*/200, 500us);
  std::vector<RawSocket> streams;
  for (int i = 0; i < 50; ++i) {
    streams.emplace_back(server_->port());
    ASSERT_TRUE(streams.back().send(request(chat(R"("max_tokens":200,"stream":true)"))));
  }
  ASSERT_TRUE(soon([this] { return engine_->num_live() == 50; }));
  EXPECT_TRUE(server_->drain(20s));
  for (RawSocket& stream : streams) {
    EXPECT_NE(stream.receive_all().find("data: [DONE]"), std::string::npos);
    stream.close();
  }
  server_.reset();
  EXPECT_EQ(num_file_descriptors(), fds_before_);
}

}  // namespace
}  // namespace tandem::server::testing
