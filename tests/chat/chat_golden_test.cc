// Every recorded conversation, rendered byte for byte. The files say what a line means in
// tests/chat/README.md.

#include <gtest/gtest.h>

#include <boost/json/value.hpp>
#include <sstream>
#include <string>

#include "tandem/chat/normalize.h"
#include "tandem/chat/template_gemma4.h"
#include "tandem/chat/wire_json.h"
#include "vocab_fixture.h"

namespace tandem::chat {
namespace {

bool flag_at(const boost::json::object& entry, std::string_view key, bool fallback) {
  const auto* found = entry.if_contains(key);
  return found == nullptr ? fallback : found->as_bool();
}

core::Result<std::string> render_line(const boost::json::object& entry, WireRules rules,
                                      TemplateVariant variant) {
  const auto* tools = entry.if_contains("tools");
  TANDEM_ASSIGN(Conversation conversation,
                parse_conversation(entry.at("messages").as_array(),
                                   tools == nullptr ? nullptr : &tools->as_array(), rules));
  conversation.enable_thinking = flag_at(entry, "enable_thinking", false);
  conversation.add_generation_prompt = flag_at(entry, "add_generation_prompt", true);
  TANDEM_ASSIGN(const auto pieces, render(conversation, variant));
  std::string prompt;
  for (const auto& piece : pieces) prompt += piece.text;
  return prompt;
}

void check_line(const boost::json::object& entry, TemplateVariant variant) {
  const auto prompt = render_line(entry, WireRules::kTemplate, variant);
  if (entry.contains("error")) {
    ASSERT_FALSE(prompt.ok()) << *prompt;
    EXPECT_EQ(prompt.status().code(), core::Code::kInvalidArgument);
    EXPECT_FALSE(render_line(entry, WireRules::kApi, variant).ok());
    return;
  }
  ASSERT_TRUE(prompt.ok()) << prompt.status().message();
  EXPECT_EQ(*prompt, testing::string_at(entry, "prompt"));
  // The API refuses more, but what it takes means the same.
  const auto strict = render_line(entry, WireRules::kApi, variant);
  if (strict.ok()) {
    EXPECT_EQ(*strict, *prompt);
  } else {
    EXPECT_EQ(strict.status().code(), core::Code::kInvalidArgument);
  }
}

TEST(golden, ChatTemplateRendersEveryLine) {
  const auto files = testing::golden_text_files("chat-");
  ASSERT_FALSE(files.empty());
  for (const std::string& path : files) {
    const bool e_series = path.find("e-series") != std::string::npos;
    std::istringstream lines(testing::read_file(path));
    EXPECT_TRUE(lines.peek() != EOF) << path;
    for (std::string line; std::getline(lines, line);) {
      const auto entry = parse_json(line);
      ASSERT_TRUE(entry.ok()) << entry.status().message();
      SCOPED_TRACE(path + ": " + testing::string_at(entry->as_object(), "name"));
      check_line(entry->as_object(),
                 e_series ? TemplateVariant::kOpenTurn : TemplateVariant::kEmptyThought);
    }
  }
}

}  // namespace
}  // namespace tandem::chat
