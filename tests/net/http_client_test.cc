#include "tandem/net/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server_fixture.h"

namespace tandem::net::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseUrl, SplitsHostPortAndPath) {
  const auto url = parse_url("http://example.org:8080/api/v1/");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->host, "example.org");
  EXPECT_EQ(url->port, 8080);
  EXPECT_EQ(url->path, "/api/v1");
  EXPECT_EQ(parse_url("HTTP://[::1]:81")->host, "::1");
  EXPECT_EQ(parse_url("http://[::1]")->port, 80);
  EXPECT_EQ(parse_url("http://localhost")->path, "");
}

TEST(ParseUrl, NamesWhatIsWrong) {
  for (const char* text : {"", "localhost:80", "https://a", "http://", "http://:80", "http://a:0",
                           "http://a:65536", "http://a:8x", "http://a/?q", "http://u@a"}) {
    const auto url = parse_url(text);
    ASSERT_FALSE(url.ok()) << text;
    EXPECT_THAT(url.status().message(), HasSubstr("expected http://host[:port][/path]"));
  }
}

std::vector<std::string> events_of(std::string_view stream, std::size_t cut) {
  std::vector<std::string> events;
  SseReader reader;
  for (std::size_t at = 0; at < stream.size(); at += cut) {
    reader.feed(stream.substr(at, cut), [&](std::string_view data) { events.emplace_back(data); });
  }
  return events;
}

TEST(SseReader, YieldsTheSameEventsWhateverTheCuts) {
  constexpr std::string_view kStream =
      "\xEF\xBB\xBF: a comment\n\ndata: one\n\ndata:two\r\n\r\nevent: x\rdata: three\r\r"
      "id: 7\ndata: multi\ndata:  line\ndata\n\n\n\nretry: 5\n\ndata:\n\ndata: [DONE]\n\n"
      "data: unfinished\n";
  for (std::size_t cut = 1; cut <= kStream.size(); ++cut) {
    EXPECT_THAT(events_of(kStream, cut),
                ElementsAre("one", "two", "three", "multi\n line\n", "", "[DONE]"))
        << "cut " << cut;
  }
}

TEST(SseReader, KeepsNoMoreThanAnEventMayHold) {
  SseReader reader;
  int events = 0;
  const auto count = [&](std::string_view) {
    ++events;
  };
  const std::string part(std::size_t{1} << 20, 'x');
  reader.feed("data: one\n\ndata: ", count);
  for (int i = 0; i < 15; ++i) reader.feed(part, count);
  EXPECT_FALSE(reader.is_too_long());
  for (int i = 0; i < 2; ++i) reader.feed(part, count);
  reader.feed("\n\ndata: two\n\n", count);
  EXPECT_TRUE(reader.is_too_long());
  EXPECT_EQ(events, 1);
}

class HttpClientTest : public HttpServerTest {
 protected:
  Url url(std::string path = "") { return {"127.0.0.1", server_->port(), std::move(path)}; }
};

TEST_F(HttpClientTest, FetchesWithABasePath) {
  start();
  const auto answer = fetch(url("/hello"), {"GET", "", {}, ""}, 5s);
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, "hello");
  EXPECT_EQ(find_header(answer->headers, "content-LENGTH"), "5");
}

TEST_F(HttpClientTest, ReusesConnections) {
  start();
  const auto client = HttpClient::create();
  int num_done = 0;
  std::function<void(int)> send_next = [&](int left) {
    client->send(url(), {"POST", "/echo", {}, "x" + std::to_string(left)}, 5s,
                 {{}, [&, left](core::Result<ClientResponse> answer) {
                    ASSERT_TRUE(answer.ok()) << answer.status().message();
                    EXPECT_EQ(answer->body, "x" + std::to_string(left));
                    ++num_done;
                    if (left > 1) send_next(left - 1);
                  }});
  };
  send_next(20);
  client->run();
  EXPECT_EQ(num_done, 20);
  EXPECT_TRUE(eventually([&] { return server_->open_connections() == 1; }));
}

TEST_F(HttpClientTest, ReplacesAConnectionThatTheServerClosed) {
  HttpServerOptions options;
  options.idle_timeout = 20ms;
  start(options);
  const auto client = HttpClient::create();
  for (int i = 0; i < 2; ++i) {
    client->send(url(), {"GET", "/hello", {}, {}}, 5s, {{}, [](auto answer) {
                                                          ASSERT_TRUE(answer.ok());
                                                          EXPECT_EQ(answer->status, 200);
                                                        }});
    client->run();
    EXPECT_TRUE(eventually([&] { return server_->open_connections() == 0; }));
  }
}

TEST_F(HttpClientTest, StreamsTheBodyOfASuccess) {
  start();
  const auto client = HttpClient::create();
  std::string data;
  bool is_done = false;
  client->send(url(), {"GET", "/stream", {}, {}}, 5s,
               {[&](std::string_view bytes) { data += bytes; },
                [&](core::Result<ClientResponse> answer) {
                  ASSERT_TRUE(answer.ok()) << answer.status().message();
                  EXPECT_EQ(answer->body, "");
                  is_done = true;
                }});
  std::thread producer([&] {
    const auto responder = parked();
    for (int i = 0; i < 10; ++i) responder->write("[" + std::to_string(i) + "]");
    responder->finish();
  });
  client->run();
  producer.join();
  EXPECT_TRUE(is_done);
  EXPECT_EQ(data, "[0][1][2][3][4][5][6][7][8][9]");
}

TEST_F(HttpClientTest, CollectsTheBodyOfAnErrorEvenWhenStreaming) {
  start();
  const auto client = HttpClient::create();
  client->send(url(), {"GET", "/drop", {}, {}}, 5s,
               {[](std::string_view) { FAIL(); },
                [](core::Result<ClientResponse> answer) {
                  ASSERT_TRUE(answer.ok());
                  EXPECT_EQ(answer->status, 500);
                  EXPECT_THAT(answer->body, HasSubstr("\"status\":500"));
                }});
  client->run();
}

TEST_F(HttpClientTest, TimesOut) {
  start();
  const auto answer = fetch(url("/park"), {"GET", "", {}, ""}, 50ms);
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.status().code(), core::Code::kCancelled);
  EXPECT_TRUE(eventually([&] { return num_disconnects_ == 1; }));
}

TEST_F(HttpClientTest, ReportsAStreamThatIsCutOff) {
  start();
  std::thread dropper([&] {
    parked()->write("part");
    std::this_thread::sleep_for(20ms);
    release_all();
  });
  const auto answer = fetch(url("/stream"), {"GET", "", {}, ""}, 5s);
  dropper.join();
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.status().code(), core::Code::kDataLoss);
}

TEST_F(HttpClientTest, ReportsThatNobodyListens) {
  start();
  const Url dead = url();
  server_.reset();
  const auto answer = fetch(dead, {"GET", "", {}, ""}, 5s);
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.status().code(), core::Code::kUnavailable);
}

TEST_F(HttpClientTest, RefusesHeadersThatWouldSplitTheRequest) {
  start();
  const auto answer = fetch(url(), {"GET", "/hello", {{"X", "a\r\nY: b"}}, ""}, 5s);
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.status().code(), core::Code::kInvalidArgument);
}

TEST_F(HttpClientTest, KeepsManyRequestsInFlightAndTicks) {
  start();
  const auto client = HttpClient::create();
  int num_done = 0;
  std::atomic<int> num_ticks = 0;
  client->every(2ms, [&] { ++num_ticks; });
  for (int i = 0; i < 64; ++i) {
    client->send(url(), {"GET", "/park", {}, {}}, 5s, {{}, [&](auto answer) {
                                                         ASSERT_TRUE(answer.ok());
                                                         EXPECT_EQ(answer->status, 500);
                                                         ++num_done;
                                                       }});
  }
  std::thread answerer([&] {
    parked(63);
    eventually([&] { return num_ticks > 2; });
    release_all();
  });
  client->run();
  answerer.join();
  EXPECT_EQ(num_done, 64);
}

TEST_F(HttpClientTest, StopsWithRequestsInFlight) {
  start();
  const auto client = HttpClient::create();
  client->send(url(), {"GET", "/park", {}, {}}, 60s, {{}, [](auto) {
                                                        FAIL();
                                                      }});
  client->every(20ms, [&] { client->stop(); });
  client->run();
}

}  // namespace
}  // namespace tandem::net::testing
