#include <gtest/gtest.h>

#include <random>
#include <set>

#include "grammar_rig.h"

namespace tandem::grammar {
namespace {

using testing::compiled;
using testing::real_tokenizer;

bool is_set(const std::vector<std::uint32_t>& mask, TokenId token) {
  return (mask[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1U) != 0;
}

/// The mask must say of every token what accept() says.
void expect_mask_is_exact(const Matcher& matcher, std::size_t words, TrieWalker& walker) {
  std::vector<std::uint32_t> mask(words);
  Matcher at = matcher;
  const core::Status status = at.fill_mask(mask, walker);
  ASSERT_TRUE(status.ok()) << status.message();
  Matcher trial = matcher;
  int num_wrong = 0;
  for (TokenId token = 0; token < real_tokenizer().vocab_size(); ++token) {
    if (trial.accept(token)) {
      num_wrong += !is_set(mask, token);
      trial = matcher;
    } else {
      num_wrong += is_set(mask, token);
    }
  }
  EXPECT_EQ(num_wrong, 0);
}

struct Case {
  const char* name;
  Source::Kind kind;
  const char* text;
  const char* output;  // masks are compared before each of its tokens
};

const Case kCases[] = {
    {"schema", Source::Kind::kJsonSchema,
     R"({"type":"object","properties":{"name":{"type":"string"},"tags":{"type":"array",
         "items":{"enum":["a","ab"]}},"n":{"type":"integer"},"o":{}},"required":["name","n"],
         "additionalProperties":{"type":"number"}})",
     "{\"name\": \"x\\u00e9 \xE6\x97\xA5\", \"n\":-12, \"o\": [[\"q\"], {}], \"nn\":1.5}"},
    {"gbnf", Source::Kind::kGbnf,
     "root ::= (\"a\" root \"b\" | word | \"\")\nword ::= [a-z\xC3\xA9]+ \" \" word | \"end\"\n",
     "aaahello world end"},
    {"regex", Source::Kind::kRegex, R"((\w+@\w+\.com|\d{3}-\d{4})( |\n)?)", "some_one@here.com "},
    {"counted", Source::Kind::kJsonSchema,
     R"({"type":"object","properties":{"s":{"type":"string","minLength":45,"maxLength":120}},
         "required":["s"]})",
     "{\"s\":\"0123456789\\nÃ©Ã© for a while, and then for some more, until the end comes near "
     "which is at 120, not far off from here\"}"},
    {"short", Source::Kind::kJsonSchema, R"({"type":"string","maxLength":12})",
     "\"ab \xE6\x97\xA5\xE6\x9C\xAC \\\"cdefg\""},
    {"long", Source::Kind::kJsonSchema, R"({"type":"string","maxLength":257})",
     "\"                                                                                "
     "                                                                                "
     "                                                      near its \\n end \xC3\xA9 of "
     "letters\""},
    {"long at least", Source::Kind::kJsonSchema,
     R"({"type":"string","minLength":99,"maxLength":102})",
     "\"                                                                                "
     "near \\n its end \xC3\xA9 a!!\""},
    {"counted pattern", Source::Kind::kJsonSchema,
     R"({"type":"string","pattern":"x.y","minLength":9,"maxLength":14})", "\"ab xx zx\\ty\""},
    {"counted dots", Source::Kind::kJsonSchema,
     R"({"type":"string","pattern":"^.+$","maxLength":9})", "\"a line\""},
    {"any text but", Source::Kind::kRegex, R"([^x\n]{2,9}|[ -~]{0,6}!)", "hello you"},
    {"ambiguous", Source::Kind::kGbnf,
     "root ::= a | b\na ::= \"x\" a \"y\" | \"x\" b | \"x\"\nb ::= \"x\" a | \"x\" b \"z\" | "
     "\"x\"\n",
     "xxxx"},
};

TEST(PlainText, CountsCharacters) {
  EXPECT_EQ(count_plain(""), 0);
  EXPECT_EQ(count_plain("a b"), 3);
  EXPECT_EQ(count_plain("\xC3\xA9\xE6\x97\xA5\xF0\x9F\x98\x80"), 3);
  for (const char* other : {"a\n", "\"", "a\\", "\x1F", "\xC3", "\xA9", "\xE0\x80\x80",
                            "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC0\xAF"}) {
    EXPECT_EQ(count_plain(other), -1) << other;
  }
}

TEST(PlainText, KnowsHowFarItMayGo) {
  const auto most = [](const char* regex, std::string_view after) {
    const auto grammar = compiled(Source::Kind::kRegex, regex);
    std::int32_t state = grammar->automaton().root_start();
    for (const char c : after) {
      state = grammar->automaton().next(
          state, grammar->automaton().class_of(static_cast<std::uint8_t>(c)));
    }
    return PlainText(grammar->automaton()).most_characters({state, kOpenStack, 0}, 40);
  };
  EXPECT_EQ(most(R"("[^\\"\x00-\x1F]{0,7}")", "\""), 7);
  EXPECT_EQ(most(R"("[^\\"\x00-\x1F]{0,7}")", "\"abc"), 4);
  EXPECT_EQ(most(R"("[^\\"\x00-\x1F]{0,7}")", "\"abcdefg"), 0);
  EXPECT_EQ(most(R"("[^\\"\x00-\x1F]{5,}")", "\"abc"), 40);
  EXPECT_EQ(most(R"("[^\\"\x00-\x1F]{50}")", "\"abc"), 40);
  EXPECT_EQ(most(R"("[a-z]{0,7}")", "\""), std::nullopt);         // some characters
  EXPECT_EQ(most(R"([^\\"\x00-\x1F]{0,7})", "a"), std::nullopt);  // may end
}

TEST(GrammarMask, SaysOfEveryTokenWhatAcceptSays) {
  TrieWalker walker;
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const auto grammar = compiled(c.kind, c.text);
    ASSERT_NE(grammar, nullptr);
    Matcher matcher(grammar);
    for (const TokenId token : real_tokenizer().encode(c.output, false)) {
      expect_mask_is_exact(matcher, grammar->mask_words(), walker);
      ASSERT_TRUE(matcher.accept(token)) << real_tokenizer().bytes(token);
    }
    expect_mask_is_exact(matcher, grammar->mask_words(), walker);
  }
}

TEST(GrammarMask, StringsOfAnyLengthTakeAFewStates) {
  const auto grammar = compiled(Source::Kind::kJsonSchema,
                                R"({"type":"string","minLength":5000,"maxLength":90000})");
  EXPECT_LT(grammar->automaton().num_states(), 200);
  const auto quote = testing::byte_tokens("\"")[0];
  Matcher matcher(grammar);
  ASSERT_TRUE(matcher.accept(quote));
  const char* const kCharacters[] = {"a", "\xC3\xA9", "\\n", "\\u00e9", "\xF0\x9F\x98\x80"};
  for (int length = 0; length <= 90000; ++length) {
    Matcher closed = matcher;
    ASSERT_EQ(closed.accept(quote), length >= 5000) << length;
    bool has_gone_on = true;
    for (const TokenId token : testing::byte_tokens(kCharacters[length % 5])) {
      has_gone_on = has_gone_on && matcher.accept(token);
    }
    ASSERT_EQ(has_gone_on, length < 90000) << length;
  }
}

TEST(GrammarMask, LongRepetitionsShareMasksUntilTheirEndIsNear) {
  const auto grammar = compiled(Source::Kind::kRegex, "[a-z ]{1,400}!");
  const auto groups = grammar->automaton().alike(grammar->trie().max_depth());
  const std::set<std::int32_t> names(groups.begin(), groups.end());
  EXPECT_GT(groups.size(), 400U);
  EXPECT_LT(names.size(), 60U);
  EXPECT_GT(names.size(), static_cast<std::size_t>(grammar->trie().max_depth()));
}

TEST(GrammarMask, EndTokensComeExactlyWhereTheTextMayEnd) {
  const auto grammar = compiled(Source::Kind::kRegex, "ab?");
  TrieWalker walker;
  std::vector<std::uint32_t> mask(grammar->mask_words());
  const auto ends = real_tokenizer().end_of_generation();
  ASSERT_FALSE(ends.empty());
  Matcher matcher(grammar);
  ASSERT_TRUE(matcher.fill_mask(mask, walker).ok());
  EXPECT_FALSE(is_set(mask, ends[0]));
  EXPECT_FALSE(matcher.accept(ends[0]));
  ASSERT_TRUE(matcher.accept(real_tokenizer().find("a")));
  EXPECT_FALSE(matcher.must_end());
  Matcher longer = matcher;
  ASSERT_TRUE(longer.accept(real_tokenizer().find("b")));
  EXPECT_TRUE(longer.must_end());
  ASSERT_TRUE(matcher.fill_mask(mask, walker).ok());
  for (const TokenId end : ends) EXPECT_TRUE(is_set(mask, end));
  ASSERT_TRUE(matcher.accept(ends.back()));
  EXPECT_TRUE(matcher.is_finished());
  EXPECT_FALSE(matcher.accept(real_tokenizer().find("b")));
}

TEST(GrammarMask, ControlAndUserDefinedTokensAreNoText) {
  const auto grammar = compiled(Source::Kind::kRegex, R"([\s\S]*)");
  TrieWalker walker;
  std::vector<std::uint32_t> mask(grammar->mask_words());
  ASSERT_TRUE(Matcher(grammar).fill_mask(mask, walker).ok());
  const auto& tokenizer = real_tokenizer();
  for (TokenId token = 0; token < tokenizer.vocab_size(); ++token) {
    const auto kind = tokenizer.kind(token);
    if (kind == tokenizer::TokenKind::kUserDefined || kind == tokenizer::TokenKind::kControl) {
      EXPECT_EQ(is_set(mask, token), tokenizer.is_end_of_generation(token)) << token;
    }
  }
}

TEST(GrammarMask, AThoughtMayComeFirst) {
  Source source = testing::source(Source::Kind::kRegex, "[0-9]+");
  const TokenId open = real_tokenizer().find("<|channel>");
  const TokenId close = real_tokenizer().find("<channel|>");
  source.thought = {open, close};
  const auto made = testing::compiler().compile(source);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const auto tokens = [&](std::string_view text) {
    return real_tokenizer().encode(text, true);
  };
  EXPECT_TRUE(testing::matches(*made, tokens("42")));
  EXPECT_TRUE(testing::matches(*made, tokens("<|channel>thought\nlet me see<channel|>42")));
  EXPECT_FALSE(testing::matches(*made, tokens("<|channel>thought\nlet me see")));
  EXPECT_FALSE(testing::matches(*made, tokens("thought<channel|>42")));
  EXPECT_FALSE(testing::matches(*made, tokens("<|channel>4<channel|>let")));
  TrieWalker walker;
  Matcher matcher(*made);
  expect_mask_is_exact(matcher, (*made)->mask_words(), walker);
  ASSERT_TRUE(matcher.accept(open));
  expect_mask_is_exact(matcher, (*made)->mask_words(), walker);
}

TEST(GrammarMask, ACopyLooksAheadAndChangesNothing) {
  const auto grammar = compiled(Source::Kind::kJsonObject, "");
  std::mt19937 random(7);
  TrieWalker walker;
  std::vector<std::uint32_t> mask(grammar->mask_words()), again(grammar->mask_words());
  Matcher matcher(grammar);
  const auto tokens = real_tokenizer().encode(R"({"a":[1,{"b":"cd"},[[]]],"e":null})", false);
  for (const TokenId token : tokens) {
    ASSERT_TRUE(matcher.fill_mask(mask, walker).ok());
    Matcher ahead = matcher;
    for (int i = 0; i < 8; ++i) {
      std::vector<std::uint32_t> row(grammar->mask_words());
      if (ahead.is_finished() || !ahead.fill_mask(row, walker).ok()) break;
      TokenId next = 0;
      do {
        next =
            static_cast<TokenId>(random() % static_cast<unsigned>(real_tokenizer().vocab_size()));
        for (int j = 0; j < 50 && !is_set(row, next); ++j) {
          next = (next + 1) % real_tokenizer().vocab_size();
        }
      } while (!is_set(row, next));
      ASSERT_TRUE(ahead.accept(next));
    }
    ASSERT_TRUE(matcher.fill_mask(again, walker).ok());
    EXPECT_EQ(mask, again);
    ASSERT_TRUE(matcher.accept(token));
  }
  EXPECT_TRUE(matcher.must_end());
}

TEST(GrammarMask, LongAndDeepTextsStayBounded) {
  const auto grammar =
      compiled(Source::Kind::kGbnf, "root ::= \"(\" root \")\" | [a-z] root | \"\"");
  Matcher matcher(grammar);
  const auto open = testing::byte_tokens("(")[0], close = testing::byte_tokens(")")[0];
  const auto letter = testing::byte_tokens("a")[0];
  for (int i = 0; i < 20000; ++i) ASSERT_TRUE(matcher.accept(letter));  // a tail call each
  int depth = 0;
  while (depth < 2000 && matcher.accept(open)) ++depth;
  EXPECT_GE(depth, Pushdown::kMaxDepth);
  EXPECT_LE(depth, Pushdown::kMaxDepth + 1);
  TrieWalker walker;
  std::vector<std::uint32_t> mask(grammar->mask_words());
  ASSERT_TRUE(matcher.fill_mask(mask, walker).ok());
  EXPECT_TRUE(is_set(mask, close));
  for (int i = 0; i < depth; ++i) ASSERT_TRUE(matcher.accept(close));
  EXPECT_TRUE(matcher.can_end());
}

}  // namespace
}  // namespace tandem::grammar
