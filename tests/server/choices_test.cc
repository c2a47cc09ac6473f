// What clients see of the choices of an answer: thoughts, calls, stop strings, several choices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <random>

#include "../net/raw_socket.h"
#include "server_fixture.h"
#include "tandem/server/choice_output.h"

namespace tandem::server::testing {
namespace {

namespace json = boost::json;
using engine::FinishReason;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kThoughtCallText =
    "<|channel>thought\nLet me see.\n<channel|>Well, <|tool_call>call:f{a:<|\"|>x<|\"|>,b:1}"
    "<tool_call|><|tool_call>call:g{}<tool_call|><turn|>";

/// Events of a stream, parsed; without the last one, which must be [DONE].
std::vector<json::value> chunks_of(const net::ClientResponse& answer) {
  std::vector<std::string> events;
  net::SseReader reader;
  reader.feed(answer.body, [&](std::string_view event) { events.emplace_back(event); });
  EXPECT_FALSE(events.empty()) << answer.body;
  if (events.empty()) return {};
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  std::vector<json::value> chunks;
  for (const std::string& event : events) chunks.push_back(json::parse(event));
  return chunks;
}

/// The message that a client puts together from the deltas of choice `index`.
struct Message {
  std::string content, reasoning, finish_reason;
  std::vector<std::pair<std::string, std::string>> calls;
  bool operator==(const Message&) const = default;
};

Message joined(const std::vector<json::value>& chunks, std::int64_t index) {
  Message message;
  for (const json::value& chunk : chunks) {
    for (const json::value& choice : chunk.at("choices").as_array()) {
      if (choice.at("index") != index) continue;
      const json::object& delta = choice.at("delta").as_object();
      if (const auto* text = delta.if_contains("content")) message.content += text->as_string();
      if (const auto* text = delta.if_contains("reasoning_content")) {
        message.reasoning += text->as_string();
      }
      if (const auto* calls = delta.if_contains("tool_calls")) {
        const json::object& call = calls->at(0).as_object();
        const json::object& function = call.at("function").as_object();
        const auto at = static_cast<std::size_t>(call.at("index").as_int64());
        if (function.contains("name")) {
          EXPECT_EQ(at, message.calls.size());
          EXPECT_TRUE(call.at("id").as_string().starts_with("call_"));
          message.calls.emplace_back(function.at("name").as_string(), "");
        }
        message.calls.at(at).second += function.at("arguments").as_string();
      }
      if (!choice.at("finish_reason").is_null()) {
        message.finish_reason = choice.at("finish_reason").as_string();
      }
    }
  }
  return message;
}

class ChoicesTest : public ServerTest {
 protected:
  void emit_and_stop(std::size_t index, std::string_view output) {
    engine_.emit_tokens(index, tokens_of(output));
    engine_.emit_end(index, FinishReason::kStop);
  }
};

TEST_F(ChoicesTest, SplitThoughtsAndCallsFromTheContent) {
  start_and_attach();
  Pending whole([this] { return chat(); });
  emit_and_stop(0, kThoughtCallText);
  const json::value choice = json::parse(whole.get().body).at("choices").at(0);
  const json::value& message = choice.at("message");
  EXPECT_EQ(message.at("content"), "Well, ");
  EXPECT_EQ(message.at("reasoning_content"), "Let me see.");
  EXPECT_EQ(message.at("tool_calls").at(0).at("function").at("name"), "f");
  EXPECT_EQ(message.at("tool_calls").at(0).at("function").at("arguments"), R"({"a":"x","b":1})");
  EXPECT_EQ(message.at("tool_calls").at(1).at("function").at("name"), "g");
  EXPECT_NE(message.at("tool_calls").at(0).at("id"), message.at("tool_calls").at(1).at("id"));
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");

  Pending stream([this] { return chat(R"("stream":true)"); });
  emit_and_stop(1, kThoughtCallText);
  const Message expected{
      "Well, ", "Let me see.", "tool_calls", {{"f", R"({"a":"x","b":1})"}, {"g", "{}"}}};
  EXPECT_EQ(joined(chunks_of(stream.get()), 0), expected);
}

TEST_F(ChoicesTest, GiveNoContentBesideCallsAlone) {
  start_and_attach();
  Pending whole([this] { return chat(); });
  emit_and_stop(0, "<|tool_call>call:f{}<tool_call|>\n");
  const auto body = json::parse(whole.get().body);
  EXPECT_TRUE(body.at("choices").at(0).at("message").at("content").is_null());
}

TEST_F(ChoicesTest, BoundThoughtsWhereAskedTo) {
  start_and_attach();
  Pending whole([this] { return chat(R"("thinking_budget":5)"); });
  const auto budget = engine_.request(0).thought_budget;
  ASSERT_TRUE(budget.has_value());
  EXPECT_EQ(budget->max_tokens, 5);
  EXPECT_EQ(budget->open, test_tokenizer()->find("<|channel>"));
  EXPECT_EQ(budget->close, test_tokenizer()->find("<channel|>"));
  emit_and_stop(0, "a");
  EXPECT_EQ(whole.get().status, 200);
}

TEST_F(ChoicesTest, CountThoughts) {
  start_and_attach();
  Pending whole([this] { return chat(); });
  emit_and_stop(0, "<|channel>thought\nab<channel|>cd");
  const auto usage = json::parse(whole.get().body).at("usage");
  EXPECT_EQ(usage.at("completion_tokens_details").at("reasoning_tokens"), 12);
}

TEST_F(ChoicesTest, StopAtStringsOfTheContentOnly) {
  start_and_attach();
  Pending whole([this] { return chat(R"("stop":["ST"])"); });
  EXPECT_TRUE(engine_.request(0).stop.empty());
  engine::Event event;
  event.tokens = tokens_of("<|channel>thought\nST<channel|>abS");
  event.usage.completion_tokens = static_cast<int>(event.tokens.size());
  engine_.emit(0, event);
  const int before = event.usage.completion_tokens;
  event.tokens = tokens_of("Tcdef");
  event.usage.completion_tokens += 5;
  engine_.emit(0, event);
  EXPECT_TRUE(engine_.wait_cancelled(engine_.request(0).id));
  const auto body = json::parse(whole.get().body);
  EXPECT_EQ(body.at("choices").at(0).at("message").at("content"), "ab");
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(body.at("usage").at("completion_tokens"), before + 1);
  EXPECT_THAT(get("/metrics").body,
              HasSubstr(R"(finished_reason="stop",model_name="demo/model"} 1)"));
}

TEST_F(ChoicesTest, EndAfterOneCallIfParallelOnesAreNotWanted) {
  start_and_attach();
  Pending whole([this] { return chat(R"("parallel_tool_calls":false)"); });
  engine_.emit_tokens(0, tokens_of(kThoughtCallText));
  const auto choice = json::parse(whole.get().body).at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("tool_calls").as_array().size(), 1U);
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  EXPECT_TRUE(engine_.wait_cancelled(engine_.request(0).id));
}

TEST_F(ChoicesTest, OfOneRequestAreRequestsOfTheEngine) {
  start_and_attach();
  Pending stream([this] {
    return chat(R"("stream":true,"n":3,"seed":7,"stream_options":{"include_usage":true})");
  });
  const engine::Request first = engine_.request(0);
  EXPECT_EQ(engine_.num_submitted(), 1U);  // the others wait for its prompt
  engine_.emit_text(0, "a");
  ASSERT_EQ(engine_.num_submitted(), 3U);
  for (std::size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(engine_.request(i).prompt, first.prompt);
    EXPECT_EQ(engine_.request(i).sampling.seed, 7 + i);
  }
  engine_.emit_text(2, "c");
  engine_.emit_text(1, "b");
  const engine::Usage usage = {.prompt_tokens = 10, .completion_tokens = 2};
  engine_.emit_end(1, FinishReason::kStop, usage);
  engine_.emit_end(0, FinishReason::kLength, usage, "A");
  engine_.emit_end(2, FinishReason::kStop, usage);
  const auto chunks = chunks_of(stream.get());
  EXPECT_EQ(joined(chunks, 0), (Message{"aA", "", "length", {}}));
  EXPECT_EQ(joined(chunks, 1), (Message{"b", "", "stop", {}}));
  EXPECT_EQ(joined(chunks, 2), (Message{"c", "", "stop", {}}));
  EXPECT_EQ(chunks.back().at("usage").at("prompt_tokens"), 10);
  EXPECT_EQ(chunks.back().at("usage").at("completion_tokens"), 6);
}

TEST_F(ChoicesTest, AreRefusedTogetherWhenTheQueueIsFull) {
  start_and_attach();
  Pending stream([this] { return chat(R"("stream":true,"n":2)"); });
  const std::uint64_t id = engine_.request(0).id;
  engine_.set_submit_status(core::resource_exhausted("the queue is full"));
  engine_.emit_text(0, "a");
  EXPECT_EQ(stream.get().status, 429);
  EXPECT_TRUE(engine_.wait_cancelled(id));
}

TEST_F(ChoicesTest, AreRefusedForGoodWhereTheyNeverFit) {
  start_and_attach();
  const auto refused = complete(R"({"prompt":["a","b"],"n":21})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("is 42, but this server takes 41 requests at a time"));
  EXPECT_EQ(engine_.num_submitted(), 0U);
}

TEST_F(ChoicesTest, AreAllCancelledWhenTheClientLeaves) {
  start_and_attach();
  const std::string body = chat_body(R"("n":3)");
  net::testing::RawSocket client(server_->port());
  ASSERT_TRUE(client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                          std::to_string(body.size()) + "\r\n\r\n" + body));
  engine_.emit_text(0, "a");
  ASSERT_EQ(engine_.num_submitted(), 3U);
  client.close();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(engine_.wait_cancelled(engine_.request(i).id));
}

TEST_F(ChoicesTest, OfSeveralPromptsEchoThem) {
  start_and_attach();
  Pending whole(
      [this] { return complete(R"({"prompt":["a<bos>",[264,265]],"n":2,"echo":true})"); });
  for (std::size_t i = 0; i < 4; ++i) {
    engine_.emit_end(i, FinishReason::kStop, {.prompt_tokens = 3}, std::to_string(i));
  }
  const auto body = json::parse(whole.get().body);
  const auto& choices = body.at("choices").as_array();
  ASSERT_EQ(choices.size(), 4U);
  EXPECT_EQ(choices[0].at("text"), "a<bos>0");
  EXPECT_EQ(choices[1].at("text"), "a<bos>1");
  EXPECT_EQ(choices[2].at("text"), "ab2");
  EXPECT_EQ(choices[3].at("text"), "ab3");
  EXPECT_EQ(body.at("usage").at("prompt_tokens"), 6);
}

TEST_F(ChoicesTest, EchoTheLogprobsOfTheirPrompts) {
  start_and_attach();
  const auto answer = [this](std::size_t i, const std::string& said) {
    const engine::Request request = engine_.request(i);
    EXPECT_EQ(request.prompt_logprobs, 1);
    EXPECT_EQ(request.logprobs, 1);
    EXPECT_EQ(request.max_tokens, 1);
    EXPECT_EQ(request.is_prompt_only, said.empty());
    engine::Event event;
    for (std::size_t t = 1; t < request.prompt.size(); ++t) {
      const TokenId token = request.prompt[t];
      event.prompt_logprobs.push_back({{token, -1.0F - static_cast<float>(t)}, {{9, -0.5F}}});
    }
    event.tokens = tokens_of(said);
    event.text = said == "<turn|>" ? "" : said;
    for (const TokenId token : event.tokens) {
      event.logprobs.push_back({{token, -0.25F}, {{token, -0.25F}}});
    }
    event.finish = said == "<turn|>" ? FinishReason::kStop : FinishReason::kLength;
    event.usage.prompt_tokens = static_cast<int>(request.prompt.size());
    event.usage.completion_tokens = static_cast<int>(event.tokens.size());
    engine_.emit(i, event);
  };
  for (const char* most : {"1", "0"}) {
    const auto first = engine_.num_submitted();
    Pending whole([this, most] {
      return complete(fmt::format(R"({{"prompt":["ab\u00e9",[2,264,265]],"echo":true,)"
                                  R"("logprobs":1,"max_tokens":{}}})",
                                  most));
    });
    const bool is_empty = *most == '0';
    answer(first, is_empty ? "" : "c");
    answer(first + 1, is_empty ? "" : "<turn|>");
    const auto body = json::parse(whole.get().body);
    const auto part = [&](std::size_t i, const char* name) {
      return json::serialize(body.at("choices").at(i).at("logprobs").at(name));
    };
    const std::string last = is_empty ? "" : "c";
    EXPECT_EQ(body.at("choices").at(0).at("text").as_string(), "ab\u00e9" + last);
    EXPECT_EQ(body.at("choices").at(1).at("text"), "<bos>ab");
    EXPECT_EQ(part(0, "tokens"), "[\"<bos>\",\"a\",\"b\",\"\uFFFD\",\"\uFFFD\"" +
                                     std::string(is_empty ? "]" : ",\"c\"]"));
    EXPECT_EQ(part(0, "token_logprobs"),
              is_empty ? "[null,-2,-3,-4,-5]" : "[null,-2,-3,-4,-5,-2.5E-1]");
    EXPECT_EQ(part(0, "text_offset"), is_empty ? "[0,0,1,2,3]" : "[0,0,1,2,3,3]");
    EXPECT_EQ(part(1, "text_offset"), is_empty ? "[0,5,6]" : "[0,5,6,7]");
    const std::string tops = R"([null,{"\u0001":-5E-1,"a":-2},{"\u0001":-5E-1,"b":-3})";
    EXPECT_EQ(part(1, "top_logprobs"), tops + (is_empty ? "]" : R"(,{"<turn|>":-2.5E-1}])"));
    EXPECT_EQ(body.at("usage").at("completion_tokens"), is_empty ? 0 : 2);
    EXPECT_EQ(body.at("choices").at(1).at("finish_reason"), is_empty ? "length" : "stop");
  }
}

TEST_F(ChoicesTest, CarryTheLogprobsOfThePromptInVllmsForm) {
  start_and_attach();
  constexpr TokenId kA = 264;
  const auto answer = [this](std::size_t i) {
    const engine::Request request = engine_.request(i);
    engine::Event event;
    if (request.prompt_logprobs) {
      EXPECT_EQ(request.prompt_logprobs, 2);
      event.prompt_logprobs = {{{kA, -3.0F}, {{9, -0.5F}, {10, -1.0F}}, 7},
                               {{9, -0.5F}, {{9, -0.5F}, {10, -1.0F}}, 1}};
    }
    event.text = "x";
    event.tokens = tokens_of("x");
    event.logprobs = {{{event.tokens[0], -0.25F}, {{event.tokens[0], -0.25F}}}};
    event.finish = FinishReason::kStop;
    engine_.emit(i, event);
  };
  const auto list = [](int top) {
    const std::string second =
        top == 2 ? R"(,"10":{"logprob":-1,"rank":2,"decoded_token":"\u0002"})" : std::string();
    const std::string first = R"("9":{"logprob":-5E-1,"rank":1,"decoded_token":"\u0001"})" + second;
    return json::parse(R"([null,{"264":{"logprob":-3,"rank":7,"decoded_token":"a"},)" + first +
                       "},{" + first + "}]");
  };
  // A text's choices have them each; beside `echo`, whose own are fewer.
  Pending text([this] {
    return complete(R"({"prompt":[2,264,9],"n":2,"prompt_logprobs":2,"echo":true,"logprobs":1})");
  });
  answer(0);
  answer(1);
  const auto body = json::parse(text.get().body);
  for (const auto& choice : body.at("choices").as_array()) {
    EXPECT_EQ(choice.at("prompt_logprobs"), list(2));
    EXPECT_EQ(json::serialize(choice.at("logprobs").at("top_logprobs").at(1)),
              R"({"\u0001":-5E-1,"a":-3})");
  }
  // A chat has them once, beside its choices.
  Pending chat_answer([this] { return chat(R"("n":2,"prompt_logprobs":2)"); });
  answer(2);
  EXPECT_FALSE(engine_.request(3).prompt_logprobs.has_value());
  answer(3);
  const auto chat_body = json::parse(chat_answer.get().body);
  EXPECT_EQ(chat_body.at("prompt_logprobs"), list(2));
  EXPECT_FALSE(chat_body.at("choices").at(0).as_object().contains("prompt_logprobs"));
  // Nothing was asked for.
  Pending plain([this] { return chat(); });
  answer(4);
  EXPECT_FALSE(json::parse(plain.get().body).as_object().contains("prompt_logprobs"));
}

TEST_F(ChoicesTest, CarryTheLogprobsOfTheirContent) {
  start_and_attach();
  Pending whole([this] { return chat(R"("logprobs":true,"top_logprobs":1)"); });
  EXPECT_EQ(engine_.request(0).logprobs, 1);
  engine::Event event;
  event.tokens =
      tokens_of("<|channel>thought\nx<channel|>ab<|tool_call>call:f{}<tool_call|><turn|>");
  for (const TokenId token : event.tokens) {
    event.logprobs.push_back({{token, -1.0F}, {{token, -1.0F}}});
  }
  event.finish = FinishReason::kStop;
  engine_.emit(0, event);
  const auto body = json::parse(whole.get().body);
  const auto& content = body.at("choices").at(0).at("logprobs").at("content").as_array();
  ASSERT_EQ(content.size(), 2U);
  EXPECT_EQ(content[0].at("token"), "a");
  EXPECT_EQ(content[1].at("top_logprobs").at(0).at("token"), "b");
}

TEST_F(ChoicesTest, AnswerInTimeOrSayThatTheyDoNot) {
  ServerOptions options;
  options.request_timeout = 5s;
  start_and_attach(options);
  Pending whole([this] { return chat(); });
  EXPECT_TRUE(engine_.request(0).deadline.has_value());
  engine::Event event;
  event.finish = FinishReason::kError;
  event.error = core::cancelled("too late");
  engine_.emit(0, event);
  EXPECT_EQ(whole.get().status, 504);
  EXPECT_THAT(whole.get().body, HasSubstr("deadline_exceeded"));
}

/// Property: however tokens are grouped into events, the joined deltas are the same.
TEST(ChoiceOutputProperty, GroupingChangesNothing) {
  const auto tokenizer = test_tokenizer();
  constexpr std::string_view kPieces[] = {"<|channel>",
                                          "thought\n",
                                          "<channel|>",
                                          "<|tool_call>",
                                          "<tool_call|>",
                                          "call:f{a:1}",
                                          "call:f{",
                                          "<|\"|>",
                                          "ST",
                                          "S",
                                          "T",
                                          "\n",
                                          " ",
                                          "a",
                                          "\xC3\xA9",
                                          "<turn|>"};
  std::mt19937 random(5);
  const auto run = [&](const std::vector<TokenId>& tokens, bool parallel, unsigned most) {
    ChoiceOutput output(*tokenizer, {.is_chat = true,
                                     .stop = {"ST", "aS"},
                                     .stop_tokens = {},
                                     .parallel_tool_calls = parallel});
    chat::OutputDelta joined;
    std::string scored;
    int sent = 0;
    for (std::size_t at = 0; at < tokens.size() && !output.is_finished();) {
      const std::size_t count = std::min<std::size_t>(1 + random() % most, tokens.size() - at);
      engine::Event event;
      event.tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                          tokens.begin() + static_cast<std::ptrdiff_t>(at + count));
      for (const TokenId token : event.tokens) event.logprobs.push_back({{token, 0.0F}, {}});
      at += count;
      event.usage.completion_tokens = sent += static_cast<int>(count);
      if (at == tokens.size()) event.finish = FinishReason::kStop;
      Delta delta = output.push(event);
      for (chat::OutputPart& part : delta.parts) joined.add(std::move(part));
      for (const auto& each : delta.logprobs) scored += tokenizer->bytes(each.chosen.token);
    }
    EXPECT_TRUE(output.is_finished());
    return std::tuple(joined.parts, scored, std::string(output.finish_reason()),
                      output.usage().completion_tokens, output.usage().reasoning_tokens);
  };
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (unsigned i = 0; i < 1 + random() % 12; ++i) text += kPieces[random() % 15];
    if (random() % 2 == 0) text += "<turn|>";
    const std::vector<TokenId> tokens = tokens_of(text);
    const bool parallel = random() % 2 == 0;
    const auto single = run(tokens, parallel, 1);
    for (const unsigned most : {2U, 5U, 100U}) {
      ASSERT_EQ(run(tokens, parallel, most), single) << text;
    }
  }
}

}  // namespace
}  // namespace tandem::server::testing
