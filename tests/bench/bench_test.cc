#include "tandem/bench/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include "tandem/net/http_server.h"

namespace tandem::bench {
namespace {

namespace json = boost::json;
using net::HttpRequest;
using net::Responder;
using testing::HasSubstr;

/// A local server whose answer to the n-th chat request (counted from 0) is a script's.
class ScriptedServer {
 public:
  using Script = std::function<void(int n, const HttpRequest&, std::shared_ptr<Responder>)>;

  explicit ScriptedServer(Script script) : script_(std::move(script)) {
    net::HttpServerOptions options;
    options.port = 0;
    auto server = net::HttpServer::start(
        options,
        [this](HttpRequest request, std::shared_ptr<Responder> responder) {
          answer(std::move(request), std::move(responder));
        },
        [](int, std::string_view message) { return std::string(message); });
    EXPECT_TRUE(server.ok());
    server_ = std::move(server).value();
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_->port()); }

  std::string metrics;  ///< page before the first chat request; empty: 404
  std::string metrics_after;
  std::string models = R"({"data":[{"id":"first"},{"id":"second"}]})";

  std::vector<HttpRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void answer(HttpRequest request, std::shared_ptr<Responder> responder) {
    int n = 0;
    {
      const std::lock_guard lock(mutex_);
      n = num_chats_;
      if (request.path() == "/v1/chat/completions") {
        ++num_chats_;
        requests_.push_back(request);
      }
    }
    if (request.path() == "/v1/models") return responder->respond(200, {}, models);
    if (request.path() == "/metrics") {
      const std::string& page = n == 0 ? metrics : metrics_after;
      return responder->respond(page.empty() ? 404 : 200, {}, page);
    }
    script_(n, request, std::move(responder));
  }

  Script script_;
  mutable std::mutex mutex_;
  int num_chats_ = 0;
  std::vector<HttpRequest> requests_;
  std::unique_ptr<net::HttpServer> server_;  // last: its thread uses the others
};

std::string event(std::string_view data) {
  return "data: " + std::string(data) + "\n\n";
}

/// A well-behaved answer of `tokens` tokens in two chunks.
void stream_answer(Responder& responder, int tokens) {
  responder.start_stream(200, {{"Content-Type", "text/event-stream"}});
  responder.write(event(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})"));
  responder.write(event(R"({"choices":[{"delta":{"content":"a b c"}}]})"));
  responder.write(event(R"({"choices":[{"delta":{"content":" d"},"finish_reason":"length"}]})"));
  responder.write(event(R"({"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":)" +
                        std::to_string(tokens) + "}}"));
  responder.write(event("[DONE]"));
  responder.finish();
}

class Bench : public testing::Test {
 protected:
  Bench() {
    std::ofstream file(dataset_);
    for (int i = 0; i < 20; ++i) {
      file << (i == 0 ? "[" : ",") << R"({"conversations":[{"from":"human","value":"prompt )" << i
           << "\"}]}";
    }
    file << "]";
  }
  ~Bench() override { std::filesystem::remove(dataset_); }

  BenchOptions options(const ScriptedServer& server) const {
    BenchOptions out;
    out.url = server.url();
    out.dataset = dataset_;
    out.prompts = 20;
    out.concurrency = 4;
    out.max_tokens = 16;
    out.duration_s = 20.0;
    out.timeout_s = 10.0;
    return out;
  }

  const std::string dataset_ =
      testing::TempDir() + "tandem_bench_" + std::to_string(::getpid()) + ".json";
};

TEST_F(Bench, CountsTokensFromUsageAndSendsEveryPromptOnce) {
  ScriptedServer server([](int, const HttpRequest&, std::shared_ptr<Responder> responder) {
    stream_answer(*responder, 7);
  });
  BenchOptions asked = options(server);
  asked.api_key = "secret";
  asked.extra_body = R"({"seed":7,"response_format":{"type":"json_object"}})";
  const auto report = run_bench(asked);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->asked, 20);
  EXPECT_EQ(report->completed, 20);
  EXPECT_EQ(report->errors(), 0);
  EXPECT_EQ(report->cancelled, 0);
  EXPECT_EQ(report->prompt_tokens, 200u);
  EXPECT_EQ(report->completion_tokens, 140u);
  EXPECT_EQ(report->finish_reasons.at("length"), 20);
  EXPECT_EQ(report->model, "first");
  EXPECT_FALSE(report->is_cut_short);
  EXPECT_FALSE(report->peak_memory_bytes);
  EXPECT_FALSE(report->acceptance);
  ASSERT_TRUE(report->ttft_ms && report->tpot_ms && report->first_event_ms);
  EXPECT_GT(report->decode_tokens_per_s, 0.0);
  EXPECT_LE(report->first_event_ms->mean, report->ttft_ms->mean);

  std::set<std::string> prompts;
  for (const HttpRequest& request : server.requests()) {
    EXPECT_EQ(request.header("authorization"), "Bearer secret");
    const json::object body = json::parse(request.body).as_object();
    EXPECT_EQ(body.at("model"), "first");
    EXPECT_EQ(body.at("max_tokens"), 16);
    EXPECT_EQ(body.at("temperature"), 0.0);
    EXPECT_EQ(body.at("stream"), true);
    EXPECT_EQ(body.at("seed"), 7);
    EXPECT_EQ(body.at("response_format").at("type"), "json_object");
    EXPECT_EQ(body.at("stream_options").at("include_usage"), true);
    prompts.insert(std::string(body.at("messages").at(0).at("content").as_string()));
  }
  EXPECT_EQ(prompts.size(), 20u);
  EXPECT_EQ(prompts.count("prompt 19"), 1u);
}

TEST_F(Bench, SortsErrorsByKind) {
  ScriptedServer server([](int n, const HttpRequest&, std::shared_ptr<Responder> responder) {
    switch (n) {
      case 0:
        return responder->respond(503, {}, R"({"error":{"message":"queue full"}})");
      case 1:
        return responder->respond(400, {}, "too long");
      case 2:  // cut: the responder is dropped in mid-stream
        responder->start_stream(200, {});
        responder->write(event(R"({"choices":[{"delta":{"content":"a"}}]})"));
        return;
      case 3:  // ends in order but without a finish reason
        responder->start_stream(200, {});
        responder->write(event("[DONE]"));
        return responder->finish();
      case 4:  // no usage
        responder->start_stream(200, {});
        responder->write(
            event(R"({"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]})"));
        return responder->finish();
      case 5:
        responder->start_stream(200, {});
        responder->write(event(R"({"error":{"message":"device fault"}})"));
        return responder->finish();
      default:
        stream_answer(*responder, 1);
    }
  });
  const auto report = run_bench(options(server));
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->asked, 20);
  EXPECT_EQ(report->completed, 14);
  EXPECT_EQ(report->errors(), 6);
  EXPECT_EQ(report->errors_by_kind, (std::map<std::string, int>{{"http_503", 1},
                                                                {"http_400", 1},
                                                                {"cut_stream", 2},
                                                                {"no_usage", 1},
                                                                {"stream_error", 1}}));
  EXPECT_EQ(report->error_examples.at("http_503"), "queue full");
  EXPECT_EQ(report->error_examples.at("http_400"), "too long");
  EXPECT_EQ(report->error_examples.at("stream_error"), "device fault");
  EXPECT_FALSE(report->tpot_ms);  // one token has no time per further token
  EXPECT_THAT(to_table(*report), HasSubstr("14 / 20"));
}

TEST_F(Bench, CountsTimeouts) {
  std::vector<std::shared_ptr<Responder>> held;
  ScriptedServer server([&](int, const HttpRequest&, std::shared_ptr<Responder> responder) {
    held.push_back(std::move(responder));
  });
  BenchOptions asked = options(server);
  asked.prompts = 2;
  asked.timeout_s = 0.2;
  const auto report = run_bench(asked);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->errors_by_kind.at("timeout"), 2);
}

TEST_F(Bench, CancelsWhatRunsWhenTheTimeIsOver) {
  std::vector<std::shared_ptr<Responder>> held;
  ScriptedServer server([&](int n, const HttpRequest&, std::shared_ptr<Responder> responder) {
    if (n < 6) return stream_answer(*responder, 3);
    if (n > 6) {  // three of the four have begun
      responder->start_stream(200, {});
      responder->write(event(R"({"choices":[{"delta":{"content":"a b c d e f"}}]})"));
    }
    held.push_back(std::move(responder));
  });
  BenchOptions asked = options(server);
  asked.duration_s = 0.6;
  const auto report = run_bench(asked);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->completed, 6);
  EXPECT_EQ(report->cancelled, 4);
  EXPECT_EQ(report->asked, 10);
  EXPECT_EQ(report->errors(), 0);
  EXPECT_TRUE(report->is_cut_short);
  EXPECT_GE(report->wall_s, 0.6);
  // 3 tokens for the 7 bytes of a completed answer, 10 for the 8 of its prompt.
  EXPECT_NEAR(report->cut_completion_tokens, 3 * 11 * 3 / 7.0, 1e-9);
  EXPECT_NEAR(report->cut_prompt_tokens, 30, 1e-9);
  EXPECT_NEAR(report->decode_tokens_per_s * report->wall_s, 18 + 3 * 11 * 3 / 7.0, 1e-6);
  EXPECT_NEAR(report->prefill_tokens_per_s * report->wall_s, 60 + report->cut_prompt_tokens, 1e-6);
  EXPECT_THAT(to_table(*report), HasSubstr("cancelled"));
}

TEST_F(Bench, EndsEarlyWhenInterrupted) {
  std::atomic<bool> interrupt{false};
  std::vector<std::shared_ptr<Responder>> held;
  ScriptedServer server([&](int, const HttpRequest&, std::shared_ptr<Responder> responder) {
    held.push_back(std::move(responder));
    interrupt = true;
  });
  BenchOptions asked = options(server);
  asked.interrupt = &interrupt;
  const auto report = run_bench(asked);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->cancelled, 4);
  EXPECT_LT(report->wall_s, 10.0);
  EXPECT_THAT(to_table(*report), HasSubstr("how many tokens they had is not known"));
}

TEST_F(Bench, ReadsMemoryAndAcceptanceFromMetrics) {
  ScriptedServer server([](int, const HttpRequest&, std::shared_ptr<Responder> responder) {
    stream_answer(*responder, 5);
  });
  server.metrics =
      "process_resident_memory_bytes 3000000\nvllm:spec_decode_num_drafts_total 1\n"
      "vllm:spec_decode_num_accepted_tokens_total 1\n";
  server.metrics_after =
      "process_resident_memory_bytes 2000000\nvllm:spec_decode_num_drafts_total 41\n"
      "vllm:spec_decode_num_draft_tokens_total 80\n"
      "vllm:spec_decode_num_accepted_tokens_total 31\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 30\n";
  const auto report = run_bench(options(server));
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->peak_memory_bytes);
  EXPECT_EQ(report->peak_memory_source, "metrics");
  ASSERT_TRUE(report->acceptance);
  EXPECT_DOUBLE_EQ(report->acceptance->mean_length, 1.75);
  EXPECT_THAT(report->acceptance->per_position, testing::ElementsAre(0.75));
}

TEST_F(Bench, ReadsMemoryOfAProcess) {
  ScriptedServer server([](int, const HttpRequest&, std::shared_ptr<Responder> responder) {
    stream_answer(*responder, 5);
  });
  BenchOptions asked = options(server);
  asked.pid = ::getpid();
  const auto report = run_bench(asked);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->peak_memory_source, "pid");
  EXPECT_GT(*report->peak_memory_bytes, 1u << 20);
  asked.pid = 0x7ffffffe;
  EXPECT_THAT(run_bench(asked).status().message(), HasSubstr("process 2147483646 does not exist"));
}

TEST_F(Bench, AcceptanceMayComeFromTimings) {
  ScriptedServer server([](int, const HttpRequest&, std::shared_ptr<Responder> responder) {
    responder->start_stream(200, {});
    responder->write(event(R"({"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],)"
                           R"("usage":{"prompt_tokens":1,"completion_tokens":11},)"
                           R"("timings":{"draft_n":12,"draft_n_accepted":6}})"));
    responder->finish();
  });
  const auto report = run_bench(options(server));
  ASSERT_TRUE(report.ok());
  ASSERT_TRUE(report->acceptance);
  EXPECT_EQ(report->acceptance->source, "timings");
  EXPECT_DOUBLE_EQ(report->acceptance->mean_length, 2.5);
}

TEST_F(Bench, JsonHasExactlyTheKeysOfTheInterface) {
  ScriptedServer server([](int, const HttpRequest&, std::shared_ptr<Responder> responder) {
    stream_answer(*responder, 5);
  });
  const auto report = run_bench(options(server));
  ASSERT_TRUE(report.ok());
  const json::object out = json::parse(to_json(*report)).as_object();
  for (const char* key :
       {"completed", "asked", "errors", "wall_s", "prefill_tokens_per_s", "decode_tokens_per_s",
        "ttft_ms", "tpot_ms", "peak_memory_bytes", "acceptance"}) {
    EXPECT_TRUE(out.contains(key)) << key;
  }
  EXPECT_EQ(out.at("completed"), 20);
  EXPECT_EQ(out.at("errors"), 0);
  EXPECT_TRUE(out.at("peak_memory_bytes").is_null());
  EXPECT_TRUE(out.at("acceptance").is_null());
  for (const char* key : {"mean", "p50", "p90", "p99"}) {
    EXPECT_TRUE(out.at("ttft_ms").as_object().contains(key)) << key;
    EXPECT_TRUE(out.at("tpot_ms").as_object().contains(key)) << key;
  }

  BenchReport with_acceptance;
  with_acceptance.acceptance = Acceptance{2.5, {0.8, 0.7}, "metrics", 3, 2, 1, 1};
  const json::object other = json::parse(to_json(with_acceptance)).as_object();
  EXPECT_TRUE(other.at("ttft_ms").is_null());
  EXPECT_EQ(other.at("acceptance").at("mean_length"), 2.5);
  EXPECT_EQ(other.at("acceptance").at("per_position").as_array().size(), 2u);
}

TEST_F(Bench, SaysWhyNothingCanBeMeasured) {
  ScriptedServer server([](int, const HttpRequest&, std::shared_ptr<Responder> responder) {
    stream_answer(*responder, 5);
  });
  server.models = R"({"data":[]})";
  BenchOptions asked = options(server);
  EXPECT_THAT(run_bench(asked).status().message(), HasSubstr("names no model"));
  asked.model = "mine";
  asked.url += "/v1/";
  const auto report = run_bench(asked);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->completed, 20);
  asked.dataset = "/no/such/file.json";
  EXPECT_THAT(run_bench(asked).status().message(), HasSubstr("cannot open the data set"));
  asked = options(server);
  asked.extra_body = "[1]";
  EXPECT_THAT(run_bench(asked).status().message(), HasSubstr("is no JSON object"));
  asked.extra_body = R"({"stream":false})";
  EXPECT_THAT(run_bench(asked).status().message(), HasSubstr("names 'stream'"));
  asked = options(server);
  asked.url = "https://somewhere";
  EXPECT_EQ(run_bench(asked).status().code(), core::Code::kInvalidArgument);
  asked.url = "http://127.0.0.1:1";
  asked.model = "mine";
  EXPECT_THAT(run_bench(asked).status().message(), HasSubstr("the server does not answer"));
}

}  // namespace
}  // namespace tandem::bench
