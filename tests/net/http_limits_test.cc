#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <deque>
#include <random>

#include "server_fixture.h"

namespace tandem::net::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class HttpLimitsTest : public HttpServerTest {
 protected:
  /// The server still answers a well-behaved client.
  void expect_alive() { EXPECT_THAT(exchange(kGetHelloClose), EndsWith("hello")); }
};

TEST_F(HttpLimitsTest, RefusesMalformedRequests) {
  start();
  for (const std::string request : {
           "nonsense\r\n\r\n",
           "GET  /hello HTTP/1.1\r\n\r\n",
           "GET /hello HTTP/9.9\r\n\r\n",
           "GET /hello\r\n\r\n",
           "GET /hello HTTP/1.1\r\nno colon\r\n\r\n",
           "GET /hello HTTP/1.1\r\nBad Name: x\r\n\r\n",
           "GET /hel\x01lo HTTP/1.1\r\n\r\n",
           "POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
           "POST /echo HTTP/1.1\r\nContent-Length: 1x\r\n\r\n",
           "POST /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
           "POST /echo HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
           "POST /echo HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
           "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
           "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
           "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
       }) {
    RawSocket client = connect();
    client.send(request);
    const std::string answer = client.receive_all();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 Bad Request\r\n")) << request;
    EXPECT_THAT(answer, HasSubstr("Connection: close\r\n")) << request;
    EXPECT_THAT(answer, HasSubstr("{\"status\":400,\"message\":\"")) << request;
  }
  EXPECT_EQ(num_handled_, 0);
  expect_alive();
}

TEST_F(HttpLimitsTest, RefusesOtherCodingsAndExpectations) {
  start();
  EXPECT_THAT(exchange("POST /echo HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
              StartsWith("HTTP/1.1 501 "));
  EXPECT_THAT(exchange("POST /echo HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n"),
              StartsWith("HTTP/1.1 501 "));
  EXPECT_THAT(exchange("POST /echo HTTP/1.1\r\nContent-Length: 1\r\nExpect: tea\r\n\r\n"),
              StartsWith("HTTP/1.1 417 "));
  EXPECT_EQ(num_handled_, 0);
}

TEST_F(HttpLimitsTest, BoundsHeaders) {
  HttpServerOptions options;
  options.max_header_bytes = 2000;
  start(options);
  const auto request_of = [](std::size_t bytes) {
    return "GET /hello HTTP/1.1\r\nConnection: close\r\nX: " + std::string(bytes, 'x') + "\r\n\r\n";
  };
  EXPECT_THAT(exchange(request_of(1900)), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(exchange(request_of(2000)), StartsWith("HTTP/1.1 431 "));
  // No end in sight, and many small fields.
  EXPECT_THAT(exchange("GET /" + std::string(100'000, 'a')), StartsWith("HTTP/1.1 431 "));
  std::string fields = "GET /hello HTTP/1.1\r\n";
  for (int i = 0; i < 10'000; ++i) fields += "X-" + std::to_string(i) + ": x\r\n";
  EXPECT_THAT(exchange(fields), StartsWith("HTTP/1.1 431 "));
  EXPECT_EQ(num_handled_, 1);
}

TEST_F(HttpLimitsTest, RefusesALargeBodyBeforeItComes) {
  HttpServerOptions options;
  options.max_body_bytes = 1000;
  start(options);
  EXPECT_THAT(exchange(post("/echo", std::string(1000, 'x'), "Connection: close\r\n")),
              EndsWith(std::string(1000, 'x')));
  EXPECT_THAT(exchange("POST /echo HTTP/1.1\r\nContent-Length: 1001\r\n\r\n"),
              StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(exchange("POST /echo HTTP/1.1\r\nContent-Length: 1001\r\n"
                       "Expect: 100-continue\r\n\r\n"),
              StartsWith("HTTP/1.1 413 "));
  EXPECT_EQ(num_handled_, 1);
}

TEST_F(HttpLimitsTest, AClientThatGoesOnSendingStillReadsTheRefusal) {
  HttpServerOptions options;
  options.max_body_bytes = 1000;
  start(options);
  EXPECT_THAT(exchange(post("/echo", std::string(4'000'000, 'x'))), StartsWith("HTTP/1.1 413 "));
}

TEST_F(HttpLimitsTest, BoundsChunkedBodiesAndChunkHeaders) {
  HttpServerOptions options;
  options.max_body_bytes = 1000;
  start(options);
  const std::string head = "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_THAT(exchange(head + "7d0\r\n" + std::string(2000, 'x')), StartsWith("HTTP/1.1 413 "));
  std::string many = head;
  for (int i = 0; i < 1500; ++i) many += "1\r\nx\r\n";
  EXPECT_THAT(exchange(many), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(exchange(head + "1;" + std::string(200'000, 'e')), StartsWith("HTTP/1.1 4"));
  EXPECT_THAT(exchange(head + "1\r\nx\r\n0\r\nTrailer: " + std::string(200'000, 't')),
              StartsWith("HTTP/1.1 4"));
  EXPECT_EQ(num_handled_, 0);
  expect_alive();
}

TEST_F(HttpLimitsTest, BoundsTheBytesOfAllBodiesTogether) {
  HttpServerOptions options;
  options.max_receiving_bytes = 10'000;
  start(options);
  RawSocket first = connect();
  first.send("POST /echo HTTP/1.1\r\nContent-Length: 8000\r\nConnection: close\r\n\r\n");
  std::string answer;
  EXPECT_TRUE(eventually([&] {
    answer = exchange(post("/echo", std::string(4000, 'x'), "Connection: close\r\n"));
    return answer.starts_with("HTTP/1.1 503 ");
  }));
  EXPECT_THAT(answer, HasSubstr("Retry-After: 1\r\n"));
  first.send(std::string(8000, 'y'));
  EXPECT_THAT(first.receive_all(), EndsWith(std::string(8000, 'y')));
  EXPECT_THAT(exchange(post("/echo", std::string(4000, 'x'), "Connection: close\r\n")),
              StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpLimitsTest, EndsSlowSenders) {
  HttpServerOptions options;
  options.header_timeout = 100ms;
  start(options);
  for (const std::string beginning : {"GET /hel", "GET /hello HTTP/1.1\r\nX: y\r\n",
                                      "POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc"}) {
    RawSocket client = connect();
    const auto begin = std::chrono::steady_clock::now();
    client.send(beginning);
    EXPECT_THAT(client.receive_all(5s), StartsWith("HTTP/1.1 408 Request Timeout\r\n"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s);
  }
  // A byte now and then does not help.
  RawSocket client = connect();
  std::string answer;
  for (int i = 0; i < 200 && answer.empty(); ++i) {
    client.send("G");
    answer = client.receive_until("\r\n", 20ms);
  }
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 408 "));
}

TEST_F(HttpLimitsTest, ClosesIdleConnectionsQuietly) {
  HttpServerOptions options;
  options.idle_timeout = 50ms;
  start(options);
  RawSocket fresh = connect();
  EXPECT_THAT(fresh.receive_all(5s), IsEmpty());
  EXPECT_TRUE(fresh.is_closed_by_peer());
  RawSocket used = connect();
  used.send(kGetHello);
  EXPECT_THAT(used.receive_all(5s), EndsWith("hello"));
  EXPECT_TRUE(used.is_closed_by_peer());
}

TEST_F(HttpLimitsTest, APendingAnswerIsNotIdle) {
  HttpServerOptions options;
  options.idle_timeout = 20ms;
  options.header_timeout = 20ms;
  options.write_timeout = 20ms;
  start(options);
  RawSocket client = connect();
  client.send("GET /park HTTP/1.1\r\nConnection: close\r\n\r\n");
  const auto responder = parked();
  std::this_thread::sleep_for(200ms);
  responder->respond(200, {}, "late");
  EXPECT_THAT(client.receive_all(), EndsWith("late"));
}

TEST_F(HttpLimitsTest, RefusesTooManyConnections) {
  HttpServerOptions options;
  options.max_connections = 3;
  start(options);
  std::deque<RawSocket> held;
  for (int i = 0; i < 3; ++i) held.emplace_back(connect()).send(kGetHello);
  for (RawSocket& client : held) EXPECT_THAT(client.receive_until("hello"), EndsWith("hello"));
  const std::string answer = exchange(kGetHelloClose);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_THAT(answer, HasSubstr("Retry-After: 1\r\n"));
  held.pop_back();
  EXPECT_TRUE(eventually([&] { return exchange(kGetHelloClose).ends_with("hello"); }));
}

TEST_F(HttpLimitsTest, FiveHundredIdleConnectionsDisturbNobody) {
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  if (files.rlim_cur < 1200) {
    files.rlim_cur = std::min<rlim_t>(4096, files.rlim_max);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  }
  start();
  std::deque<RawSocket> idle;
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(idle.emplace_back(connect()).is_connected()) << i;
    if (i % 2 == 0) idle.back().send("GET /hello HT");  // half of them in the middle of a request
  }
  EXPECT_TRUE(eventually([&] { return server_->open_connections() == 500; }));
  RawSocket stream = connect();
  stream.send("GET /stream HTTP/1.1\r\nConnection: close\r\n\r\n");
  const auto responder = parked();
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(responder->write("event " + std::to_string(i)));
    EXPECT_THAT(exchange(post("/echo", "active", "Connection: close\r\n")), EndsWith("active"));
  }
  responder->finish();
  EXPECT_THAT(stream.receive_all(), HasSubstr("event 99"));
  for (RawSocket& client : idle) client.send("");
  EXPECT_TRUE(eventually([&] { return server_->open_connections() == 500; }));
}

TEST_F(HttpLimitsTest, CutsAStreamWhoseClientStopsReading) {
  HttpServerOptions options;
  options.max_outbox_bytes = 64 * 1024;
  start(options);
  RawSocket stalled = connect(4096);
  stalled.send("GET /stream HTTP/1.1\r\n\r\n");
  const auto bad = parked(0);
  RawSocket good = connect();
  good.send("GET /stream HTTP/1.1\r\nConnection: close\r\n\r\n");
  const auto fine = parked(1);
  std::thread reader;
  std::string received;
  reader = std::thread([&] { received = good.receive_all(20s); });
  // Slow enough for the socket to take what it can: the end comes while a write is stuck.
  const std::string event(1024, 'e');
  bool is_open = true;
  for (int i = 0; i < 100'000 && is_open; ++i) {
    is_open = bad->write(event);
    if (i % 16 == 0) {
      EXPECT_TRUE(fine->write("tick"));
      std::this_thread::sleep_for(2ms);
    }
  }
  EXPECT_FALSE(is_open);
  EXPECT_FALSE(bad->write("more"));
  EXPECT_TRUE(eventually([&] { return num_disconnects_ == 1; }));
  EXPECT_TRUE(fine->write("last"));
  fine->finish();
  reader.join();
  EXPECT_THAT(received, HasSubstr("last"));
  EXPECT_TRUE(eventually([&] { return server_->open_connections() == 0; }));
  EXPECT_EQ(num_disconnects_, 1);
}

TEST_F(HttpLimitsTest, CutsAClientThatTakesNothingForTooLong) {
  HttpServerOptions options;
  options.write_timeout = 100ms;
  options.max_outbox_bytes = 8 * 1024 * 1024;
  start(options);
  RawSocket stalled = connect(4096);
  stalled.send("GET /stream HTTP/1.1\r\n\r\n");
  const auto responder = parked();
  EXPECT_TRUE(responder->write(std::string(4 * 1024 * 1024, 'x')));
  EXPECT_TRUE(eventually([&] { return num_disconnects_ == 1; }));
  EXPECT_FALSE(responder->write("more"));
  EXPECT_TRUE(eventually([&] { return server_->open_connections() == 0; }));
}

TEST_F(HttpLimitsTest, NoticesClientsThatLeave) {
  start();
  for (const char* path : {"/park", "/stream"}) {
    for (const bool is_reset : {false, true}) {
      const int before = num_disconnects_;
      RawSocket client = connect();
      client.send("GET " + std::string(path) + " HTTP/1.1\r\n\r\n");
      const auto responder = parked();
      if (path == std::string("/stream")) {
        responder->write("begun");
        client.receive_until("begun");
      }
      is_reset ? client.reset() : client.close();
      EXPECT_TRUE(eventually([&] { return num_disconnects_ == before + 1; })) << path << is_reset;
      EXPECT_FALSE(responder->write("too late"));
      responder->finish();
      responder->respond(200, {}, "too late");
      release_all();
    }
  }
  EXPECT_TRUE(eventually([&] { return server_->open_connections() == 0; }));
  EXPECT_EQ(num_disconnects_, 4);
}

TEST_F(HttpLimitsTest, NoticesAResetBehindAFullReadAhead) {
  start();
  RawSocket client = connect();
  client.send("GET /park HTTP/1.1\r\n\r\n");
  const auto responder = parked();
  const std::string ahead = post("/echo", std::string(100, 'x'));
  for (int i = 0; i < 1000; ++i) client.send(ahead);
  std::this_thread::sleep_for(50ms);
  client.reset();
  EXPECT_TRUE(eventually([&] { return num_disconnects_ == 1; }));
}

TEST_F(HttpLimitsTest, TellsALateListenerThatTheClientHasGone) {
  start();
  RawSocket client = connect();
  client.send("GET /stream HTTP/1.1\r\n\r\n");
  const auto responder = parked();
  std::atomic<int> num_calls = 0;
  client.reset();
  EXPECT_TRUE(eventually([&] { return num_disconnects_ == 1; }));
  responder->on_disconnect([&] { ++num_calls; });
  EXPECT_TRUE(eventually([&] { return num_calls == 1; }));
}

TEST_F(HttpLimitsTest, StopsAcceptingButFinishesWhatRuns) {
  start();
  RawSocket idle = connect();
  idle.send(kGetHello);
  idle.receive_until("hello");
  RawSocket busy = connect();
  busy.send("GET /stream HTTP/1.1\r\n\r\n");
  const auto responder = parked();
  server_->stop_accepting();
  EXPECT_THAT(idle.receive_all(), IsEmpty());
  EXPECT_TRUE(idle.is_closed_by_peer());
  EXPECT_TRUE(eventually([&] { return !connect().is_connected(); }));
  EXPECT_TRUE(responder->write("the rest"));
  responder->finish();
  EXPECT_THAT(busy.receive_all(), EndsWith("8\r\nthe rest\r\n0\r\n\r\n"));
  EXPECT_TRUE(eventually([&] { return server_->open_connections() == 0; }));
}

TEST_F(HttpLimitsTest, DestructionEndsEverythingAndRespondersSurviveIt) {
  start();
  RawSocket parked_client = connect();
  parked_client.send("GET /park HTTP/1.1\r\n\r\n");
  const auto pending = parked(0);
  RawSocket stream_client = connect();
  stream_client.send("GET /stream HTTP/1.1\r\n\r\n");
  const auto stream = parked(1);
  RawSocket idle = connect();
  server_.reset();
  EXPECT_EQ(num_disconnects_, 2);
  EXPECT_FALSE(stream->write("x"));
  pending->respond(200, {}, "x");
  pending->on_disconnect([] { FAIL(); });
  parked_client.receive_all();
  EXPECT_TRUE(parked_client.is_closed_by_peer());
  idle.receive_all();
  EXPECT_TRUE(idle.is_closed_by_peer());
}

TEST_F(HttpLimitsTest, SurvivesRandomBytes) {
  HttpServerOptions options;
  options.header_timeout = 50ms;
  options.idle_timeout = 50ms;
  start(options);
  std::mt19937 random(7);
  const std::string valid = post("/echo", "0123456789", "Transfer: x\r\n") + std::string(kGetHello);
  for (int round = 0; round < 300; ++round) {
    std::string bytes;
    if (round % 2 == 0) {
      bytes.resize(random() % 3000);
      for (char& c : bytes) c = static_cast<char>(random());
    } else {  // a valid pair of requests with a few bytes changed
      bytes = valid;
      for (int i = 0; i < 4; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    RawSocket client = connect();
    client.send(bytes);
    if (random() % 2 == 0) client.receive_until("\r\n\r\n", 20ms);
    if (random() % 4 == 0) client.reset();
  }
  release_all();
  EXPECT_TRUE(eventually([&] { return server_->open_connections() == 0; }));
  expect_alive();
}

TEST_F(HttpLimitsTest, ManyThreadsWriteManyStreams) {
  start();
  constexpr int kStreams = 32;
  constexpr int kEvents = 200;
  std::vector<RawSocket> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(connect());
    clients.back().send("GET /stream HTTP/1.1\r\nConnection: close\r\n\r\n");
  }
  ASSERT_NE(parked(kStreams - 1), nullptr);
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&, t] {
      for (int e = 0; e < kEvents; ++e) {
        for (int s = t; s < kStreams; s += 4) parked(s)->write("<" + std::to_string(e) + ">");
      }
      for (int s = t; s < kStreams; s += 4) parked(s)->finish();
    });
  }
  for (RawSocket& client : clients) {
    const std::string answer = client.receive_all(30s);
    EXPECT_THAT(answer, HasSubstr("<0>"));
    EXPECT_THAT(answer, HasSubstr("<199>"));
    EXPECT_THAT(answer, EndsWith("0\r\n\r\n"));
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(num_disconnects_, 0);
}

}  // namespace
}  // namespace tandem::net::testing
