#include "tandem/tokenizer/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <utility>

#include "vocab_fixture.h"

namespace tandem {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;
using testing::load_vocab;
using tokenizer::parse_tokenizer_json;
using tokenizer::TokenKind;
using tokenizer::VocabData;

const char* const kNormalizer = R"({"type":"Replace","pattern":{"String":" "},"content":"▁"})";

/// A tokenizer.json of the same contents; merges as pairs or as strings.
std::string to_json(const VocabData& data, bool with_pairs) {
  json::array added;
  json::object vocab;
  for (std::size_t id = 0; id < data.tokens.size(); ++id) {
    vocab[data.tokens[id]] = id;
    if (data.kinds[id] == TokenKind::kControl || data.kinds[id] == TokenKind::kUserDefined) {
      added.push_back({{"id", id}, {"content", data.tokens[id]}, {"special", true}});
    }
  }
  json::array merges;
  for (const auto& [left, right] : data.merges) {
    merges.emplace_back(with_pairs ? json::value(json::array{left, right})
                                   : json::value(left + " " + right));
  }
  const json::object model = {{"type", "BPE"},
                              {"byte_fallback", true},
                              {"vocab", std::move(vocab)},
                              {"merges", std::move(merges)}};
  return json::serialize(json::object{
      {"added_tokens", added}, {"normalizer", json::parse(kNormalizer)}, {"model", model}});
}

void expect_same(const VocabData& actual, const VocabData& expected) {
  EXPECT_EQ(actual.tokens, expected.tokens);
  EXPECT_EQ(actual.kinds, expected.kinds);
  EXPECT_EQ(actual.merges, expected.merges);
}

// The converter of GGUF files read the same tokenizer.json.
TEST(TokenizerJson, HoldsWhatTheConvertedFileHolds) {
  const std::string tiny = testing::test_data_dir() + "/tiny/";
  const auto text = testing::read_file(tiny + "tiny-e2/tokenizer.json");
  const auto vocab = parse_tokenizer_json(text);
  ASSERT_TRUE(vocab.ok()) << vocab.status().message();
  const auto converted = load_vocab(tiny + "tiny-e2-F16.gguf");
  ASSERT_TRUE(converted.ok());
  expect_same(*vocab, *converted);
}

TEST(TokenizerJson, ReadsTheRealVocabularyInBothSpellings) {
  const auto real = load_vocab(testing::real_vocab_path());
  ASSERT_TRUE(real.ok());
  for (const bool with_pairs : {true, false}) {
    const auto vocab = parse_tokenizer_json(to_json(*real, with_pairs));
    ASSERT_TRUE(vocab.ok()) << vocab.status().message();
    expect_same(*vocab, *real);
  }
}

TEST(TokenizerJson, AddedTokensMayExtendTheVocabulary) {
  const VocabData small = testing::small_vocab({{"a", "b"}});
  json::value root = json::parse(to_json(small, true));
  root.at("added_tokens")
      .as_array()
      .push_back({{"id", small.tokens.size()}, {"content", "<new>"}, {"special", false}});
  const auto vocab = parse_tokenizer_json(json::serialize(root));
  ASSERT_TRUE(vocab.ok()) << vocab.status().message();
  EXPECT_EQ(vocab->tokens.back(), "<new>");
  EXPECT_EQ(vocab->kinds.back(), TokenKind::kUserDefined);
}

struct Refusal {
  std::string name;
  std::string pointer;  ///< of the value that is replaced, or removed by null
  std::string value;
  core::Code code;
  std::string message;
};

class TokenizerJsonRefused : public ::testing::TestWithParam<Refusal> {};

TEST_P(TokenizerJsonRefused, WithOneSentence) {
  json::value root = json::parse(to_json(testing::small_vocab({{"a", "b"}}), true));
  root.at_pointer(GetParam().pointer) = json::parse(GetParam().value);
  const auto vocab = parse_tokenizer_json(json::serialize(root));
  ASSERT_FALSE(vocab.ok());
  EXPECT_EQ(vocab.status().code(), GetParam().code);
  EXPECT_THAT(vocab.status().message(), HasSubstr(GetParam().message));
}

const core::Code kBad = core::Code::kDataLoss;
const core::Code kOther = core::Code::kUnimplemented;

INSTANTIATE_TEST_SUITE_P(
    Table, TokenizerJsonRefused,
    ::testing::Values(
        Refusal{"NotAnObject", "", "[]", kBad, "there is no \"model\" object"},
        Refusal{"NoModel", "/model", "null", kBad, "there is no \"model\" object"},
        Refusal{"Unigram", "/model/type", R"("Unigram")", kOther, "model is not BPE"},
        Refusal{"NoByteFallback", "/model/byte_fallback", "false", kOther, "no byte fallback"},
        Refusal{"OtherNormalizer", "/normalizer/type", R"("NFC")", kOther, "normalizer is not"},
        Refusal{"NormalizerOfOtherText", "/normalizer/content", R"("_")", kOther,
                "normalizer is not"},
        Refusal{"NoVocabulary", "/model/vocab", "null", kBad, "no \"model.vocab\" object"},
        Refusal{"EmptyVocabulary", "/model/vocab", "{}", kBad, "has 0 tokens"},
        Refusal{"VocabularyAsList", "/model/vocab", "[]", kBad, "no \"model.vocab\" object"},
        Refusal{"IdTwice", "/model/vocab/a", "0", kBad, "gives token \"a\" the id 0"},
        Refusal{"IdBeyondTheEnd", "/model/vocab/a", "100000", kBad, "the id 100000, but ids must"},
        Refusal{"IdAsText", "/model/vocab/a", R"("7")", kBad, "the id \"7\""},
        Refusal{"NegativeId", "/model/vocab/a", "-1", kBad, "the id -1"},
        Refusal{"NoMerges", "/model/merges", "null", kBad, "no \"model.merges\" array"},
        Refusal{"MergeOfOnePiece", "/model/merges/0", R"(["a"])", kBad,
                "\"model.merges\" entry 0 is not a pair"},
        Refusal{"MergeWithoutSpace", "/model/merges/0", R"("ab")", kBad, "entry 0 is not a pair"},
        Refusal{"MergeAsNumber", "/model/merges/0", "3", kBad, "entry 0 is not a pair"},
        Refusal{"AddedAsObject", "/added_tokens", "{}", kBad, "\"added_tokens\" is not an array"},
        Refusal{"AddedWithoutId", "/added_tokens/0/id", "null", kBad,
                "entry without an \"id\" or a \"content\""},
        Refusal{"AddedUnderAnotherName", "/added_tokens/0/content", R"("<other>")", kBad,
                "calls token 0 \"<other>\""},
        Refusal{"AddedWithAGap", "/added_tokens/0/id", "4000000", kBad, "calls token 4000000"}),
    [](const auto& info) { return info.param.name; });

TEST(TokenizerJson, RefusesWhatIsNotJson) {
  EXPECT_THAT(parse_tokenizer_json("{\"model\":").status().message(), HasSubstr("is not JSON"));
  EXPECT_THAT(parse_tokenizer_json(std::string(100, '[')).status().message(),
              HasSubstr("is not JSON"));
}

}  // namespace
}  // namespace tandem
