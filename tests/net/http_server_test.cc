#include "tandem/net/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server_fixture.h"

namespace tandem::net::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::size_t count(std::string_view text, std::string_view needle) {
  std::size_t found = 0;
  for (std::size_t at = text.find(needle); at != std::string_view::npos;
       at = text.find(needle, at + needle.size())) {
    ++found;
  }
  return found;
}

TEST_F(HttpServerTest, AnswersAndCloses) {
  start();
  const std::string answer = exchange(kGetHelloClose);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 5\r\n"));
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\nhello"));
}

TEST_F(HttpServerTest, KeepsTheConnectionForTheNextRequest) {
  start();
  RawSocket client = connect();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.send(post("/echo", "body " + std::to_string(i))));
    EXPECT_THAT(client.receive_until("body " + std::to_string(i)), Not(HasSubstr("close")));
  }
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  start();
  RawSocket client = connect();
  std::string requests;
  for (int i = 0; i < 50; ++i) requests += post("/echo", "<" + std::to_string(i) + ">");
  requests += kGetHelloClose;
  ASSERT_TRUE(client.send(requests));
  const std::string answers = client.receive_all();
  EXPECT_EQ(count(answers, "HTTP/1.1 200 OK"), 51U);
  std::size_t at = 0;
  for (int i = 0; i < 50; ++i) {
    const std::size_t next = answers.find("<" + std::to_string(i) + ">");
    ASSERT_NE(next, std::string::npos);
    EXPECT_GE(next, at);
    at = next;
  }
}

TEST_F(HttpServerTest, PipelinedRequestsWaitForASlowAnswer) {
  start();
  RawSocket client = connect();
  ASSERT_TRUE(client.send("GET /park HTTP/1.1\r\n\r\n" + std::string(kGetHelloClose)));
  const auto responder = parked();
  ASSERT_NE(responder, nullptr);
  EXPECT_EQ(num_handled_, 1);
  responder->respond(200, {}, "parked");
  const std::string answers = client.receive_all();
  EXPECT_LT(answers.find("parked"), answers.find("hello"));
  EXPECT_EQ(num_disconnects_, 0);
}

TEST_F(HttpServerTest, BoundsWhatAClientPipelinesAhead) {
  start();
  RawSocket client = connect();
  ASSERT_TRUE(client.send("GET /park HTTP/1.1\r\n\r\n"));
  const auto responder = parked();
  ASSERT_NE(responder, nullptr);
  std::string many;
  for (int i = 0; i < 5000; ++i) many += post("/echo", "x");
  std::thread sender([&] { client.send(many + std::string(kGetHelloClose)); });
  std::this_thread::sleep_for(50ms);
  responder->respond(200, {}, "parked");
  const std::string answers = client.receive_all();
  sender.join();
  EXPECT_EQ(count(answers, "HTTP/1.1 200 OK"), 5002U);
}

TEST_F(HttpServerTest, HoldsTheBodyOfHeadBack) {
  start();
  const std::string answer = exchange("HEAD /hello HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Length: 5\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n"));
}

TEST_F(HttpServerTest, ReadsChunkedBodies) {
  start();
  const std::string answer = exchange(
      "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
      "3;ext=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n");
  EXPECT_THAT(answer, EndsWith("abc0123456789"));
}

TEST_F(HttpServerTest, ReadsARequestThatComesByteByByte) {
  start();
  RawSocket client = connect();
  for (const char c : post("/echo", "slow but fine", "Connection: close\r\n")) {
    ASSERT_TRUE(client.send({&c, 1}));
  }
  EXPECT_THAT(client.receive_all(), EndsWith("slow but fine"));
}

TEST_F(HttpServerTest, IgnoresEmptyLinesBeforeARequest) {
  start();
  EXPECT_THAT(exchange("\r\n\r\n" + std::string(kGetHelloClose)), EndsWith("hello"));
}

TEST_F(HttpServerTest, AsksForABodyThatWaits) {
  start();
  RawSocket client = connect();
  ASSERT_TRUE(
      client.send("POST /echo HTTP/1.1\r\nContent-Length: 4\r\n"
                  "Expect: 100-continue\r\nConnection: close\r\n\r\n"));
  EXPECT_EQ(client.receive_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(client.send("body"));
  EXPECT_THAT(client.receive_all(), EndsWith("body"));
}

TEST_F(HttpServerTest, StreamsInChunks) {
  start();
  RawSocket client = connect();
  ASSERT_TRUE(client.send("GET /stream HTTP/1.1\r\nConnection: close\r\n\r\n"));
  const auto responder = parked();
  EXPECT_TRUE(responder->write("one"));
  EXPECT_TRUE(responder->write("a longer chunk"));
  EXPECT_TRUE(responder->finish("end"));
  EXPECT_FALSE(responder->write("after the end"));
  EXPECT_FALSE(responder->finish("again"));
  const std::string answer = client.receive_all();
  EXPECT_THAT(answer, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n3\r\none\r\ne\r\na longer chunk\r\n3\r\nend\r\n0\r\n\r\n"));
  EXPECT_EQ(num_disconnects_, 0);
}

TEST_F(HttpServerTest, StreamsToHttp10UntilTheConnectionEnds) {
  start();
  RawSocket client = connect();
  ASSERT_TRUE(client.send("GET /stream HTTP/1.0\r\n\r\n"));
  const auto responder = parked();
  responder->write("one");
  responder->write("two");
  responder->finish();
  const std::string answer = client.receive_all();
  EXPECT_THAT(answer, Not(HasSubstr("chunked")));
  EXPECT_THAT(answer, EndsWith("\r\n\r\nonetwo"));
}

TEST_F(HttpServerTest, AnswersAClientThatHasFinishedSending) {
  start();
  RawSocket client = connect();
  ASSERT_TRUE(client.send("GET /park HTTP/1.1\r\n\r\n" + post("/echo", "next")));
  client.half_close();
  const auto responder = parked();
  ASSERT_NE(responder, nullptr);
  EXPECT_EQ(client.receive_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  responder->respond(200, {}, "parked");
  const std::string answers = client.receive_all();
  EXPECT_LT(answers.find("parked"), answers.find("next"));
  EXPECT_THAT(answers, EndsWith("next"));
  EXPECT_TRUE(client.is_closed_by_peer());
  EXPECT_EQ(num_disconnects_, 0);
}

TEST_F(HttpServerTest, StreamsToAClientThatHasFinishedSending) {
  start();
  RawSocket client = connect();
  ASSERT_TRUE(client.send("GET /stream HTTP/1.1\r\n\r\n"));
  const auto responder = parked();
  ASSERT_TRUE(responder->write("one"));
  client.receive_until("one\r\n");
  client.half_close();
  EXPECT_EQ(client.receive_until("0"), "0");
  EXPECT_TRUE(responder->write("two"));
  responder->finish();
  EXPECT_EQ("0" + client.receive_all(), "03\r\ntwo\r\n0\r\n\r\n");
  EXPECT_EQ(num_disconnects_, 0);
}

TEST_F(HttpServerTest, NoticesThatAClientLeavesAfterItHasFinishedSending) {
  start();
  RawSocket client = connect();
  ASSERT_TRUE(client.send("GET /stream HTTP/1.1\r\n\r\n"));
  const auto responder = parked();
  client.half_close();
  client.receive_until("\r\n\r\n0");
  client.close();
  EXPECT_EQ(num_disconnects_, 0);
  responder->write("one");  // is answered with a reset
  EXPECT_TRUE(eventually([&] { return num_disconnects_ == 1; }));
}

TEST_F(HttpServerTest, AnHttp10ClientThatFinishesSendingIsAnsweredOnlyAtOnce) {
  start();
  RawSocket client = connect();
  ASSERT_TRUE(client.send("GET /hello HTTP/1.0\r\n\r\n"));
  client.half_close();
  EXPECT_THAT(client.receive_all(), EndsWith("hello"));
  RawSocket other = connect();
  ASSERT_TRUE(other.send("GET /park HTTP/1.0\r\n\r\n"));
  other.half_close();
  EXPECT_TRUE(eventually([&] { return num_disconnects_ == 1; }));
}

TEST_F(HttpServerTest, TakesSchemeAndHostOffAnAbsoluteTarget) {
  start();
  for (const char* target : {"http://a.example/hello", "HTTP://a.example:80/hello?x=1",
                             "https://user@[::1]:8080/hello", "/hello?to=http://x/y"}) {
    EXPECT_THAT(exchange("GET " + std::string(target) +
                         " HTTP/1.1\r\nHost: b.example\r\nConnection: close\r\n\r\n"),
                EndsWith("hello"))
        << target;
  }
  for (const char* target : {"http://a.example", "http://a.example?x=/hello"}) {
    RawSocket client = connect();
    client.send("GET " + std::string(target) + " HTTP/1.1\r\nHost: b.example\r\n\r\n");
    ASSERT_TRUE(eventually([&] { return last_request().path() == "/"; })) << target;
    EXPECT_EQ(last_request().header("Host"), "a.example");
  }
}

TEST_F(HttpServerTest, ADroppedResponderAnswers500) {
  start();
  const std::string answer = exchange("GET /drop HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 500 Internal Server Error\r\n"));
  EXPECT_THAT(answer, HasSubstr("\"status\":500"));
}

TEST_F(HttpServerTest, ADroppedStreamIsSeenAsTruncated) {
  start();
  RawSocket client = connect();
  ASSERT_TRUE(client.send("GET /stream HTTP/1.1\r\n\r\n"));
  parked()->write("part");
  client.receive_until("part");
  release_all();
  EXPECT_THAT(client.receive_all(), Not(HasSubstr("0\r\n\r\n")));
  EXPECT_TRUE(client.is_closed_by_peer());
}

TEST_F(HttpServerTest, KeepsLineBreaksOutOfHeaderValues) {
  start();
  RawSocket client = connect();
  ASSERT_TRUE(client.send("GET /park HTTP/1.1\r\nConnection: close\r\n\r\n"));
  parked()->respond(200, {{"X-Request-Id", "a\r\nSet-Cookie: b"}}, "");
  EXPECT_THAT(client.receive_all(), HasSubstr("X-Request-Id: a  Set-Cookie: b\r\n"));
}

TEST_F(HttpServerTest, AnswersOnlyOnce) {
  start();
  RawSocket client = connect();
  ASSERT_TRUE(client.send("GET /park HTTP/1.1\r\nConnection: close\r\n\r\n"));
  const auto responder = parked();
  responder->respond(200, {}, "first");
  responder->respond(200, {}, "second");
  responder->start_stream(200, {});
  EXPECT_FALSE(responder->write("third"));
  EXPECT_THAT(client.receive_all(), EndsWith("\r\n\r\nfirst"));
}

TEST_F(HttpServerTest, SaysWhyItCannotListen) {
  start();
  HttpServerOptions options;
  options.port = server_->port();
  const auto second = HttpServer::start(options, {}, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), core::Code::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr("127.0.0.1:" + std::to_string(options.port)));
}

}  // namespace
}  // namespace tandem::net::testing
