#include "tandem/server/answer_writer.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>

#include "tandem/server/json_text.h"

namespace tandem::server {
namespace {

using engine::FinishReason;

AnswerWriter::Head head(Endpoint endpoint, bool include_usage) {
  return {endpoint, "id-1", 1700000000, "mo\"del", "fp", include_usage};
}
constexpr engine::Usage kUsage = {.prompt_tokens = 12,
                                  .cached_tokens = 8,
                                  .completion_tokens = 5,
                                  .drafted_tokens = 4,
                                  .accepted_tokens = 3};
constexpr const char* kUsageJson =
    R"("usage":{"prompt_tokens":12,"completion_tokens":5,"total_tokens":17,)"
    R"("prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":)"
    R"({"reasoning_tokens":0,"accepted_prediction_tokens":3,"rejected_prediction_tokens":1,)"
    R"("drafted_tokens":4}})";

TEST(AnswerWriter, StreamsAChatByteForByte) {
  const AnswerWriter writer(head(Endpoint::kChat, false));
  std::string out;
  writer.append_opening(out);
  writer.append_text(out, "Hi \"you\"\n\xC3\xA9");
  writer.append_finish(out, FinishReason::kStop);
  AnswerWriter::append_done(out);
  const std::string start =
      R"(data: {"id":"id-1","object":"chat.completion.chunk","created":1700000000,)"
      R"("model":"mo\"del","system_fingerprint":"fp","choices":[{"index":0,)";
  EXPECT_EQ(out, start +
                     R"("delta":{"role":"assistant","content":""},"logprobs":null,)"
                     R"("finish_reason":null}]})"
                     "\n\n" +
                     start +
                     R"("delta":{"content":"Hi \"you\"\n)"
                     "\xC3\xA9"
                     R"("},"logprobs":null,"finish_reason":null}]})"
                     "\n\n" +
                     start + R"("delta":{},"logprobs":null,"finish_reason":"stop"}]})" +
                     "\n\ndata: [DONE]\n\n");
}

TEST(AnswerWriter, StreamsATextWithUsageByteForByte) {
  const AnswerWriter writer(head(Endpoint::kCompletion, true));
  std::string out;
  writer.append_opening(out);
  writer.append_text(out, "Hi");
  writer.append_finish(out, FinishReason::kLength);
  writer.append_usage(out, kUsage);
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
                     start + "]," + kUsageJson + "}\n\n");
}

TEST(AnswerWriter, WritesWholeAnswers) {
  EXPECT_EQ(AnswerWriter(head(Endpoint::kChat, false)).whole("Hi", FinishReason::kStop, kUsage),
            std::string(R"({"id":"id-1","object":"chat.completion","created":1700000000,)"
                        R"("model":"mo\"del","system_fingerprint":"fp","choices":[{"index":0,)"
                        R"("message":{"role":"assistant","content":"Hi","refusal":null},)"
                        R"("logprobs":null,"finish_reason":"stop"}],)") +
                kUsageJson + "}");
  EXPECT_EQ(
      AnswerWriter(head(Endpoint::kCompletion, false)).whole("Hi", FinishReason::kLength, kUsage),
      std::string(R"({"id":"id-1","object":"text_completion","created":1700000000,)"
                  R"("model":"mo\"del","system_fingerprint":"fp","choices":[{"index":0,)"
                  R"("text":"Hi","logprobs":null,"finish_reason":"length"}],)") +
          kUsageJson + "}");
}

TEST(AnswerWriter, WritesErrorsIntoAStream) {
  std::string out;
  AnswerWriter::append_error(out, http_error(500, "Oh."));
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
}  // namespace tandem::server
