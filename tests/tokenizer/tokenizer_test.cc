#include "tandem/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

#include "vocab_fixture.h"

namespace tandem::tokenizer {
namespace {

using tandem::testing::small_vocab;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<const Tokenizer> make(VocabData data) {
  auto made = Tokenizer::create(std::move(data));
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

std::vector<std::string> spelled(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::vector<std::string> pieces;
  for (const TokenId id : ids) pieces.emplace_back(tokenizer.piece(id));
  return pieces;
}

void expect_refused(VocabData data, const std::string& message_part) {
  const auto made = Tokenizer::create(std::move(data));
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), core::Code::kDataLoss);
  EXPECT_THAT(made.status().message(), HasSubstr(message_part));
}

TEST(Tokenizer, MergesBestRankFirstAndLeftmostOfEquals) {
  const auto tokenizer = make(small_vocab({{"b", "c"}, {"a", "b"}, {"a", "a"}, {"aa", "a"}}));
  EXPECT_THAT(spelled(*tokenizer, tokenizer->encode("abc", false)), ElementsAre("a", "bc"));
  EXPECT_THAT(spelled(*tokenizer, tokenizer->encode("aaa", false)), ElementsAre("aaa"));
  EXPECT_THAT(spelled(*tokenizer, tokenizer->encode("aaaab", false)), ElementsAre("aaa", "ab"));
}

TEST(Tokenizer, ReadsASpaceAndItsPieceAlike) {
  const auto tokenizer = make(small_vocab({{"\xE2\x96\x81", "a"}}));
  EXPECT_THAT(spelled(*tokenizer, tokenizer->encode(" a", false)), ElementsAre("\xE2\x96\x81"
                                                                               "a"));
  EXPECT_EQ(tokenizer->encode(" a", false), tokenizer->encode("\xE2\x96\x81"
                                                              "a",
                                                              false));
  EXPECT_EQ(tokenizer->bytes(tokenizer->encode(" a", false)[0]), " a");
}

TEST(Tokenizer, SpellsUnknownCharactersInBytes) {
  const auto tokenizer = make(small_vocab());
  EXPECT_THAT(spelled(*tokenizer, tokenizer->encode("a\xE2\x82\xAC", false)),
              ElementsAre("a", "<0xE2>", "<0x82>", "<0xAC>"));
  EXPECT_THAT(spelled(*tokenizer, tokenizer->encode("\xFF"
                                                    "a\xE2\x82",
                                                    false)),
              ElementsAre("<0xEF>", "<0xBF>", "<0xBD>", "a", "<0xEF>", "<0xBF>", "<0xBD>"));
}

TEST(Tokenizer, MatchesTheLongestSpecialTokenInTemplateTextOnly) {
  const auto tokenizer = make(small_vocab());
  EXPECT_THAT(spelled(*tokenizer, tokenizer->encode("<turn|>a<bos><|channel>", true)),
              ElementsAre("<turn|>", "a", "<bos>", "<|channel>"));
  EXPECT_THAT(spelled(*tokenizer, tokenizer->encode("<turna", true)), ElementsAre("<turn", "a"));
  for (const TokenId id : tokenizer->encode("<turn|>a<bos><|channel>", false)) {
    EXPECT_TRUE(tokenizer->kind(id) == TokenKind::kByte ||
                tokenizer->kind(id) == TokenKind::kNormal);
  }
}

TEST(Tokenizer, TreatsAdjacentPiecesAsOneText) {
  const auto tokenizer = make(small_vocab({{"a", "b"}, {"ab", "c"}}));
  const std::vector<TextPiece> split = {{"<bos>a", true}, {"b", false}, {"c<turn|>", true}};
  EXPECT_THAT(spelled(*tokenizer, tokenizer->encode(split)),
              ElementsAre("<bos>", "abc", "<turn|>"));
  const std::vector<TextPiece> cut_special = {{"<bo", true}, {"s>", true}};
  EXPECT_THAT(spelled(*tokenizer, tokenizer->encode(cut_special)), ElementsAre("<bos>"));
  const std::vector<TextPiece> forged = {{"<bo", true}, {"s>", false}};
  EXPECT_GT(tokenizer->encode(forged).size(), 1U);
  const std::vector<TextPiece> cut_character = {{"\xC3", false}, {"\xA9", true}};
  EXPECT_THAT(spelled(*tokenizer, tokenizer->encode(cut_character)), ElementsAre("\xC3\xA9"));
}

TEST(Tokenizer, EndsAtTheNamedTokensAndTheFilesOwn) {
  VocabData data = small_vocab();
  data.tokens.emplace_back("</s>");
  data.kinds.push_back(TokenKind::kControl);
  data.eot = 5;  // "<turn"
  const auto tokenizer = make(std::move(data));
  EXPECT_THAT(spelled(*tokenizer, tokenizer->end_of_generation()),
              ElementsAre("<eos>", "<turn|>", "<turn", "<|tool_response>"));
  EXPECT_TRUE(tokenizer->is_end_of_generation(tokenizer->find("<turn|>")));
  EXPECT_FALSE(tokenizer->is_end_of_generation(tokenizer->find("</s>")));
  EXPECT_EQ(tokenizer->bos(), tokenizer->find("<bos>"));
}

TEST(Tokenizer, RefusesADamagedVocabulary) {
  expect_refused({}, "no tokens");

  VocabData data = small_vocab();
  data.kinds.pop_back();
  expect_refused(data, "token types");

  data = small_vocab();
  data.kinds.back() = static_cast<TokenKind>(9);
  expect_refused(data, "unknown type 9");

  data = small_vocab();
  data.tokens[3] = "a";
  expect_refused(data, "spelled alike");

  data = small_vocab();
  data.tokens[data.tokens.size() - 1] = "<0xFF";
  data.kinds.back() = TokenKind::kByte;
  expect_refused(data, "not spelled <0xHH>");

  data = small_vocab();
  data.kinds[8 + 0x41] = TokenKind::kNormal;
  expect_refused(data, "lacks the byte token <0x41>");

  data = small_vocab();
  data.merges = {{"a", "z"}};
  expect_refused(data, "merge 0");

  data = small_vocab();
  data.merges = {{"a", ""}};
  expect_refused(data, "merge 0");

  data = small_vocab({{"a", "b"}});
  data.kinds.back() = TokenKind::kControl;
  expect_refused(data, "no ordinary text");

  data = small_vocab();
  data.eos = 100000;
  expect_refused(data, "eos token id 100000");
}

/// Processor time; the bound is some twenty times what it takes; a quadratic scan would need
/// minutes.
TEST(Tokenizer, TakesAMegabyteOfOneKindInLinearTime) {
  const Tokenizer& tokenizer = tandem::testing::real_tokenizer();
  for (const char* unit : {"\n", " ", "a", "\xF0\x9F\x98\x80", "<", "<|turn", "=", "abc", "\xFF"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    const std::clock_t start = std::clock();
    const auto ids = tokenizer.encode(text, true);
    EXPECT_LT(std::clock() - start, 4 * CLOCKS_PER_SEC) << unit;
    EXPECT_GT(ids.size(), 30'000U) << unit;
  }
}

}  // namespace
}  // namespace tandem::tokenizer
