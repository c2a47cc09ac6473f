// Every recorded model output, parsed token by token and in groups. The file says what a line means
// in tests/chat/README.md.

#include <gtest/gtest.h>

#include <boost/json/value.hpp>
#include <string>
#include <vector>

#include "tandem/chat/output_parser.h"
#include "vocab_fixture.h"

namespace tandem::chat {
namespace {

using testing::string_at;

/// Parses the ids in groups of the given sizes.
void check_grouping(const boost::json::object& entry, const std::vector<TokenId>& sizes) {
  const std::vector<TokenId> ids = testing::ids_at(entry, "ids");
  OutputParser parser(testing::real_tokenizer());
  OutputMessage message;
  std::span<const TokenId> rest = ids;
  for (const TokenId size : sizes) {
    message.add(parser.push(rest.first(static_cast<std::size_t>(size))));
    rest = rest.subspan(static_cast<std::size_t>(size));
  }
  ASSERT_TRUE(rest.empty());
  message.add(parser.finish());

  const bool content_is_null = parser.has_calls() && message.content.empty();
  EXPECT_EQ(content_is_null, entry.at("content").is_null());
  if (!content_is_null) {
    EXPECT_EQ(message.content, string_at(entry, "content"));
  }
  EXPECT_EQ(message.reasoning.empty(), entry.at("reasoning_content").is_null());
  if (!message.reasoning.empty()) {
    EXPECT_EQ(message.reasoning, string_at(entry, "reasoning_content"));
  }
  const auto& calls = entry.at("tool_calls").as_array();
  ASSERT_EQ(message.calls.size(), calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(message.calls[i].name, string_at(calls[i].as_object(), "name"));
    EXPECT_EQ(message.calls[i].arguments, string_at(calls[i].as_object(), "arguments"));
  }
  const bool cut = string_at(entry, "stop") == "length";
  EXPECT_EQ(cut                  ? "length"
            : parser.has_calls() ? "tool_calls"
                                 : "stop",
            string_at(entry, "finish_reason"));
}

TEST(golden, OutputParserReadsEveryLineInEveryGrouping) {
  const auto files = testing::golden_text_files("parse");
  ASSERT_FALSE(files.empty());
  for (const std::string& path : files) {
    for (const auto& line : testing::read_jsonl(path)) {
      const auto& entry = line.as_object();
      SCOPED_TRACE(path + ": " + string_at(entry, "name"));
      const std::size_t count = entry.at("ids").as_array().size();
      check_grouping(entry, std::vector<TokenId>(count, 1));
      for (const auto& grouping : entry.at("groupings").as_array()) {
        std::vector<TokenId> sizes;
        for (const auto& size : grouping.as_array()) sizes.push_back(size.to_number<TokenId>());
        check_grouping(entry, sizes);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::chat
