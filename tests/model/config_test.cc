#include "tandem/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tandem/formats/gguf.h"
#include "tandem/model/vocab_gguf.h"
#include "toy_model.h"

namespace tandem {
namespace {

using kernels::AttentionKind;
using model::ModelConfig;
using model::read_config;
using ::testing::HasSubstr;

formats::GgufFile open(const testing::TemporaryFile& file) {
  return formats::GgufFile::open(file.path()).value();
}

ModelConfig config_of(const testing::GgufContents& contents) {
  const testing::TemporaryFile file(contents);
  auto config = read_config(open(file));
  EXPECT_TRUE(config.ok()) << config.status().message();
  return std::move(config).value();
}

TEST(Config, ReadsAnESeriesModel) {
  const ModelConfig config = config_of(testing::toy_e_series());
  EXPECT_EQ(config.family, "gemma4");
  EXPECT_EQ(config.name, "Toy");
  EXPECT_EQ(config.hidden, 32);
  EXPECT_EQ(config.vocab, 64);
  EXPECT_EQ(config.ple_width, 32);
  EXPECT_EQ(config.window, 8);
  EXPECT_EQ(config.max_context, 1024);
  EXPECT_EQ(config.final_softcap, 30.0F);
  EXPECT_FALSE(config.is_drafter());
  ASSERT_EQ(config.layers.size(), 4U);
  EXPECT_EQ(config.num_kv_owners(), 2);
  EXPECT_EQ(config.layers[1].kind, AttentionKind::kFull);
  EXPECT_EQ(config.layers[1].head_size, 64);
  EXPECT_TRUE(config.layers[1].owns_kv);
  EXPECT_FALSE(config.layers[1].value_is_key);
  EXPECT_FALSE(config.layers[2].owns_kv);
  EXPECT_EQ(config.layers[2].kv_layer, 0) << "a sliding layer reads the last sliding cache";
  EXPECT_EQ(config.layers[3].kv_layer, 1);
}

TEST(Config, ReadsADenseModelWhoseValuesAreKeys) {
  const ModelConfig config = config_of(testing::toy_dense());
  EXPECT_EQ(config.num_kv_owners(), 3);
  EXPECT_EQ(config.layers[0].kv_heads, 2);
  EXPECT_EQ(config.layers[2].kv_heads, 1);
  EXPECT_FALSE(config.layers[0].value_is_key);
  EXPECT_TRUE(config.layers[2].value_is_key);
  EXPECT_EQ(config.last_kv_layer(AttentionKind::kSliding), 1);
  EXPECT_EQ(config.last_kv_layer(AttentionKind::kFull), 2);
}

TEST(Config, ReadsADrafter) {
  const ModelConfig config = config_of(testing::toy_drafter());
  EXPECT_TRUE(config.is_drafter());
  EXPECT_EQ(config.backbone_hidden, 32);
  EXPECT_EQ(config.num_kv_owners(), 0);
  EXPECT_EQ(config.last_kv_layer(AttentionKind::kFull), -1);
  EXPECT_TRUE(check_pair(config_of(testing::toy_e_series()), config).ok());
}

// spec/model.md section 5.2: full layers rotate a quarter of the pairs.
TEST(Config, ComputesRotaryFrequencies) {
  const ModelConfig config = config_of(testing::toy_e_series());
  const auto& sliding = config.rope_frequencies[0];
  const auto& full = config.rope_frequencies[1];
  ASSERT_EQ(sliding.size(), 16U);
  ASSERT_EQ(full.size(), 32U);
  EXPECT_FLOAT_EQ(sliding[0], 1.0F);
  EXPECT_FLOAT_EQ(sliding[8], 1e-2F);
  EXPECT_FLOAT_EQ(full[0], 1.0F);
  EXPECT_FLOAT_EQ(full[4], 0.17782794F);
  EXPECT_GT(full[7], 0.0F);
  for (std::size_t i = 8; i < full.size(); ++i) EXPECT_EQ(full[i], 0.0F) << i;
}

TEST(Config, ReadsPerLayerFfnWidthsAndSuppressedTokens) {
  auto contents = testing::toy_e_series();
  contents.keys["gemma4.feed_forward_length"] = std::vector<std::int32_t>{64, 64, 128, 128};
  contents.keys["tokenizer.ggml.suppress_tokens"] = std::vector<std::int32_t>{5, 7};
  const ModelConfig config = config_of(contents);
  EXPECT_EQ(config.layers[1].ffn, 64);
  EXPECT_EQ(config.layers[2].ffn, 128);
  EXPECT_EQ(config.suppressed, (std::vector<TokenId>{5, 7}));
}

TEST(Config, LetsADrafterInheritTheRotaryFactors) {
  auto contents = testing::toy_drafter();
  contents.tensors.erase("rope_freqs.weight");
  const ModelConfig config = config_of(contents);
  EXPECT_TRUE(config.rope_frequencies[1].empty());
  EXPECT_TRUE(check_pair(config_of(testing::toy_e_series()), config).ok());
}

/// The released sizes of spec/model.md section 1 as a file would state them; of the tensors only
/// those that read_config looks at.
struct Released {
  std::string name;
  int layers, width, ffn, heads, kv_heads, kv_heads_full, period, window, shared, ple;
  int sliding_donor, full_donor;  // as kv layers
};

class ReleasedSizes : public ::testing::TestWithParam<Released> {};

TEST_P(ReleasedSizes, AreRead) {
  const Released& r = GetParam();
  auto contents = r.ple > 0 ? testing::toy_e_series() : testing::toy_dense();
  std::vector<bool> sliding;
  std::vector<std::int32_t> kv_heads;
  for (int l = 0; l < r.layers; ++l) {
    sliding.push_back((l + 1) % r.period != 0);
    kv_heads.push_back(sliding.back() ? r.kv_heads : r.kv_heads_full);
    if (r.ple > 0) {
      contents.set_f32("blk." + std::to_string(l) + ".attn_v.weight", {1}, {0.0F});
    }
  }
  const auto set = [&](const char* key, int value) {
    contents.keys[std::string("gemma4.") + key] = static_cast<std::uint32_t>(value);
  };
  set("block_count", r.layers);
  set("embedding_length", r.width);
  set("feed_forward_length", r.ffn);
  set("attention.head_count", r.heads);
  set("attention.sliding_window", r.window);
  set("attention.shared_kv_layers", r.shared);
  set("embedding_length_per_layer_input", r.ple);
  for (const char* key :
       {"attention.key_length", "attention.value_length", "rope.dimension_count"}) {
    set(key, 512);
    set((std::string(key) + "_swa").c_str(), 256);
  }
  contents.keys["gemma4.attention.sliding_window_pattern"] = sliding;
  contents.keys["gemma4.attention.head_count_kv"] = kv_heads;
  std::vector<float> factors(256, 1e30F);
  std::fill_n(factors.begin(), 64, 1.0F);
  contents.set_f32("rope_freqs.weight", {256}, factors);

  const ModelConfig config = config_of(contents);
  EXPECT_EQ(config.num_kv_owners(), r.layers - r.shared);
  EXPECT_EQ(config.last_kv_layer(AttentionKind::kSliding), r.sliding_donor);
  EXPECT_EQ(config.last_kv_layer(AttentionKind::kFull), r.full_donor);
  const auto& last = config.layers.back();
  EXPECT_EQ(last.kind, AttentionKind::kFull);
  EXPECT_EQ(last.head_size, 512);
  EXPECT_EQ(last.kv_heads, r.kv_heads_full);
  EXPECT_EQ(last.kv_layer, r.full_donor);
  EXPECT_EQ(last.value_is_key, r.ple == 0);
  EXPECT_GT(config.rope_frequencies[1][63], 0.0F);
  EXPECT_EQ(config.rope_frequencies[1][64], 0.0F);
}

INSTANTIATE_TEST_SUITE_P(
    , ReleasedSizes,
    ::testing::Values(Released{"E2B", 35, 1536, 6144, 8, 1, 1, 5, 512, 20, 256, 13, 14},
                      Released{"E4B", 42, 2560, 10240, 8, 2, 2, 6, 512, 18, 256, 22, 23},
                      Released{"12B", 48, 3840, 15360, 16, 8, 1, 6, 1024, 0, 0, 46, 47},
                      Released{"31B", 60, 5376, 21504, 32, 16, 4, 6, 1024, 0, 0, 58, 59}),
    [](const auto& info) { return info.param.name; });

TEST(Vocab, IsReadWithItsSpecialTokensAndMerges) {
  const testing::TemporaryFile file(testing::toy_e_series());
  const auto vocab = model::read_vocab(open(file));
  ASSERT_TRUE(vocab.ok()) << vocab.status().message();
  EXPECT_EQ(vocab->tokens.size(), 64U);
  EXPECT_EQ(vocab->kinds[2], tokenizer::TokenKind::kControl);
  EXPECT_EQ(vocab->bos, 2);
  EXPECT_EQ(vocab->eos, 1);
  EXPECT_EQ(vocab->eot, -1);
  ASSERT_EQ(vocab->merges.size(), 1U);
  EXPECT_EQ(vocab->merges[0], std::pair(std::string("t4"), std::string("t5")));
  EXPECT_EQ(model::read_chat_template(open(file)).value(), "{{ bos_token }}");
}

struct BadVocab {
  std::string name;
  std::string key;
  testing::GgufContents::Value value;
  std::string message;
};

class DamagedVocab : public ::testing::TestWithParam<BadVocab> {};

TEST_P(DamagedVocab, IsRefusedWithASentence) {
  auto contents = testing::toy_e_series();
  contents.keys[GetParam().key] = GetParam().value;
  const testing::TemporaryFile file(contents);
  const auto vocab = model::read_vocab(open(file));
  ASSERT_FALSE(vocab.ok());
  EXPECT_THAT(vocab.status().message(), HasSubstr(file.path()));
  EXPECT_THAT(vocab.status().message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    , DamagedVocab,
    ::testing::Values(
        BadVocab{"OtherFamily", "tokenizer.ggml.model", std::string("llama"),
                 "tokenizer \"llama\" is not supported"},
        BadVocab{"TooFewTokens", "tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"},
                 "the tokenizer has 2 tokens, but tensor \"token_embd.weight\" 64 rows"},
        BadVocab{"TooFewKinds", "tokenizer.ggml.token_type", std::vector<std::int32_t>{1, 1},
                 "tokenizer.ggml.token_type"},
        BadVocab{"UnknownKind", "tokenizer.ggml.token_type", std::vector<std::int32_t>(64, 9),
                 "must be 1 to 6, but is 9"},
        BadVocab{"MergeOfOnePiece", "tokenizer.ggml.merges", std::vector<std::string>{"t4"},
                 "entry 0 is not a pair"},
        BadVocab{"BosOutside", "tokenizer.ggml.bos_token_id", std::uint32_t{64},
                 "must be 0 to 63, but is 64"},
        BadVocab{"EosHuge", "tokenizer.ggml.eos_token_id", std::uint32_t{4294967295},
                 "must be 0 to 63, but is 4294967295"}),
    [](const auto& info) { return info.param.name; });

TEST(Vocab, NamesWhatIsMissing) {
  for (const char* key : {"tokenizer.ggml.model", "tokenizer.ggml.tokens",
                          "tokenizer.ggml.token_type", "tokenizer.ggml.merges"}) {
    auto contents = testing::toy_e_series();
    contents.keys.erase(key);
    const testing::TemporaryFile file(contents);
    const auto vocab = model::read_vocab(open(file));
    ASSERT_FALSE(vocab.ok());
    EXPECT_EQ(vocab.status().code(), core::Code::kNotFound);
    EXPECT_THAT(vocab.status().message(), HasSubstr(key));
  }
  auto contents = testing::toy_e_series();
  contents.keys.erase("tokenizer.chat_template");
  const testing::TemporaryFile file(contents);
  EXPECT_EQ(model::read_chat_template(open(file)).status().code(), core::Code::kNotFound);
}

}  // namespace
}  // namespace tandem
