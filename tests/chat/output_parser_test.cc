#include "tandem/chat/output_parser.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <boost/json/serialize.hpp>
#include <ctime>
#include <string>
#include <vector>

#include "tandem/chat/prompt_builder.h"
#include "tandem/chat/tool_format.h"
#include "tandem/chat/wire_json.h"
#include "vocab_fixture.h"

namespace tandem::chat {
namespace {

const tokenizer::Tokenizer& tokenizer_of_tests() {
  return testing::real_tokenizer();
}

OutputMessage parse_text(const std::string& text) {
  OutputParser parser(tokenizer_of_tests());
  OutputMessage message;
  message.add(parser.push(tokenizer_of_tests().encode(text, true)));
  message.add(parser.finish());
  return message;
}

/// What a client saw so far, each part on its own line.
std::string shown(const OutputPart& part) {
  constexpr const char* kKinds[] = {"reasoning", "content", "call"};
  constexpr const char* kEnds[] = {"", " whole", " broken"};
  return std::string(kKinds[static_cast<int>(part.kind)]) + " " + part.name + " " + part.text +
         kEnds[static_cast<int>(part.call)];
}

TEST(OutputParser, GivesTextOutAsSoonAsItIsCertain) {
  const auto& tokenizer = tokenizer_of_tests();
  OutputParser parser(tokenizer);
  std::vector<std::string> seen;
  for (const TokenId id : tokenizer.encode("<|channel>thought\nso \nit<channel|>\nHi", true)) {
    for (const OutputPart& part : parser.push({&id, 1}).parts) seen.push_back(shown(part));
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"reasoning  so", "reasoning   \nit", "content  \nHi"}));
}

/// The parts that one character a token gives.
std::vector<std::string> parts_of_characters(std::string_view call) {
  const auto& tokenizer = tokenizer_of_tests();
  OutputParser parser(tokenizer);
  std::vector<TokenId> ids = {tokenizer.find("<|tool_call>")};
  for (const char c : call) {
    ids.push_back(c == '\'' ? tokenizer.find("<|\"|>") : tokenizer.find(std::string(1, c)));
  }
  ids.push_back(tokenizer.find("<tool_call|>"));
  std::vector<std::string> seen;
  for (const TokenId id : ids) {
    for (const OutputPart& part : parser.push({&id, 1}).parts) seen.push_back(shown(part));
  }
  return seen;
}

TEST(OutputParser, GivesArgumentsOutAsSoonAsTheyAreCertain) {
  EXPECT_EQ(
      parts_of_characters("call:f{a:'xy',b:tru,c:[1]}"),
      (std::vector<std::string>{"call f {", "call  \"a\":", "call  \"", "call  x", "call  y",
                                "call  \"", "call  ,", "call  \"b\":", "call  \"tru\",",
                                "call  \"c\":", "call  [", "call  1]", "call  }", "call   whole"}));
}

TEST(OutputParser, SpellsACallThatBreaksOutAsContent) {
  EXPECT_EQ(parts_of_characters("call:f{a:'x'b}"),
            (std::vector<std::string>{
                "call f {", "call  \"a\":", "call  \"", "call  x", "call  \"", "call   broken",
                "content  <|tool_call>call:f{a:<|\"|>x<|\"|>b}<tool_call|>"}));
  EXPECT_EQ(parts_of_characters("cal:f{a:1}"),
            (std::vector<std::string>{"content  <|tool_call>cal:f{a:1}<tool_call|>"}));
}

TEST(OutputParser, ReadsJsonStringsInCalls) {
  const auto arguments = [](const std::string& json_string) {
    const auto message = parse_text("<|tool_call>call:f{k:" + json_string + "}<tool_call|>");
    return message.calls.empty() ? "refused" : message.calls[0].arguments;
  };
  EXPECT_EQ(arguments(R"("\u00e9\ud83d\ude00\/\"")"), "{\"k\":\"\xC3\xA9\xF0\x9F\x98\x80/\\\"\"}");
  EXPECT_EQ(arguments(R"("\ud800\u0041")"),
            "{\"k\":\"\xEF\xBF\xBD"
            "A\"}");
  EXPECT_EQ(arguments(R"("<|"|>b<|"|>")"), R"({"k":"<|\"|>b<|\"|>"})");
  EXPECT_EQ(arguments(R"("\x")"), "refused");
  EXPECT_EQ(arguments(R"("\u12")"), "refused");
  EXPECT_EQ(arguments(R"("open)"), "refused");
  EXPECT_EQ(arguments(R"("\)"), "refused");
}

TEST(OutputParser, BoundsTheNestingOfCalls) {
  for (const int depth : {60, 100000}) {
    const std::string text = "<|tool_call>call:f{k:" + std::string(depth, '[') +
                             std::string(depth, ']') + "}<tool_call|>";
    EXPECT_EQ(parse_text(text).calls.size(), depth == 60 ? 1U : 0U);
  }
}

/// Scanning what is held back again at each token would take minutes.
TEST(OutputParser, TakesLinearTimeHoweverMuchIsHeldBack) {
  const auto& tokenizer = tokenizer_of_tests();
  const TokenId newlines = tokenizer.encode(std::string(31, '\n'), false)[0];
  const std::clock_t start = std::clock();
  for (const char* opening :
       {"", "<|channel>", "<|channel>thought\n", "<|channel>thought\nx", "<|tool_call>call:f{"}) {
    OutputParser parser(tokenizer);
    OutputDelta delta = parser.push(tokenizer.encode(opening, true));
    for (int i = 0; i < 200'000; ++i) parser.push(newlines, delta);
    parser.finish();
  }
  EXPECT_LT(std::clock() - start, 10 * CLOCKS_PER_SEC);
}

/// Ids that often act on the parser's state.
rc::Gen<std::vector<TokenId>> arbitrary_output() {
  const auto& tokenizer = tokenizer_of_tests();
  std::vector<TokenId> acting;
  for (const char* text : {"<|channel>",
                           "<channel|>",
                           "<|tool_call>",
                           "<tool_call|>",
                           "<|\"|>",
                           "<tool_response|>",
                           "<|think|>",
                           "thought",
                           "\n",
                           " ",
                           "call",
                           ":",
                           "f",
                           "{",
                           "}",
                           "a",
                           "1",
                           ",",
                           "[",
                           "]",
                           "<0xF0>",
                           "<0x9F>",
                           "\""}) {
    const TokenId id = tokenizer.find(text);
    if (id >= 0) acting.push_back(id);
  }
  return rc::gen::container<std::vector<TokenId>>(rc::gen::weightedOneOf<TokenId>(
      {{8, rc::gen::elementOf(acting)}, {1, rc::gen::inRange(0, tokenizer.vocab_size())}}));
}

TEST(OutputParserProperty, GroupingChangesNothing) {
  EXPECT_TRUE(rc::check([] {
    const auto join = [](OutputDelta delta, OutputDelta& whole) {
      for (OutputPart& part : delta.parts) whole.add(std::move(part));
    };
    const std::vector<TokenId> ids = *arbitrary_output();
    OutputParser whole_parser(tokenizer_of_tests());
    OutputDelta whole = whole_parser.push(ids);
    join(whole_parser.finish(), whole);

    OutputParser parser(tokenizer_of_tests());
    OutputDelta joined;
    std::span<const TokenId> rest = ids;
    while (!rest.empty()) {
      const auto size = std::min(*rc::gen::inRange<std::size_t>(1, 8), rest.size());
      join(parser.push(rest.first(size)), joined);
      rest = rest.subspan(size);
    }
    join(parser.finish(), joined);
    RC_ASSERT(joined.parts == whole.parts);
    OutputMessage message;
    message.add(whole);
    for (const ParsedCall& call : message.calls) RC_ASSERT(parse_json(call.arguments).ok());
  }));
}

/// JSON values whose keys need no quotes.
boost::json::value arbitrary_value(int depth) {
  switch (*rc::gen::inRange(0, depth > 0 ? 7 : 5)) {
    case 0:
      return nullptr;
    case 1:
      return *rc::gen::arbitrary<bool>();
    case 2:
      return *rc::gen::arbitrary<std::int64_t>();
    case 3:
      return *rc::gen::map(rc::gen::arbitrary<int>(), [](int i) { return i / 64.0; });
    case 4: {
      const auto text = *rc::gen::container<std::string>(rc::gen::inRange(' ', '~'));
      return boost::json::string(text);
    }
    case 5: {
      boost::json::array list;
      for (int n = *rc::gen::inRange(0, 4); n > 0; --n) list.push_back(arbitrary_value(depth - 1));
      return list;
    }
    default: {
      boost::json::object object;
      for (int n = *rc::gen::inRange(0, 4); n > 0; --n) {
        object[std::string(1, static_cast<char>('a' + n))] = arbitrary_value(depth - 1);
      }
      return object;
    }
  }
}

TEST(OutputParserProperty, ReadsBackTheCallsThatThePromptWrites) {
  EXPECT_TRUE(rc::check([] {
    boost::json::object arguments;
    for (int n = *rc::gen::inRange(0, 4); n > 0; --n) {
      arguments["k" + std::to_string(n)] = arbitrary_value(3);
    }
    PromptBuilder prompt;
    write_call({"f", arguments}, prompt);
    OutputParser parser(tokenizer_of_tests());
    OutputMessage message;
    message.add(parser.push(tokenizer_of_tests().encode(prompt.take())));
    RC_ASSERT(message.calls.size() == 1U);
    const auto read = parse_json(message.calls[0].arguments);
    RC_ASSERT(read.ok());
    RC_ASSERT(*read == boost::json::value(arguments));
  }));
}

}  // namespace
}  // namespace tandem::chat
