#include "tandem/server/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <regex>

#include "server_fixture.h"

namespace tandem::server::testing {
namespace {

using engine::FinishReason;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr engine::Usage kUsage = {.prompt_tokens = 12,
                                  .cached_tokens = 8,
                                  .completion_tokens = 5,
                                  .drafted_tokens = 4,
                                  .accepted_tokens = 3};

/// Ids and times replaced by fixed ones.
std::string normalized(std::string text) {
  text = std::regex_replace(text, std::regex("(chatcmpl|cmpl)-[0-9a-f]{16}"), "$1-ID");
  return std::regex_replace(text, std::regex("\"created\":[0-9]+"), "\"created\":0");
}

std::string code_of(const net::ClientResponse& answer) {
  return std::string(boost::json::parse(answer.body).at("error").at("code").as_string());
}

TEST_F(ServerTest, AnswersBeforeAModelIsLoaded) {
  start();
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(get("/health").body, R"({"status":"loading"})");
  const net::ClientResponse refused = chat();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(code_of(refused), "loading");
  EXPECT_EQ(net::find_header(refused.headers, "Retry-After"), "1");
  EXPECT_EQ(get("/v1/models").status, 503);
  EXPECT_THAT(get("/metrics").body, HasSubstr("process_resident_memory_bytes "));
  attach();
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/health").body, R"({"status":"ok"})");
  EXPECT_EQ(get("/ready").status, 200);
}

TEST_F(ServerTest, ListsTheModel) {
  start_and_attach();
  const auto list = boost::json::parse(get("/v1/models").body);
  EXPECT_EQ(list.at("object"), "list");
  EXPECT_EQ(list.at("data").at(0).at("id"), kModel);
  EXPECT_EQ(list.at("data").at(0).at("root"), kModel);
  EXPECT_EQ(list.at("data").at(0).at("max_model_len"), kMaxContext);
  for (const char* path : {"/v1/models/demo%2Fmodel", "/v1/models/demo/model"}) {
    EXPECT_EQ(boost::json::parse(get(path).body).at("id"), kModel);
  }
  EXPECT_EQ(get("/v1/models/other").status, 404);
  EXPECT_EQ(code_of(get("/v1/models/other")), "model_not_found");
}

TEST_F(ServerTest, RefusesUnknownPathsAndMethods) {
  start_and_attach();
  for (const char* path : {"/v1", "/chat", "/v1/chat/completions/", "/v1/embeddings", "/healthz"}) {
    EXPECT_EQ(get(path).status, 404) << path;
    EXPECT_EQ(code_of(get(path)), "unknown_url");
    EXPECT_THAT(get(path).body, HasSubstr("this server has /v1/chat/completions, "));
  }
  const net::ClientResponse wrong = get("/v1/chat/completions?x=1");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(net::find_header(wrong.headers, "Allow"), "POST");
  const net::ClientResponse probe = call("POST", "/health");
  EXPECT_EQ(probe.status, 405);
  EXPECT_EQ(net::find_header(probe.headers, "Allow"), "GET, HEAD");
  const net::ClientResponse packed =
      call("POST", "/v1/chat/completions", "\x1F\x8B", {{"Content-Encoding", "gzip"}});
  EXPECT_EQ(packed.status, 415);
  EXPECT_THAT(packed.body, HasSubstr("encoded as 'gzip'; send it plain"));
  EXPECT_EQ(call("HEAD", "/health").status, 200);
}

TEST_F(ServerTest, AnswersAChatWhole) {
  start_and_attach();
  Pending pending([this] { return chat(); });
  engine_.emit_text(0, "Hello");
  engine_.emit_text(0, " you");
  engine_.emit_end(0, FinishReason::kStop, kUsage, "!");
  EXPECT_EQ(pending.get().status, 200);
  EXPECT_EQ(net::find_header(pending.get().headers, "Content-Type"), "application/json");
  EXPECT_EQ(normalized(pending.get().body),
            R"({"id":"chatcmpl-ID","object":"chat.completion","created":0,"model":"demo/model",)"
            R"("system_fingerprint":"fp","choices":[{"index":0,"message":{"role":"assistant",)"
            R"("content":"Hello you!","refusal":null},"logprobs":null,"finish_reason":"stop"}],)"
            R"("usage":{"prompt_tokens":12,"completion_tokens":5,"total_tokens":17,)"
            R"("prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":)"
            R"({"reasoning_tokens":0,"accepted_prediction_tokens":3,)"
            R"("rejected_prediction_tokens":1,"drafted_tokens":4}}})");
}

TEST_F(ServerTest, StreamsAChatInOneEventPerStep) {
  start_and_attach();
  Pending pending(
      [this] { return chat(R"("stream":true,"stream_options":{"include_usage":true})"); });
  engine_.emit_text(0, "Hel");
  engine_.emit_text(0, "");  // a character is not complete yet
  engine_.emit_text(0, "lo\n");
  engine_.emit_end(0, FinishReason::kLength, kUsage);
  EXPECT_EQ(pending.get().status, 200);
  EXPECT_THAT(net::find_header(pending.get().headers, "Content-Type"),
              StartsWith("text/event-stream"));
  std::vector<std::string> events;
  net::SseReader reader;
  reader.feed(pending.get().body, [&](std::string_view event) { events.emplace_back(event); });
  ASSERT_EQ(events.size(), 6U);
  EXPECT_EQ(normalized(events[0]),
            R"({"id":"chatcmpl-ID","object":"chat.completion.chunk","created":0,)"
            R"("model":"demo/model","system_fingerprint":"fp","choices":[{"index":0,)"
            R"("delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],)"
            R"("usage":null})");
  EXPECT_THAT(events[1], HasSubstr(R"("delta":{"content":"Hel"})"));
  EXPECT_THAT(events[2], HasSubstr(R"("delta":{"content":"lo\n"})"));
  EXPECT_THAT(events[3], HasSubstr(R"("delta":{},"logprobs":null,"finish_reason":"length")"));
  EXPECT_THAT(events[4], HasSubstr(R"("choices":[],"usage":{"prompt_tokens":12,)"));
  EXPECT_EQ(events[5], "[DONE]");
}

TEST_F(ServerTest, StreamsWithoutUsageUnlessAsked) {
  start_and_attach();
  Pending pending([this] { return complete(R"({"prompt":"a","stream":true})"); });
  engine_.emit_end(0, FinishReason::kStop, kUsage, "done");
  EXPECT_THAT(pending.get().body, HasSubstr(R"("text":"done")"));
  EXPECT_THAT(pending.get().body, Not(HasSubstr("usage")));
  EXPECT_THAT(pending.get().body, ::testing::EndsWith("data: [DONE]\n\n"));
}

TEST_F(ServerTest, BuildsPrompts) {
  start_and_attach();
  const auto prompt_of = [this](std::string path, std::string body) {
    const std::size_t index = engine_.num_submitted();
    Pending pending([&] { return call("POST", path, body); });
    auto prompt = engine_.request(index).prompt;
    engine_.emit_end(index, FinishReason::kStop);
    EXPECT_EQ(pending.get().status, 200) << pending.get().body;
    return prompt;
  };
  const auto expected =
      test_tokenizer()->encode("<bos><|turn>user\nHi<turn|>\n<|turn>model\n", true);
  EXPECT_EQ(prompt_of("/v1/chat/completions", chat_body()), expected);
  // Control tokens in a chat message are text; a text completion is the whole prompt.
  const auto spelled =
      prompt_of("/v1/chat/completions", R"({"messages":[{"role":"user","content":"<turn|>"}]})");
  EXPECT_GT(spelled.size(), expected.size());
  EXPECT_THAT(prompt_of("/v1/completions", R"({"prompt":"<|turn>a"})"), ElementsAre(2, 3, 264));
  EXPECT_THAT(prompt_of("/v1/completions", R"({"prompt":["<bos>a"]})"), ElementsAre(2, 264));
  EXPECT_THAT(prompt_of("/v1/completions", R"({"prompt":""})"), ElementsAre(2));
  EXPECT_THAT(prompt_of("/v1/completions", R"({"prompt":[7,8]})"), ElementsAre(7, 8));
}

TEST_F(ServerTest, PassesParametersOn) {
  start_and_attach();
  Pending pending([this] {
    return chat(R"("model":"demo/model","temperature":0.5,"top_k":3,"seed":42,"max_tokens":7,)"
                R"("stop":["x","y"],"ignore_eos":true,"draft_length":2)");
  });
  const engine::Request request = engine_.request(0);
  EXPECT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_EQ(request.sampling.top_k, 3);
  EXPECT_EQ(request.sampling.top_p, 0.95F);
  EXPECT_EQ(request.sampling.seed, 42U);
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.draft_length, 2);
  engine_.emit_end(0, FinishReason::kStop);
  Pending third([this] { return complete(R"({"prompt":"a","stop":["x","y"]})"); });
  EXPECT_THAT(engine_.request(1).stop, ElementsAre("x", "y"));  // of a chat: not the engine's
  engine_.emit_end(1, FinishReason::kStop);
  EXPECT_EQ(third.get().status, 200);
  Pending second([this] { return chat(R"("max_tokens":1000000)"); });
  const engine::Request plain = engine_.request(2);
  EXPECT_EQ(plain.max_tokens, kMaxContext - static_cast<int>(plain.prompt.size()));
  EXPECT_FALSE(plain.draft_length);
  engine_.emit_end(2, FinishReason::kStop);
}

TEST_F(ServerTest, RefusesOtherModels) {
  start_and_attach();
  const net::ClientResponse answer = chat(R"("model":"gpt-5")");
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(code_of(answer), "model_not_found");
  EXPECT_THAT(answer.body, HasSubstr("'gpt-5'"));
}

TEST_F(ServerTest, RefusesPromptsThatDoNotFit) {
  start_and_attach();
  const std::string text(99, 'a');
  const net::ClientResponse full = complete(R"({"prompt":")" + text + R"("})");  // with <bos>
  EXPECT_EQ(full.status, 400);
  EXPECT_EQ(code_of(full), "context_length_exceeded");
  EXPECT_THAT(full.body, HasSubstr("holds 100 tokens"));
  EXPECT_THAT(full.body, HasSubstr("the prompt has 100"));
  EXPECT_EQ(complete(R"({"prompt":[1,2,100000]})").status, 400);
  EXPECT_EQ(engine_.num_submitted(), 0U);
  // Nothing is left for an answer, and none is asked for.
  Pending scored([&] { return complete(R"({"prompt":")" + text + R"(","max_tokens":0})"); });
  EXPECT_TRUE(engine_.request(0).is_prompt_only);
  EXPECT_EQ(engine_.request(0).prompt.size(), 100U);
  engine_.emit_end(0, FinishReason::kLength, {.prompt_tokens = 100}, "");
  EXPECT_EQ(scored.get().status, 200);
}

TEST_F(ServerTest, MapsTheEnginesRefusals) {
  start_and_attach();
  engine_.set_submit_status(core::resource_exhausted("the queue is full"));
  const net::ClientResponse full = chat();
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(net::find_header(full.headers, "Retry-After"), "1");
  EXPECT_EQ(code_of(full), "queue_full");
  engine_.set_submit_status(core::unavailable("draining"));
  EXPECT_EQ(chat().status, 503);
  engine_.set_submit_status(core::invalid_argument("too long"));
  EXPECT_EQ(chat().status, 400);
  engine_.set_submit_status(core::internal_error("broken"));
  EXPECT_EQ(chat().status, 500);
}

TEST_F(ServerTest, ReportsAFailureBeforeAndAfterTheFirstToken) {
  start_and_attach();
  engine::Event failure;
  failure.finish = FinishReason::kError;
  failure.error = core::internal_error("the device failed");
  Pending early([this] { return chat(R"("stream":true)"); });
  engine_.emit(0, failure);
  EXPECT_EQ(early.get().status, 500);
  EXPECT_THAT(early.get().body, HasSubstr("the device failed"));
  Pending late([this] { return chat(R"("stream":true)"); });
  engine_.emit_text(1, "Hel");
  engine_.emit(1, failure);
  EXPECT_EQ(late.get().status, 200);
  EXPECT_THAT(late.get().body, HasSubstr(R"(data: {"error":{"message":"the device failed")"));
  EXPECT_THAT(late.get().body, Not(HasSubstr("[DONE]")));
  Pending whole([this] { return chat(); });
  engine_.emit_text(2, "Hel");
  engine_.emit(2, failure);
  EXPECT_EQ(whole.get().status, 500);
}

TEST_F(ServerTest, CancelsWhenTheClientLeaves) {
  start_and_attach();
  for (const char* members : {"", R"("stream":true)"}) {
    const std::size_t index = engine_.num_submitted();
    Pending pending([&, members] {
      return call("POST", "/v1/chat/completions", chat_body(members), {}, 300ms);
    });
    const std::uint64_t id = engine_.request(index).id;
    engine_.emit_text(index, "Hel");
    EXPECT_EQ(pending.get().status, 0);
    EXPECT_TRUE(engine_.wait_cancelled(id));
  }
}

TEST_F(ServerTest, CancelsAClientThatDoesNotRead) {
  ServerOptions options;
  options.max_outbox_bytes = 100'000;
  start_and_attach(options);
  Pending pending([this] { return chat(R"("stream":true)"); });
  const std::uint64_t id = engine_.request(0).id;
  engine_.emit_text(0, std::string(200'000, 'x'));
  EXPECT_TRUE(engine_.wait_cancelled(id));
  EXPECT_EQ(pending.get().status, 0);
}

TEST_F(ServerTest, BoundsThePromptQueue) {
  ServerOptions options;
  options.max_pending_prompts = 0;
  start_and_attach(options);
  const net::ClientResponse answer = chat();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(code_of(answer), "overloaded");
  EXPECT_EQ(net::find_header(answer.headers, "Retry-After"), "1");
}

TEST_F(ServerTest, BoundsBodies) {
  ServerOptions options;
  options.max_body_bytes = 1000;
  start_and_attach(options);
  const net::ClientResponse answer = complete(R"({"prompt":")" + std::string(2000, 'a') + "\"}");
  EXPECT_EQ(answer.status, 413);
  EXPECT_THAT(answer.body, StartsWith(R"({"error":{"message":"The request body exceeds 1000)"));
}

TEST_F(ServerTest, CarriesRequestIds) {
  start_and_attach();
  const net::ClientResponse own = call("GET", "/health", "", {{"x-request-id", "abc-123"}});
  EXPECT_EQ(net::find_header(own.headers, "X-Request-Id"), "abc-123");
  for (const net::Headers& headers : {net::Headers{}, {{"X-Request-Id", "no spaces"}}}) {
    const net::ClientResponse made = call("GET", "/health", "", headers);
    EXPECT_THAT(std::string(net::find_header(made.headers, "X-Request-Id")),
                ::testing::MatchesRegex("req-[0-9a-f]+"));
  }
}

TEST_F(ServerTest, DrainsWhileARequestFinishes) {
  start_and_attach();
  Pending pending([this] { return chat(R"("stream":true)"); });
  engine_.emit_text(0, "Hel");
  bool is_complete = false;
  std::thread drainer([&] { is_complete = server_->drain(20s); });
  while (get("/health").body != R"({"status":"draining"})") std::this_thread::sleep_for(5ms);
  const net::ClientResponse refused = chat();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(code_of(refused), "draining");
  engine_.emit_end(0, FinishReason::kStop, kUsage, "lo");
  drainer.join();
  EXPECT_TRUE(is_complete);
  EXPECT_THAT(pending.get().body, HasSubstr(R"("content":"lo")"));
  EXPECT_THAT(pending.get().body, HasSubstr("[DONE]"));
  EXPECT_TRUE(engine_.is_draining());
  EXPECT_EQ(get("/health").status, 0);  // the port is closed
}

TEST_F(ServerTest, CancelsWhatTheDrainCannotWaitFor) {
  start_and_attach();
  Pending pending([this] { return chat(); });
  const std::uint64_t id = engine_.request(0).id;
  EXPECT_FALSE(server_->drain(20ms));
  EXPECT_TRUE(engine_.wait_cancelled(id));
  EXPECT_EQ(pending.get().status, 503);
  EXPECT_EQ(code_of(pending.get()), "draining");
}

TEST_F(ServerTest, TurnsRedAfterADeviceFault) {
  start_and_attach();
  EXPECT_TRUE(server_->healthy());
  engine::EngineStats stats;
  stats.healthy = false;
  engine_.set_stats(stats);
  EXPECT_FALSE(server_->healthy());
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(get("/health").body, R"({"status":"failed"})");
  EXPECT_EQ(code_of(chat()), "failed");
  server_->drain(0ms);
  EXPECT_FALSE(server_->healthy());
}

TEST_F(ServerTest, ServesManyAtOnce) {
  start_and_attach();
  constexpr std::size_t kStreams = 32;
  std::vector<std::unique_ptr<Pending>> streams;
  for (std::size_t i = 0; i < kStreams; ++i) {
    streams.push_back(std::make_unique<Pending>([this] { return chat(R"("stream":true)"); }));
  }
  engine_.request(kStreams - 1);
  for (int step = 0; step < 50; ++step) {
    for (std::size_t i = 0; i < kStreams; ++i) engine_.emit_text(i, "token ");
  }
  for (std::size_t i = 0; i < kStreams; ++i) engine_.emit_end(i, FinishReason::kLength);
  for (auto& stream : streams) EXPECT_THAT(stream->get().body, HasSubstr("[DONE]"));
}

}  // namespace
}  // namespace tandem::server::testing
