#include "tandem/grammar/calls.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <random>
#include <string>

#include "grammar_rig.h"
#include "random_tokens.h"
#include "schema_validator.h"
#include "tandem/chat/call_syntax.h"

namespace tandem::grammar {
namespace {

using testing::real_tokenizer;

constexpr const char* kWeather =
    R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,
    "maximum":14},"unit":{"enum":["C","F",null]},"odd key":{"type":"array","items":{"type":"number"}},
    "at":{"type":"string","format":"date"}},"required":["city"],"additionalProperties":false})";
constexpr const char* kOpen =
    R"({"properties":{"a":{"type":"boolean"}},"additionalProperties":{"type":"string","maxLength":4}})";

Source weather(bool must_call, bool may_repeat) {
  Source source;
  source.kind = Source::Kind::kAnyText;
  CallSource& calls = source.calls.emplace();
  calls.functions = {{"get_weather", kWeather}, {"now", ""}, {"note", kOpen}};
  calls.open = real_tokenizer().find("<|tool_call>");
  calls.close = real_tokenizer().find("<tool_call|>");
  calls.quote = real_tokenizer().find("<|\"|>");
  calls.must_call = must_call;
  calls.may_repeat = may_repeat;
  return source;
}

std::shared_ptr<const Grammar> compiled(const Source& source) {
  auto made = testing::compiler().compile(source);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return *made;
}

bool allows(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  return testing::matches(grammar, real_tokenizer().encode(text, true));
}

const std::string kRome =
    "<|tool_call>call:get_weather{city:<|\"|>Rome, \"x\"<|\"|>,days:2}<tool_call|>";
const std::string kNow = "<|tool_call>call:now{}<tool_call|>";

TEST(Calls, ArgumentsKeepToTheSchema) {
  const auto grammar = compiled(weather(true, true));
  for (const std::string& text :
       {kRome, kNow, kRome + kNow,
        std::string(
            "<|tool_call>call:get_weather{city:<|\"|><|\"|>,unit:null,<|\"|>odd key<|\"|>:[1,2.5],"
            "at:<|\"|>2024-02-29<|\"|>}<tool_call|>"),
        std::string("<|tool_call>call:now{x:[{y:<|\"|>z<|\"|>}]}<tool_call|>"),
        std::string("<|tool_call>call:note{a:true,b:<|\"|>four<|\"|>}<tool_call|>")}) {
    EXPECT_TRUE(allows(grammar, text)) << text;
  }
  for (const std::string& text :
       {std::string(), std::string("Hello"), "Hello" + kNow, kNow + "bye",
        std::string("<|tool_call>call:get_weather{days:2}<tool_call|>"),
        std::string("<|tool_call>call:get_weather{city:<|\"|>R<|\"|>,days:20}<tool_call|>"),
        std::string("<|tool_call>call:get_weather{city:Rome}<tool_call|>"),
        std::string("<|tool_call>call:other{}<tool_call|>"),
        std::string("<|tool_call>call:now[]<tool_call|>"),
        std::string("<|tool_call>call:note{b:<|\"|>longer<|\"|>}<tool_call|>"),
        std::string("<|tool_call>call:now{}")}) {
    EXPECT_FALSE(allows(grammar, text)) << text;
  }
  EXPECT_FALSE(allows(compiled(weather(true, false)), kNow + kNow));
}

TEST(Calls, TextMayComeFirstWhereNoCallIsAskedFor) {
  const auto grammar = compiled(weather(false, true));
  for (const std::string& text :
       {std::string(), std::string("Hello {"), "Let me see." + kRome + kNow}) {
    EXPECT_TRUE(allows(grammar, text)) << text;
  }
  EXPECT_FALSE(allows(grammar, "So <|tool_call>call:other{}<tool_call|>"));
}

TEST(Calls, ATextWithAFormMayStandInTheirPlace) {
  Source source = weather(false, true);
  source.kind = Source::Kind::kJsonSchema;
  source.text = R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],
                    "additionalProperties":false})";
  const auto either = compiled(source);
  for (const std::string& text : {std::string(R"({"a":1})"), kRome, kRome + kNow}) {
    EXPECT_TRUE(allows(either, text)) << text;
  }
  for (const std::string& text : {std::string(), std::string("Hello"), R"({"a":1})" + kNow,
                                  kNow + R"({"a":1})", std::string(R"({"b":1})")}) {
    EXPECT_FALSE(allows(either, text)) << text;
  }
  source.calls->must_call = true;
  EXPECT_FALSE(allows(compiled(source), R"({"a":1})"));
  EXPECT_TRUE(allows(compiled(source), kNow));
}

TEST(Calls, AFunctionWhoseSchemaCannotBeKeptIsNamed) {
  Source source = weather(true, true);
  source.calls->functions[1].parameters =
      R"({"properties":{"a":{"type":"array","uniqueItems":true}}})";
  const auto made = testing::compiler().compile(source);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().message().rfind("function \"now\": ", 0), 0U) << made.status().message();
}

TEST(Calls, WhateverIsCalledParsesAndIsValid) {
  const auto grammar = compiled(weather(true, false));
  std::mt19937 random(9);
  TrieWalker walker;
  int num_ended = 0;
  for (int i = 0; i < 30; ++i) {
    const auto tokens = testing::random_tokens(grammar, random, walker);
    if (!tokens) continue;
    ++num_ended;
    std::string text;
    for (const TokenId token : *tokens) {
      const bool is_quote = real_tokenizer().bytes(token) == "<|\"|>";
      text +=
          is_quote ? std::string(1, chat::kQuoteMark) : std::string(real_tokenizer().bytes(token));
    }
    text = text.substr(std::string("<|tool_call>").size());
    text.resize(text.size() - std::string("<tool_call|>").size());
    chat::CallReader call;
    std::string arguments;
    call.push(text, arguments);
    ASSERT_TRUE(call.is_whole()) << chat::spell_quotes(text);
    const char* schema = call.name() == "get_weather" ? kWeather
                         : call.name() == "note"      ? kOpen
                                                      : "{}";
    const auto document = boost::json::parse(schema);
    EXPECT_TRUE(testing::is_valid(boost::json::parse(arguments), document, document)) << arguments;
  }
  EXPECT_GT(num_ended, 10);
}

}  // namespace
}  // namespace tandem::grammar
