#include "tandem/bench/chat_stream.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem::bench {
namespace {

std::string event(std::string_view json) {
  return "data: " + std::string(json) + "\n\n";
}

const std::string kRole =
    event(R"({"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]})");
const std::string kText =
    event(R"({"choices":[{"delta":{"content":"several tokens at once"},"finish_reason":null}]})");
const std::string kFinish =
    event(R"({"choices":[{"delta":{},"finish_reason":"length"}],"usage":null})");
const std::string kUsage =
    event(R"({"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":9,"total_tokens":21}})");
const std::string kDone = event("[DONE]");

TEST(ChatStream, TimesTheFirstEventAndTheFirstContentApart) {
  ChatStream stream;
  stream.feed(kRole, 1.0);
  EXPECT_EQ(stream.first_event_at(), 1.0);
  EXPECT_FALSE(stream.first_content_at());
  stream.feed(kText, 2.0);
  stream.feed(kText, 3.0);
  stream.feed(kFinish, 4.0);
  stream.feed(kUsage + kDone, 5.0);
  EXPECT_EQ(stream.first_event_at(), 1.0);
  EXPECT_EQ(stream.first_content_at(), 2.0);
  EXPECT_EQ(stream.end_at(), 4.0);
  EXPECT_EQ(stream.finish_reason(), "length");
  ASSERT_TRUE(stream.usage());
  EXPECT_EQ(stream.usage()->prompt_tokens, 12u);
  EXPECT_EQ(stream.usage()->completion_tokens, 9u);
  EXPECT_EQ(stream.error(), "");
}

TEST(ChatStream, HowTheBytesAreCutChangesNothing) {
  const std::string whole = ": comment\r\n\r\n" + kRole + kText + kText + kFinish + kUsage + kDone;
  for (std::size_t size = 1; size < 40; ++size) {
    ChatStream stream;
    for (std::size_t at = 0; at < whole.size(); at += size) {
      stream.feed(std::string_view(whole).substr(at, size), static_cast<double>(at));
    }
    EXPECT_TRUE(stream.first_content_at());
    EXPECT_EQ(stream.finish_reason(), "length");
    ASSERT_TRUE(stream.usage());
    EXPECT_EQ(stream.usage()->completion_tokens, 9u);
    EXPECT_EQ(stream.error(), "");
  }
}

TEST(ChatStream, ReasoningAndToolCallsAreContent) {
  for (const char* delta :
       {R"({"reasoning_content":"hm"})", R"({"reasoning":"hm"})", R"({"tool_calls":[{}]})"}) {
    ChatStream stream;
    stream.feed(event(R"({"choices":[{"delta":)" + std::string(delta) + "}]}"), 1.0);
    EXPECT_EQ(stream.first_content_at(), 1.0) << delta;
  }
  ChatStream stream;
  stream.feed(event(R"({"choices":[{"delta":{"tool_calls":[],"content":null}}]})"), 1.0);
  EXPECT_FALSE(stream.first_content_at());
}

TEST(ChatStream, TakesTheLatestUsageAndTheDraftTimings) {
  ChatStream stream;
  stream.feed(event(R"({"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}})"), 1.0);
  stream.feed(event(R"({"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":8},)"
                    R"("timings":{"draft_n":20,"draft_n_accepted":4,"unknown":1}})"),
              2.0);
  EXPECT_EQ(stream.usage()->completion_tokens, 8u);
  ASSERT_TRUE(stream.draft_timings());
  EXPECT_EQ(stream.draft_timings()->drafted, 20u);
  EXPECT_EQ(stream.draft_timings()->accepted, 4u);
}

TEST(ChatStream, WrongTypesAreNotCounted) {
  ChatStream stream;
  stream.feed(event(R"({"choices":{},"usage":{"prompt_tokens":-5,"completion_tokens":"8"}})"), 1.0);
  stream.feed(event(R"({"choices":[3],"usage":[],"timings":null})"), 2.0);
  EXPECT_FALSE(stream.usage());
  EXPECT_FALSE(stream.end_at());
  EXPECT_EQ(stream.error(), "");
}

TEST(ChatStream, ReportsErrorEvents) {
  ChatStream stream;
  stream.feed(event(R"({"error":{"message":"out of pages","code":500}})"), 1.0);
  EXPECT_EQ(stream.error(), "out of pages");
  ChatStream other;
  other.feed(event(R"({"error":{"code":7}})"), 1.0);
  EXPECT_EQ(other.error(), R"({"code":7})");
  ChatStream garbage;
  garbage.feed(event("{not json"), 1.0);
  EXPECT_EQ(garbage.error(), "an event is not a JSON object");
}

}  // namespace
}  // namespace tandem::bench
