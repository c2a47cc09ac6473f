#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <string>

#include "grammar_rig.h"

namespace tandem::grammar {
namespace {

using testing::compiled;
using testing::compiler;
using ::testing::HasSubstr;
using testing::matches;
using testing::source;

std::string refusal(const Source& source) {
  const auto made = compiler().compile(source);
  if (made.ok()) return "compiled";
  EXPECT_EQ(made.status().code(), core::Code::kInvalidArgument);
  return made.status().message();
}
std::string refusal(Source::Kind kind, std::string text) {
  return refusal(source(kind, std::move(text)));
}

std::string repeated(std::string_view part, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += part;
  return out;
}

struct RegexCase {
  const char* pattern;
  std::vector<std::string> yes, no;
};

TEST(Regex, MatchesFromEndToEnd) {
  const RegexCase cases[] = {
      {"a|bc", {"a", "bc"}, {"", "b", "abc"}},
      {"^(?:ab)+?$", {"ab", "abab"}, {"", "aba"}},
      {"(?<year>\\d{4})-(?P<m>\\d\\d)", {"2026-11"}, {"202-11", "2026-1"}},
      {"[^\\d\\s]{2,}", {"ab", "-é"}, {"a", "a1", "a b"}},
      {"[a\\-c\\]]*", {"", "a-c]"}, {"b"}},
      {"[\\w.-]+", {"a.b-c_9"}, {"a b"}},
      {".", {"x", "日"}, {"\n", "ab"}},
      {"\\x41\\u00e9\\u{1F600}\\t\\.", {"Aé😀\t."}, {"Aé😀\tx"}},
      {"(a{0}b){2}c{,2}", {"bb", "bbcc"}, {"ababc", "bbccc"}},
      {"(|a)(b|)", {"", "ab", "a", "b"}, {"ba"}},
      {"{", {"{"}, {"{{"}},
  };
  for (const RegexCase& c : cases) {
    SCOPED_TRACE(c.pattern);
    const auto grammar = compiled(Source::Kind::kRegex, c.pattern);
    ASSERT_NE(grammar, nullptr);
    for (const auto& text : c.yes) EXPECT_TRUE(matches(grammar, text)) << text;
    for (const auto& text : c.no) EXPECT_FALSE(matches(grammar, text)) << text;
  }
}

TEST(Regex, RefusesWhatItCannotDoInASentence) {
  for (const char* pattern :
       {"(",      ")",       "[a",          "a{2,1}", "a{",     "*a",       "a**",
        "(?=a)b", "(?<!a)b", "a\\b",        "(a)\\1", "\\p{L}", "a$b",      "(^a)",
        "[b-a]",  "\\",      "\\u{110000}", "(?i)a",  "(?<n",   "[^\\s\\S]"}) {
    EXPECT_NE(refusal(Source::Kind::kRegex, pattern), "compiled") << pattern;
  }
  EXPECT_THAT(refusal(Source::Kind::kRegex, "ab(?=c)"), HasSubstr("byte 4: look-around"));
}

TEST(Choice, IsOneOfTheTexts) {
  Source choices;
  choices.kind = Source::Kind::kChoice;
  choices.choices = {"yes", "no", "not sure", "日本"};
  const auto made = compiler().compile(choices);
  ASSERT_TRUE(made.ok());
  for (const auto& text : choices.choices) EXPECT_TRUE(matches(*made, text));
  for (const char* text : {"", "not", "yesno", "日"}) EXPECT_FALSE(matches(*made, text));
  choices.choices = {};
  EXPECT_EQ(refusal(choices), "no text matches the grammar");
}

TEST(Gbnf, SaysWhatIsWrongAndWhere) {
  const auto gbnf = [](const char* text) {
    return refusal(Source::Kind::kGbnf, text);
  };
  EXPECT_THAT(gbnf("root ::= a\n\na ::= \"x"), HasSubstr("line 3"));
  EXPECT_THAT(gbnf("root ::= a"), HasSubstr("\"a\""));
  EXPECT_THAT(gbnf("root ::= \"a\"\nroot ::= \"b\""), HasSubstr("twice"));
  EXPECT_THAT(gbnf("root ::= a b | \"z\"\na ::= \"\" | \"x\"\nb ::= a root"),
              HasSubstr("left-recursive"));
  EXPECT_THAT(gbnf("root ::= \"a\" root"), HasSubstr("no text matches"));
  EXPECT_THAT(gbnf("root ::= [z-a]"), HasSubstr("below its beginning"));
  EXPECT_THAT(gbnf("root ::= \"\\q\""), HasSubstr("escape"));
}

TEST(Gbnf, AlternativesThatLeadNowhereAreLeftOut) {
  const auto grammar =
      compiled(Source::Kind::kGbnf,
               "root ::= \"a\" dead | \"a\" \"b\" | \"c\" ([^\\x00-\\U0010FFFF] | \"d\")\n"
               "dead ::= \"x\" dead\n");
  ASSERT_NE(grammar, nullptr);
  EXPECT_TRUE(matches(grammar, "ab"));
  EXPECT_TRUE(matches(grammar, "cd"));
  Matcher matcher(grammar);
  ASSERT_TRUE(matcher.accept(testing::byte_tokens("a")[0]));
  EXPECT_FALSE(matcher.accept(testing::byte_tokens("x")[0]));
}

TEST(Sources, HostileOnesAreRefusedOrCompiledInBoundedTime) {
  using Kind = Source::Kind;
  const std::clock_t start = std::clock();
  std::string chain;  // every rule calls the next one twice
  for (int i = 0; i < 60; ++i) {
    chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " \"a\" | p" +
             std::to_string(i + 1) + " \"b\" | \"c\"\n";
    chain += "p" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " \"d\" | p" +
             std::to_string(i + 1) + " \"e\"\n";
  }
  chain += "r60 ::= \"x\"\np60 ::= \"x\"\nroot ::= r0\n";
  std::string nested = "{}";
  for (int i = 0; i < 20; ++i) {
    nested = R"({"anyOf":[{},{"type":"object"}],"properties":{"x":)" + nested + "}}";
  }
  std::string defs = R"({"allOf":[{"$ref":"#/$defs/d0"}],"$defs":{)";
  for (int i = 0; i < 40; ++i) {
    const std::string next = "{\"$ref\":\"#/$defs/d" + std::to_string(i + 1) + "\"}";
    defs += "\"d" + std::to_string(i) + "\":{\"allOf\":[" + next + "," + next + "]},";
  }
  defs += "\"d40\":{}}}";
  std::string numbers, wide, keys, names;  // long lists that are compared with each other
  for (int i = 0; i < 8'000; ++i) {
    const std::string n = std::to_string(i);
    numbers += (i > 0 ? "," : "") + n + ".5";
    wide += (i > 0 ? "," : "") + std::string("{\"minimum\":") + n + "}";
    keys += (i > 0 ? ",\"k" : "\"k") + n + "\":{}";
    names += (i > 0 ? ",\"k" : "\"k") + n + "\"";
  }
  const std::string object =
      "{\"properties\":{" + keys.substr(0, 60'000).substr(0, keys.find("\"k4000")) +
      "\"z\":{}},\"required\":[" + names.substr(0, names.find(",\"k4000")) + "]}";
  const Source sources[] = {
      source(Kind::kRegex, "(a|b)*a(a|b){30}"),
      source(Kind::kRegex, "((((a{100}){100}){100}){100}){100}"),
      source(Kind::kRegex, "(a*)*(b*)*" + repeated("(c?)*", 500)),
      source(Kind::kRegex, repeated("(", 5000) + "a" + repeated(")", 5000)),
      source(Kind::kRegex, repeated("[^a-y]{0,50}", 300)),
      source(Kind::kRegex, "a{99999999999999}"),
      source(Kind::kGbnf, chain),
      source(Kind::kGbnf, "root ::= " + repeated("(", 100'000)),
      source(Kind::kGbnf, "root ::= " + repeated("(\"a\"*)*", 3000)),
      source(Kind::kGbnf, repeated("root ::= [^", 20'000)),
      source(Kind::kJsonSchema, repeated(R"({"items":)", 30'000)),
      source(Kind::kJsonSchema, nested),
      source(Kind::kJsonSchema, defs),
      source(Kind::kJsonSchema, R"({"$ref":"#"})"),
      source(Kind::kJsonSchema, R"({"allOf":[{"$ref":"#"}]})"),
      source(Kind::kJsonSchema, R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})"),
      source(Kind::kJsonSchema, R"({"maxLength":1e300,"minLength":1e299,"type":"string"})"),
      source(Kind::kJsonSchema, R"({"type":"string","pattern":"(x+x+)+y"})"),
      source(Kind::kJsonSchema,
             "{\"type\":\"object\",\"additionalProperties\":true,\"properties\":{\"" +
                 repeated("k", 100'000) + "\":{}}}"),
      source(Kind::kJsonSchema, "{\"enum\":[" + repeated("\"abcdefgh\",", 15'000) + "1]}"),
      source(Kind::kJsonSchema, R"({"type":"number","not":{"enum":[)" + numbers + "]}}"),
      source(Kind::kJsonSchema,
             R"({"oneOf":[{"enum":[)" + numbers + R"(]},{"enum":[)" + numbers + "]}]}"),
      source(Kind::kJsonSchema,
             R"({"allOf":[{"enum":[)" + numbers + R"(]},{"enum":[)" + numbers + "]}]}"),
      source(Kind::kJsonSchema, R"({"enum":[)" + numbers + "]}"),
      source(Kind::kJsonSchema, R"({"not":{"enum":[)" + numbers + R"(]},"anyOf":[)" + wide + "]}"),
      source(Kind::kJsonSchema, R"({"oneOf":[)" + wide + "]}"),
      source(Kind::kJsonSchema, R"({"not":{"not":{"oneOf":[)" + wide + "]}}}"),
      source(Kind::kJsonSchema, "{\"oneOf\":[" + object + "," + object + "]}"),
      source(Kind::kJsonSchema, "{\"not\":{\"not\":" + object + "}}"),
      source(Kind::kJsonSchema,
             R"({"type":"array","items":{"minimum":0,"maximum":60,"type":"integer"},)"
             R"("uniqueItems":true,"maxItems":2})"),
      source(Kind::kJsonSchema, R"({"type":"array","contains":{"type":"object"},"minItems":1000})"),
      source(Kind::kJsonSchema, repeated(R"({"not":)", 60) + "{}" + repeated("}", 60)),
      source(Kind::kJsonSchema, R"({"not":{"$ref":"#"}})"),
      source(Kind::kJsonSchema, R"({"if":{"$ref":"#"},"then":{"$ref":"#"},"else":{"$ref":"#"}})"),
      source(Kind::kJsonSchema, R"({"oneOf":[{"$ref":"#"},{"$ref":"#"},{"type":"null"}]})"),
      source(Kind::kGbnf, std::string(Compiler::kMaxSourceBytes + 1, ' ')),
  };
  TrieWalker walker;
  for (const Source& hostile : sources) {
    SCOPED_TRACE(hostile.text.substr(0, 60));
    const std::clock_t begin = std::clock();
    const auto made = compiler().compile(hostile);
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 10.0);
    if (!made.ok()) continue;
    Matcher matcher(*made);
    std::vector<std::uint32_t> mask((*made)->mask_words());
    for (int i = 0; i < 5; ++i) {
      if (matcher.is_finished() || !matcher.fill_mask(mask, walker).ok()) break;
      TokenId token = 0;
      while ((mask[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1U) == 0) ++token;
      if (!matcher.accept(token)) break;
    }
  }
  // Seconds of work; without its bounds a single one of them would not end.
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 100.0);
}

TEST(Sources, TheCacheKeepsTheLastOnes) {
  Compiler small(testing::real_tokenizer());
  const auto first = small.compile(source(Source::Kind::kRegex, "a0"));
  ASSERT_TRUE(first.ok());
  for (int i = 1; i < 100; ++i) {
    ASSERT_TRUE(small.compile(source(Source::Kind::kRegex, "a" + std::to_string(i))).ok());
    if (i == 20) {
      EXPECT_EQ(*small.compile(source(Source::Kind::kRegex, "a0")), *first);
    }
  }
  EXPECT_EQ(small.num_cached(), Compiler::kMaxCached);
  EXPECT_NE(*small.compile(source(Source::Kind::kRegex, "a0")), *first);
  EXPECT_EQ(*small.compile(source(Source::Kind::kRegex, "a99")),
            *small.compile(source(Source::Kind::kRegex, "a99")));
}

}  // namespace
}  // namespace tandem::grammar
