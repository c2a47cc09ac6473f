// Who may call the server and how much: keys, browsers, queues; and the endpoints that generate
// nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <fstream>

#include "server_fixture.h"
#include "tandem/server/access.h"
#include "tandem/server/queue_budget.h"

namespace tandem::server::testing {
namespace {

namespace json = boost::json;
using engine::FinishReason;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OperationsTest : public ServerTest {};

/// A file that is gone with the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_(::testing::TempDir() + "tandem_keys_" + std::to_string(::getpid())) {
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(ApiKeys, AreOneALine) {
  const TemporaryFile file("# ours\nkey-1\n\n  key-2 \r\n");
  const auto keys = load_api_keys(file.path());
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_THAT(*keys, ElementsAre("key-1", "key-2"));
  EXPECT_TRUE(is_authorized("Bearer key-1", *keys));
  EXPECT_TRUE(is_authorized("bearer  key-2 ", *keys));
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer key-", "Bearer key-1key-1", "key-1",
                            "Basic key-1", "Bearer key-3", "Bearer key-1 key-2"}) {
    EXPECT_FALSE(is_authorized(wrong, *keys)) << wrong;
  }
}

TEST(ApiKeys, AreRefusedWithASentence) {
  EXPECT_THAT(load_api_keys("/no/such/file").status().message(), HasSubstr("/no/such/file"));
  EXPECT_THAT(load_api_keys(TemporaryFile("# none\n").path()).status().message(),
              HasSubstr("holds no API key"));
  EXPECT_THAT(load_api_keys(TemporaryFile("ok\ntwo words\n").path()).status().message(),
              HasSubstr("line 2"));
}

TEST_F(OperationsTest, AsksForAKey) {
  ServerOptions options;
  options.api_keys = {"secret"};
  start_and_attach(options);
  for (const char* path : {"/v1/models", "/v1/chat/completions", "/tokenize", "/no/such/path"}) {
    const auto refused = call("POST", path, "{}", {{"Authorization", "Bearer wrong"}});
    EXPECT_EQ(refused.status, 401) << path;
    EXPECT_EQ(net::find_header(refused.headers, "WWW-Authenticate"), "Bearer");
    EXPECT_EQ(json::parse(refused.body).at("error").at("code"), "invalid_api_key");
    EXPECT_THAT(refused.body, ::testing::Not(HasSubstr("secret")));
  }
  EXPECT_EQ(call("GET", "/v1/models", "", {{"Authorization", "Bearer secret"}}).status, 200);
  for (const char* path : {"/health", "/ready", "/metrics"}) EXPECT_EQ(get(path).status, 200);
}

TEST_F(OperationsTest, LetsPagesOfChosenOriginsCall) {
  ServerOptions options;
  options.cors_origins = {"https://a.example"};
  options.api_keys = {"secret"};
  start_and_attach(options);
  const auto preflight =
      call("OPTIONS", "/v1/chat/completions", "",
           {{"Origin", "https://a.example"},
            {"Access-Control-Request-Method", "POST"},
            {"Access-Control-Request-Headers", "authorization,content-type,x-stainless-os"}});
  EXPECT_EQ(preflight.status, 200);
  EXPECT_EQ(net::find_header(preflight.headers, "Access-Control-Allow-Origin"),
            "https://a.example");
  EXPECT_EQ(net::find_header(preflight.headers, "Access-Control-Allow-Headers"),
            "authorization,content-type,x-stainless-os");  // as OpenAI's client asks
  const auto answer = call("GET", "/health", "", {{"Origin", "https://a.example"}});
  EXPECT_EQ(net::find_header(answer.headers, "Access-Control-Allow-Origin"), "https://a.example");
  EXPECT_EQ(net::find_header(answer.headers, "Vary"), "Origin");
  const auto other = call("GET", "/health", "", {{"Origin", "https://b.example"}});
  EXPECT_EQ(net::find_header(other.headers, "Access-Control-Allow-Origin"), "");
}

TEST_F(OperationsTest, TellsBrowsersNothingUnlessAsked) {
  start_and_attach();
  const auto answer = call("GET", "/health", "", {{"Origin", "https://a.example"}});
  EXPECT_EQ(net::find_header(answer.headers, "Access-Control-Allow-Origin"), "");
  EXPECT_EQ(call("OPTIONS", "/v1/models", "", {{"Origin", "https://a.example"}}).status, 405);
}

TEST_F(OperationsTest, RefusesPagesOfOtherOriginsWithoutAKey) {
  start_and_attach();
  const auto post = [this](net::Headers headers) {
    return call("POST", "/tokenize", R"({"prompt":"a"})", std::move(headers)).status;
  };
  const std::string own = "127.0.0.1:" + std::to_string(server_->port());
  // What curl, OpenAI's client, the chat page, a browser's extension and a desktop program send.
  EXPECT_EQ(post({{"Content-Type", "application/x-www-form-urlencoded"}}), 200);
  EXPECT_EQ(post({{"Content-Type", "application/json"}}), 200);
  EXPECT_EQ(post({{"Origin", "http://" + own}}), 200);
  EXPECT_EQ(post({{"Origin", "chrome-extension://abc"}}), 200);
  EXPECT_EQ(post({{"Origin", "tauri://localhost"}}), 200);
  // Behind a proxy that changes the host.
  EXPECT_EQ(post({{"Origin", "https://chat.example"}, {"Sec-Fetch-Site", "same-origin"}}), 200);
  for (const char* foreign : {"https://a.example", "http://localhost:1", "null", "http://"}) {
    EXPECT_EQ(post({{"Origin", foreign}, {"Content-Type", "text/plain"}}), 403) << foreign;
    EXPECT_EQ(post({{"Origin", foreign}, {"Sec-Fetch-Site", "cross-site"}}), 403) << foreign;
  }
  const auto refused = call("POST", "/v1/chat/completions", chat_body(),
                            {{"Origin", "https://a.example"}, {"Content-Type", "text/plain"}});
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(json::parse(refused.body).at("error").at("code"), "origin_not_allowed");
  EXPECT_THAT(refused.body, HasSubstr("--cors-origin"));
  EXPECT_EQ(engine_.num_submitted(), 0U);
  EXPECT_EQ(call("GET", "/health", "", {{"Origin", "https://a.example"}}).status, 200);
}

TEST_F(OperationsTest, TakesPagesOfAllowedOriginsAndThoseWithAKey) {
  ServerOptions options;
  options.cors_origins = {"https://a.example"};
  start_and_attach(options);
  const auto post = [this](const char* origin, net::Headers headers = {}) {
    headers.emplace_back("Origin", origin);
    return call("POST", "/tokenize", R"({"prompt":"a"})", std::move(headers)).status;
  };
  EXPECT_EQ(post("https://a.example"), 200);
  EXPECT_EQ(post("https://b.example"), 403);
  server_.reset();
  options.cors_origins = {};
  options.api_keys = {"secret"};
  start_and_attach(options);
  EXPECT_EQ(post("https://b.example", {{"Authorization", "Bearer secret"}}), 200);
  EXPECT_EQ(post("https://b.example"), 401);
}

TEST(QueueBudget, TellsHowLongToWait) {
  QueueBudget budget(0);
  const auto at = [](int seconds) {
    return QueueBudget::Clock::time_point(std::chrono::seconds(seconds));
  };
  EXPECT_EQ(budget.wait_seconds(), 1);
  for (int i = 0; i < 10; ++i) budget.take(100, at(1000));
  EXPECT_EQ(budget.wait_seconds(), 1);  // nothing has left yet
  for (int i = 1; i <= 5; ++i) budget.give(100, at(1000 + 2 * i));
  EXPECT_EQ(budget.wait_seconds(), 10);  // 500 tokens at 50 a second
  for (int i = 6; i <= 10; ++i) budget.give(100, at(1000 + 2 * i));
  EXPECT_EQ(budget.wait_seconds(), 1);
  budget.take(1, at(90'000));  // the time in which nobody waited does not count
  budget.give(1, at(90'001));
  budget.take(400, at(90'001));
  EXPECT_LT(budget.wait_seconds(), 20);
  budget.take(1'000'000, at(90'002));
  EXPECT_EQ(budget.wait_seconds(), QueueBudget::kMaxWaitSeconds);
}

TEST(QueueBudget, BoundsWhatWaits) {
  QueueBudget budget(10);
  EXPECT_TRUE(budget.take(50));  // alone
  EXPECT_FALSE(budget.take(1));
  budget.give(50);
  EXPECT_TRUE(budget.take(4));
  EXPECT_TRUE(budget.take(6));
  EXPECT_FALSE(budget.take(1));
  budget.give(6);
  EXPECT_EQ(budget.waiting(), 4);
  QueueBudget none(0);
  EXPECT_TRUE(none.take(1'000'000'000'000) && none.take(1'000'000'000'000));
}

TEST_F(OperationsTest, BoundsThePromptTokensThatWait) {
  ServerOptions options;
  options.max_queue_tokens = 10;
  start_and_attach(options);
  Pending first([this] { return complete(R"({"prompt":[5,5,5,5,5,5]})"); });
  engine_.request(0);
  const auto refused = complete(R"({"prompt":[5,5,5,5,5]})");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(net::find_header(refused.headers, "Retry-After"), "1");
  engine_.emit_text(0, "a");  // it no longer waits
  Pending second([this] { return complete(R"({"prompt":[5,5,5,5,5]})"); });
  engine_.emit_end(1, FinishReason::kStop);
  EXPECT_EQ(second.get().status, 200);
  engine_.set_submit_status(core::resource_exhausted("full"));
  EXPECT_EQ(complete(R"({"prompt":[5,5,5,5,5,5,5]})").status, 429);
  engine_.set_submit_status({});
  Pending third([this] { return complete(R"({"prompt":[5,5,5,5,5,5,5]})"); });
  engine_.emit_end(2, FinishReason::kStop);  // the refused one gave its tokens back
  EXPECT_EQ(third.get().status, 200);
  engine_.emit_end(0, FinishReason::kStop);
}

TEST_F(OperationsTest, ServesAChatPageThatNeedsNobodyElse) {
  ServerOptions options;
  options.api_keys = {"secret"};  // the page asks for it itself
  start_and_attach(options);
  const auto page = get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(net::find_header(page.headers, "Content-Type"), "text/html; charset=utf-8");
  EXPECT_THAT(std::string(net::find_header(page.headers, "Content-Security-Policy")),
              HasSubstr("default-src 'self'"));
  for (const auto& [path, type, holds] :
       {std::tuple("/", "text/html; charset=utf-8", "chat.js"),
        std::tuple("/chat.css", "text/css; charset=utf-8", "prefers-color-scheme: dark"),
        std::tuple("/chat.js", "text/javascript; charset=utf-8", "v1/chat/completions")}) {
    const auto file = get(path);
    EXPECT_EQ(file.status, 200) << path;
    EXPECT_EQ(net::find_header(file.headers, "Content-Type"), type);
    EXPECT_THAT(file.body, HasSubstr(holds));
    EXPECT_THAT(file.body, ::testing::Not(HasSubstr("http://")));
    EXPECT_THAT(file.body, ::testing::Not(HasSubstr("https://")));
    const std::string on_disk = std::string(TANDEM_SOURCE_DIR "/src/server/page/") +
                                (std::string(path) == "/" ? "index.html" : path + 1);
    std::ifstream source(on_disk);
    EXPECT_EQ(file.body, std::string(std::istreambuf_iterator<char>(source), {}));
  }
}

TEST_F(OperationsTest, CompilesTheFormOfAnAnswer) {
  start_and_attach();
  const std::string ask = R"("response_format":{"type":"json_schema","json_schema":{"schema":)";
  const auto refused = chat(ask + R"({"$ref":"other.json"}}})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(json::parse(refused.body).at("error").at("param"), "response_format");
  Pending pending([&] { return chat(ask + R"({"type":"boolean"}}},"n":2)"); });
  const auto grammar = engine_.request(0).grammar;
  ASSERT_NE(grammar, nullptr);
  engine_.emit_text(0, "true");
  EXPECT_EQ(engine_.request(1).grammar, grammar);
  engine_.emit_end(0, FinishReason::kStop);
  engine_.emit_end(1, FinishReason::kStop);
  EXPECT_EQ(pending.get().status, 200);
  Pending calls([&] {
    return chat(
        R"("tool_choice":"required","tools":[{"type":"function","function":{"name":"f"}}])");
  });
  EXPECT_NE(engine_.request(2).grammar, nullptr);
  engine_.emit_end(2, FinishReason::kStop);
  EXPECT_EQ(calls.get().status, 200);
}

TEST_F(OperationsTest, CountsTokens) {
  start_and_attach();
  const auto tokens = [this](const char* path, const std::string& body) {
    const auto answer = call("POST", path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  };
  const auto prompt = tokens("/tokenize", R"({"prompt":"a<turn|>","return_token_strs":true})");
  EXPECT_EQ(json::serialize(prompt), R"({"count":3,"max_model_len":100,"tokens":[2,264,4],)"
                                     R"("token_strs":["<bos>","a","<turn|>"]})");
  EXPECT_EQ(tokens("/tokenize", R"({"content":"ab"})").at("count"), 2);
  EXPECT_EQ(tokens("/tokenize", R"({"prompt":"","add_special_tokens":false,)"
                                R"("return_token_strs":true})")
                .at("token_strs"),
            json::array());
  EXPECT_TRUE(tokens("/tokenize", R"({"prompt":"a"})").at("token_strs").is_null());
  EXPECT_EQ(tokens("/tokenize", R"({"content":"<turn|>"})").at("count"), 1);
  EXPECT_EQ(tokens("/tokenize", R"({"content":"<turn|>","parse_special":false})").at("count"), 7);
  const auto chat = tokens("/tokenize", chat_body());
  EXPECT_EQ(
      chat.at("count").as_int64(),
      static_cast<std::int64_t>(
          test_tokenizer()->encode("<bos><|turn>user\nHi<turn|>\n<|turn>model\n", true).size()));
  EXPECT_EQ(tokens("/detokenize", R"({"tokens":[2,264,203,177]})").at("prompt"), "<bos>a\xC3\xA9");
  EXPECT_EQ(tokens("/apply-template", chat_body()).at("prompt"),
            "<bos><|turn>user\nHi<turn|>\n<|turn>model\n");
}

TEST_F(OperationsTest, RefusesWhatHasNoTokens) {
  start_and_attach();
  const auto param = [this](const char* path, const std::string& body) {
    const auto answer = call("POST", path, body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    return std::string(json::parse(answer.body).at("error").at("param").as_string());
  };
  EXPECT_EQ(param("/tokenize", "{}"), "prompt");
  EXPECT_EQ(param("/tokenize", R"({"prompt":7})"), "prompt");
  EXPECT_EQ(param("/tokenize", R"({"messages":[{"role":"king"}]})"), "messages[0].role");
  EXPECT_EQ(param("/tokenize", R"({"content":"a","with_pieces":true})"), "with_pieces");
  EXPECT_EQ(param("/detokenize", R"({"tokens":"a"})"), "tokens");
  EXPECT_EQ(param("/detokenize", R"({"tokens":[100000]})"), "tokens");
  EXPECT_EQ(param("/apply-template", "{}"), "messages");
  EXPECT_EQ(call("POST", "/tokenize", R"({"model":"other","prompt":"a"})").status, 404);
}

}  // namespace
}  // namespace tandem::server::testing
