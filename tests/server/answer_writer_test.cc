#include "tandem/server/answer_writer.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>

#include "server_fixture.h"
#include "tandem/server/json_text.h"

namespace tandem::server::testing {
namespace {

AnswerHead head(bool is_stream, bool include_usage = false) {
  static const auto tokenizer = test_tokenizer();
  AnswerHead head;
  head.id = "id-1";
  head.created = 1700000000;
  head.model = "mo\"del";
  head.fingerprint = "fp";
  head.is_stream = is_stream;
  head.include_usage = include_usage;
  head.tokenizer = tokenizer.get();
  head.new_id = [count = 0](std::string_view prefix) mutable {
    return std::string(prefix) + std::to_string(++count);
  };
  return head;
}

AnswerUsage some_usage() {
  AnswerUsage usage;
  usage.prompt_tokens = 12;
  usage.cached_tokens = 8;
  usage.completion_tokens = 5;
  usage.drafted_tokens = 4;
  usage.accepted_tokens = 3;
  usage.reasoning_tokens = 2;
  return usage;
}
constexpr const char* kUsageJson =
    R"("usage":{"prompt_tokens":12,"completion_tokens":5,"total_tokens":17,)"
    R"("prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":)"
    R"({"reasoning_tokens":2,"accepted_prediction_tokens":3,"rejected_prediction_tokens":1,)"
    R"("drafted_tokens":4}})";

Delta text_delta(std::string text) {
  Delta delta;
  delta.add(chat::OutputPart::Kind::kContent, text);
  return delta;
}

/// Everything a message can have.
Delta full_delta() {
  using Kind = chat::OutputPart::Kind;
  constexpr auto kWhole = chat::OutputPart::Call::kWhole;
  Delta delta;
  delta.add(Kind::kReasoning, "Hm.");
  delta.add(Kind::kContent, "Hi \"you\"\n\xC3\xA9");
  delta.add({Kind::kCall, R"({"a":"b"})", "f", kWhole});
  delta.add({Kind::kCall, "{}", "g", kWhole});
  return delta;
}

std::vector<ScoredToken> some_logprobs() {
  const TokenId a = test_tokenizer()->find("a");
  const TokenId byte = byte_tokens("\xC3").front();
  return {{{{a, -0.5F}, {{a, -0.5F}, {byte, -1.25F}}}}, {{{byte, -2.0F}, {}}}};
}

TEST(AnswerWriter, StreamsAChatByteForByte) {
  const auto writer = make_chat_writer(head(true));
  std::string out;
  writer->open(out);
  writer->add(out, 0, full_delta(), {});
  writer->end(out, 0, "tool_calls", {});
  writer->close(out, some_usage());
  std::string expected;
  for (const char* delta : {
           R"("role":"assistant","content":"")",
           R"("reasoning_content":"Hm.")",
           "\"content\":\"Hi \\\"you\\\"\\n\xC3\xA9\"",
           R"("tool_calls":[{"index":0,"id":"call_1","type":"function","function":)"
           R"({"name":"f","arguments":""}}])",
           R"("tool_calls":[{"index":0,"function":{"arguments":"{\"a\":\"b\"}"}}])",
           R"("tool_calls":[{"index":1,"id":"call_2","type":"function","function":)"
           R"({"name":"g","arguments":""}}])",
           R"("tool_calls":[{"index":1,"function":{"arguments":"{}"}}])",
       }) {
    expected += std::string(R"(data: {"id":"id-1","object":"chat.completion.chunk",)"
                            R"("created":1700000000,"model":"mo\"del","system_fingerprint":"fp",)"
                            R"("choices":[{"index":0,"delta":{)") +
                delta + R"(},"logprobs":null,"finish_reason":null}]})" + "\n\n";
  }
  expected += std::string(R"(data: {"id":"id-1","object":"chat.completion.chunk",)"
                          R"("created":1700000000,"model":"mo\"del","system_fingerprint":"fp",)"
                          R"("choices":[{"index":0,"delta":{},"logprobs":null,)"
                          R"("finish_reason":"tool_calls"}]})") +
              "\n\ndata: [DONE]\n\n";
  EXPECT_EQ(out, expected);
}

/// A call in pieces that breaks: the pieces stay in a stream, its text follows as content.
TEST(AnswerWriter, TellsOfACallThatBrokeWhatWasSent) {
  using Kind = chat::OutputPart::Kind;
  const auto write = [](AnswerWriter& writer) {
    std::string out;
    writer.open(out);
    Delta delta;
    delta.add({Kind::kCall, R"({"a":)", "f"});
    writer.add(out, 0, std::move(delta), {});
    Delta rest;
    rest.add({Kind::kCall, R"("b)", {}, chat::OutputPart::Call::kBroken});
    rest.add(Kind::kContent, "TEXT");
    writer.add(out, 0, std::move(rest), {});
    writer.end(out, 0, "stop", {});
    writer.close(out, {});
    return out;
  };
  const std::string chat = write(*make_chat_writer(head(true)));
  EXPECT_NE(chat.find(R"("function":{"arguments":"{\"a\":"}}])"), std::string::npos) << chat;
  EXPECT_NE(chat.find(R"("function":{"arguments":"\"b"}}])"), std::string::npos) << chat;
  EXPECT_NE(chat.find(R"("content":"TEXT")"), std::string::npos) << chat;
  EXPECT_NE(chat.find(R"("finish_reason":"stop")"), std::string::npos) << chat;
  const std::string response = write(*make_responses_writer(head(true)));
  EXPECT_NE(response.find(R"("status":"incomplete","call_id")"), std::string::npos) << response;
  for (const auto& whole : {make_chat_writer(head(false)), make_responses_writer(head(false))}) {
    const std::string body = write(*whole);
    EXPECT_EQ(body.find("call_"), std::string::npos) << body;
    EXPECT_NE(body.find("TEXT"), std::string::npos) << body;
  }
}

TEST(AnswerWriter, StreamsATextWithUsageByteForByte) {
  const auto writer = make_completion_writer(head(true, true));
  std::string out;
  writer->open(out);
  writer->add(out, 0, text_delta("Hi"), {});
  writer->end(out, 0, "length", {});
  writer->close(out, some_usage());
  const std::string start = R"(data: {"id":"id-1","object":"text_completion","created":1700000000,)"
                            R"("model":"mo\"del","system_fingerprint":"fp","choices":[)";
  EXPECT_EQ(out, start +
                     R"({"index":0,"text":"Hi","logprobs":null,"finish_reason":null}],)"
                     R"("usage":null})"
                     "\n\n" +
                     start +
                     R"({"index":0,"text":"","logprobs":null,"finish_reason":"length"}],)"
                     R"("usage":null})"
                     "\n\n" +
                     start + "]," + kUsageJson + "}\n\ndata: [DONE]\n\n");
}

TEST(AnswerWriter, StreamsTheUsageSoFar) {
  AnswerHead continuous = head(true, true);
  continuous.continuous_usage = true;
  const auto writer = make_chat_writer(std::move(continuous));
  std::string out;
  writer->add(out, 0, text_delta("Hi"), some_usage());
  EXPECT_NE(out.find(kUsageJson), std::string::npos) << out;
}

TEST(AnswerWriter, WritesWholeChats) {
  AnswerHead two = head(false);
  two.num_choices = 2;
  const auto writer = make_chat_writer(std::move(two));
  std::string out;
  writer->open(out);
  writer->add(out, 1, full_delta(), {});
  writer->add(out, 0, text_delta("A"), {});
  writer->add(out, 0, text_delta("B"), {});
  writer->end(out, 1, "tool_calls", {});
  writer->end(out, 0, "stop", {});
  EXPECT_EQ(out, "");
  writer->close(out, some_usage());
  EXPECT_EQ(out, std::string(R"({"id":"id-1","object":"chat.completion","created":1700000000,)"
                             R"("model":"mo\"del","system_fingerprint":"fp","choices":[)"
                             R"({"index":0,"message":{"role":"assistant","content":"AB",)"
                             R"("refusal":null},"logprobs":null,"finish_reason":"stop"},)"
                             R"({"index":1,"message":{"role":"assistant",)"
                             "\"content\":\"Hi \\\"you\\\"\\n\xC3\xA9\","
                             R"("refusal":null,"reasoning_content":"Hm.","tool_calls":[)"
                             R"({"id":"call_1","type":"function","function":{"name":"f",)"
                             R"("arguments":"{\"a\":\"b\"}"}},{"id":"call_2","type":"function",)"
                             R"("function":{"name":"g","arguments":"{}"}}]},"logprobs":null,)"
                             R"("finish_reason":"tool_calls"}],)") +
                     kUsageJson + "}");
}

TEST(AnswerWriter, WritesWholeTexts) {
  const auto writer = make_completion_writer(head(false));
  std::string out;
  writer->add(out, 0, text_delta("Hi"), {});
  writer->end(out, 0, "length", {});
  writer->close(out, some_usage());
  EXPECT_EQ(out, std::string(R"({"id":"id-1","object":"text_completion","created":1700000000,)"
                             R"("model":"mo\"del","system_fingerprint":"fp","choices":[{"index":0,)"
                             R"("text":"Hi","logprobs":null,"finish_reason":"length"}],)") +
                     kUsageJson + "}");
}

TEST(AnswerWriter, SpellsLogprobsOfChats) {
  const auto writer = make_chat_writer(head(true));
  Delta delta;
  delta.logprobs = some_logprobs();
  std::string out;
  writer->add(out, 0, std::move(delta), {});
  EXPECT_NE(out.find(R"("logprobs":{"content":[{"token":"a","logprob":-0.5,"bytes":[97],)"
                     R"("top_logprobs":[{"token":"a","logprob":-0.5,"bytes":[97]},)"
                     "{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-1.25,\"bytes\":[195]}]},"
                     "{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-2,\"bytes\":[195],"
                     R"("top_logprobs":[]}],"refusal":null})"),
            std::string::npos)
      << out;
}

TEST(AnswerWriter, SpellsLogprobsOfTexts) {
  const auto writer = make_completion_writer(head(true));
  std::string out;
  for (int i = 0; i < 2; ++i) {
    Delta delta;
    delta.logprobs = some_logprobs();
    out.clear();
    writer->add(out, 0, std::move(delta), {});
  }
  EXPECT_NE(out.find("\"logprobs\":{\"tokens\":[\"a\",\"\xEF\xBF\xBD\"],"
                     "\"token_logprobs\":[-0.5,-2],"
                     "\"top_logprobs\":[{\"a\":-0.5,\"\xEF\xBF\xBD\":-1.25},{\"\xEF\xBF\xBD\":-2}],"
                     "\"text_offset\":[2,3]}"),
            std::string::npos)
      << out;
}

TEST(AnswerWriter, WritesErrorsIntoAStream) {
  std::string out;
  make_chat_writer(head(true))->fail(out, http_error(500, "Oh."));
  EXPECT_EQ(out, "data: " + to_json(http_error(500, "Oh.")) + "\n\n");
}

TEST(JsonText, EveryAsciiTextSurvivesAParser) {
  std::string text;
  for (int c = 0; c < 0x80; ++c) text.push_back(static_cast<char>(c));
  text += "\xC3\xA9\xE2\x96\x81\xF0\x9F\x98\x80";
  std::string json;
  append_json_string(json, text);
  EXPECT_EQ(boost::json::parse(json).as_string(), text);
  EXPECT_EQ(json.find('\n'), std::string::npos);  // a raw line break would split an SSE event
}

}  // namespace
}  // namespace tandem::server::testing
