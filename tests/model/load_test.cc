// What a model file may leave out or carry along, and that everything else is refused with one
// sentence that names the file, the tensor or key, and what to do.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "support.h"
#include "toy_model.h"

namespace tandem {
namespace {

using testing::GgufContents;
using ::testing::HasSubstr;
using testing::load_files;

std::vector<float> score(const GgufContents& contents) {
  return testing::score(testing::TemporaryFile(contents).path());
}

std::string shared_layer_tensor(const char* name) {
  return std::string("blk.3.") + name;
}

TEST(Loader, IgnoresKvTensorsOfLayersThatShare) {
  auto contents = testing::toy_e_series();
  const auto expected = score(contents);
  contents.set_f32(shared_layer_tensor("attn_k.weight"), {1, 3}, {1, 2, 3});
  contents.set_f32(shared_layer_tensor("attn_v.weight"), {1, 3}, {1, 2, 3});
  contents.set_f32(shared_layer_tensor("attn_k_norm.weight"), {1}, {5});
  EXPECT_EQ(score(contents), expected);
}

TEST(Loader, TakesAMissingLayerScaleAsOne) {
  auto contents = testing::toy_e_series();
  const std::string name = "blk.2.layer_output_scale.weight";
  contents.set_f32(name, {1}, {1.0F});
  const auto expected = score(contents);
  contents.tensors.erase(name);
  EXPECT_EQ(score(contents), expected);
  contents.set_f32(name, {1}, {0.5F});
  EXPECT_NE(score(contents), expected);
}

TEST(Loader, UsesAnOutputHeadOfItsOwn) {
  auto contents = testing::toy_e_series();
  const auto expected = score(contents);
  contents.tensors["output.weight"] = contents.tensors["token_embd.weight"];
  EXPECT_EQ(score(contents), expected);
  std::fill(contents.tensors["output.weight"].bytes.begin(),
            contents.tensors["output.weight"].bytes.end(), std::byte{0});
  const auto zeros = score(contents);
  EXPECT_TRUE(std::all_of(zeros.begin(), zeros.end(), [](float x) { return x == 0.0F; }));
}

TEST(Loader, TakesTheRawKeyWhereThereIsNoValue) {
  auto contents = testing::toy_dense();
  const auto expected = score(contents);
  contents.tensors["blk.2.attn_v.weight"] = contents.tensors["blk.2.attn_k.weight"];
  EXPECT_EQ(score(contents), expected);
}

TEST(Loader, NeverYieldsSuppressedTokens) {
  auto contents = testing::toy_e_series();
  contents.keys["tokenizer.ggml.suppress_tokens"] = std::vector<std::int32_t>{5, 40};
  const auto logits = score(contents);
  for (std::size_t row = 0; row < logits.size(); row += 64) {
    EXPECT_EQ(logits[row + 5], -std::numeric_limits<float>::infinity());
    EXPECT_EQ(logits[row + 40], -std::numeric_limits<float>::infinity());
    EXPECT_GT(logits[row + 6], -30.0F);
  }
}

/// A change to a good pair and the sentence it must cause.
struct Refusal {
  std::string name;
  std::function<void(GgufContents& target, GgufContents& drafter)> change;
  core::Code code = core::Code::kDataLoss;
  std::string message;
};

class Refused : public ::testing::TestWithParam<Refusal> {};

TEST_P(Refused, WithOneSentence) {
  auto target = testing::toy_e_series();
  auto drafter = testing::toy_drafter();
  {
    const testing::TemporaryFile good_target(target), good_drafter(drafter);
    ASSERT_TRUE(load_files(good_target.path(), good_drafter.path()).ok());
  }
  GetParam().change(target, drafter);
  const testing::TemporaryFile target_file(target), draft_file(drafter);
  const auto model = load_files(target_file.path(), draft_file.path());
  ASSERT_FALSE(model.ok());
  const std::string message = model.status().message();
  EXPECT_EQ(model.status().code(), GetParam().code) << message;
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_THAT(message,
              ::testing::AnyOf(HasSubstr(target_file.path()), HasSubstr(draft_file.path())));
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_EQ(message.find(target_file.path()), message.rfind(target_file.path())) << message;
}

auto set_target(std::string key, GgufContents::Value value) {
  return [=](GgufContents& target, GgufContents&) {
    target.keys[key] = value;
  };
}
auto erase_target(std::string key) {
  return [=](GgufContents& target, GgufContents&) {
    target.keys.erase(key);
  };
}
auto set_drafter(std::string key, GgufContents::Value value) {
  return [=](GgufContents&, GgufContents& drafter) {
    drafter.keys[key] = value;
  };
}
auto lose(std::string tensor) {
  return [=](GgufContents& target, GgufContents&) {
    target.tensors.erase(tensor);
  };
}
auto reshape(std::string tensor, std::vector<std::int64_t> shape) {
  return [=](GgufContents& target, GgufContents&) {
    target.tensors[tensor].shape = shape;
  };
}
auto retype(std::string tensor, std::uint32_t type) {
  return [=](GgufContents& target, GgufContents&) {
    target.tensors[tensor].type = type;
  };
}

GgufContents::Value u32(std::uint32_t value) {
  return value;
}

std::string refusal_name(const ::testing::TestParamInfo<Refusal>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(
    Keys, Refused,
    ::testing::Values(
        Refusal{"OtherArchitecture", set_target("general.architecture", std::string("llama")),
                core::Code::kUnimplemented, "architecture \"llama\" is not supported"},
        Refusal{"NoArchitecture", erase_target("general.architecture"), core::Code::kNotFound,
                "general.architecture"},
        Refusal{"ExpertsWithoutTheirNumber", set_target("gemma4.expert_count", u32(8)),
                core::Code::kNotFound, "gemma4.expert_used_count"},
        Refusal{"NoLayerCount", erase_target("gemma4.block_count"), core::Code::kNotFound,
                "gemma4.block_count"},
        Refusal{"ZeroLayers", set_target("gemma4.block_count", u32(0)), core::Code::kDataLoss,
                "\"gemma4.block_count\" must be 1 to 1024, but is 0"},
        Refusal{"HugeWidth", set_target("gemma4.embedding_length", u32(0xFFFFFFFF)),
                core::Code::kDataLoss, "\"gemma4.embedding_length\" must be 1 to 65536"},
        Refusal{"WidthAsText", set_target("gemma4.embedding_length", std::string("32")),
                core::Code::kDataLoss, "gemma4.embedding_length"},
        Refusal{"NegativeHeads", set_target("gemma4.attention.head_count", std::int32_t{-4}),
                core::Code::kDataLoss, "\"gemma4.attention.head_count\" must be 1 to 1024"},
        Refusal{"HeadsNotAMultiple",
                set_target("gemma4.attention.head_count_kv", std::vector<std::int32_t>{3, 1, 3, 1}),
                core::Code::kDataLoss, "layer 0 has 4 query heads, not a multiple of its 3"},
        Refusal{"TooFewPerLayerValues",
                set_target("gemma4.attention.head_count_kv", std::vector<std::int32_t>{1, 1}),
                core::Code::kDataLoss, "gemma4.attention.head_count_kv"},
        Refusal{"NoPattern", erase_target("gemma4.attention.sliding_window_pattern"),
                core::Code::kNotFound, "sliding_window_pattern"},
        Refusal{"NoWindow", erase_target("gemma4.attention.sliding_window"), core::Code::kNotFound,
                "sliding_window"},
        Refusal{"OddHeadSize", set_target("gemma4.attention.key_length", u32(63)),
                core::Code::kDataLoss, "must be an even number, but is 63"},
        Refusal{"ValueSizeDiffers", set_target("gemma4.attention.value_length_swa", u32(64)),
                core::Code::kDataLoss, "must be 32 like \"attention.key_length_swa\", but is 64"},
        Refusal{"PartialRotation", set_target("gemma4.rope.dimension_count", u32(32)),
                core::Code::kDataLoss, "\"gemma4.rope.dimension_count\" must be 64"},
        Refusal{"AllLayersShare", set_target("gemma4.attention.shared_kv_layers", u32(4)),
                core::Code::kDataLoss, "layer 0 shares the KV of a sliding layer, but none"},
        Refusal{"MoreSharedThanLayers", set_target("gemma4.attention.shared_kv_layers", u32(5)),
                core::Code::kDataLoss, "must be 0 to 4, but is 5"},
        Refusal{"SharedHeadsDiffer",
                set_target("gemma4.attention.head_count_kv", std::vector<std::int32_t>{1, 1, 2, 1}),
                core::Code::kDataLoss,
                "layer 2 has 2 KV heads of size 32, but shares the KV of layer 0"},
        Refusal{"EpsilonZero", set_target("gemma4.attention.layer_norm_rms_epsilon", 0.0F),
                core::Code::kDataLoss, "layer_norm_rms_epsilon"},
        Refusal{
            "SoftcapNotFinite",
            set_target("gemma4.final_logit_softcapping", std::numeric_limits<float>::quiet_NaN()),
            core::Code::kDataLoss, "final_logit_softcapping"},
        Refusal{"SuppressesUnknownToken",
                set_target("tokenizer.ggml.suppress_tokens", std::vector<std::int32_t>{64}),
                core::Code::kDataLoss, "names token 64, but the vocabulary has 64"}),
    refusal_name);

INSTANTIATE_TEST_SUITE_P(
    Tensors, Refused,
    ::testing::Values(
        Refusal{"NoEmbedding", lose("token_embd.weight"), core::Code::kDataLoss,
                "tensor \"token_embd.weight\" is missing"},
        Refusal{"NoQuery", lose("blk.3.attn_q.weight"), core::Code::kDataLoss,
                "tensor \"blk.3.attn_q.weight\" is missing"},
        Refusal{"NoKeyNorm", lose("blk.1.attn_k_norm.weight"), core::Code::kDataLoss,
                "tensor \"blk.1.attn_k_norm.weight\" is missing"},
        Refusal{"NoValueInASlidingLayer", lose("blk.0.attn_v.weight"), core::Code::kDataLoss,
                "tensor \"blk.0.attn_v.weight\" is missing"},
        Refusal{"NoPleTable", lose("per_layer_token_embd.weight"), core::Code::kDataLoss,
                "tensor \"per_layer_token_embd.weight\" is missing"},
        Refusal{"NoRotaryFactors", lose("rope_freqs.weight"), core::Code::kDataLoss,
                "tensor \"rope_freqs.weight\" is missing"},
        Refusal{"TransposedDown", reshape("blk.1.ffn_down.weight", {64, 32}), core::Code::kDataLoss,
                "tensor \"blk.1.ffn_down.weight\" has 64 x 32 values, expected 32 x 64"},
        Refusal{"NormAsMatrix", reshape("blk.0.attn_norm.weight", {2, 16}), core::Code::kDataLoss,
                "tensor \"blk.0.attn_norm.weight\" has 2 x 16 values, expected 1 x 32"},
        Refusal{"NormAsI32", retype("blk.0.attn_norm.weight", 26), core::Code::kDataLoss,
                "tensor \"blk.0.attn_norm.weight\" must be F32, F16 or BF16, but is I32"},
        Refusal{"IntegerMatrix", retype("blk.0.ffn_up.weight", 26), core::Code::kUnimplemented,
                "blk.0.ffn_up.weight"},
        Refusal{"ScaleNotFinite",
                [](GgufContents& target, GgufContents&) {
                  target.set_f32("blk.0.layer_output_scale.weight", {1},
                                 {std::numeric_limits<float>::infinity()});
                },
                core::Code::kDataLoss, "\"blk.0.layer_output_scale.weight\" is not a finite"},
        Refusal{"NegativeRotaryFactor",
                [](GgufContents& target, GgufContents&) {
                  target.set_f32("rope_freqs.weight", {32}, std::vector<float>(32, -1.0F));
                },
                core::Code::kDataLoss, "\"rope_freqs.weight\" holds a factor"},
        Refusal{"JoinedQkvOfAnotherSize",
                [](GgufContents& target, GgufContents&) {
                  target.set_f32("blk.0.attn_qkv.weight", {1}, {0});
                },
                core::Code::kDataLoss, "\"blk.0.attn_qkv.weight\" has 1 x 1 values, expected"},
        Refusal{"SomeFullLayersLackV",
                [](GgufContents& target, GgufContents&) {
                  target.keys["gemma4.attention.shared_kv_layers"] = std::uint32_t{0};
                },
                core::Code::kDataLoss, "is missing from 1 of 2 full layers"}),
    refusal_name);

INSTANTIATE_TEST_SUITE_P(
    Pairs, Refused,
    ::testing::Values(
        Refusal{"DrafterOfAnotherWidth",
                set_drafter("gemma4-assistant.embedding_length_out", u32(48)),
                core::Code::kFailedPrecondition, "its target width is 48, the target's is 32"},
        Refusal{"DrafterOfAnotherVocabulary",
                [](GgufContents&, GgufContents& drafter) {
                  drafter.set_f32("token_embd.weight", {65, 32}, std::vector<float>(65 * 32));
                },
                core::Code::kFailedPrecondition, "its vocabulary size is 65, the target's is 64"},
        Refusal{"DrafterOfOtherTokens",
                [](GgufContents&, GgufContents& drafter) {
                  std::get<std::vector<std::string>>(drafter.keys["tokenizer.ggml.tokens"])[17] =
                      "x";
                },
                core::Code::kFailedPrecondition, "their vocabularies differ at token 17"},
        Refusal{"DrafterOfOtherHeadSizes",
                [](GgufContents&, GgufContents& drafter) {
                  for (const char* key : {"attention.key_length_swa", "attention.value_length_swa",
                                          "rope.dimension_count_swa"}) {
                    drafter.keys[std::string("gemma4-assistant.") + key] = std::uint32_t{64};
                  }
                },
                core::Code::kFailedPrecondition, "its sliding head size is 64, the target's is 32"},
        Refusal{"DrafterOfOtherKvHeads",
                set_drafter("gemma4-assistant.attention.head_count_kv", u32(2)),
                core::Code::kFailedPrecondition,
                "its number of sliding KV heads is 2, the target's is 1"},
        Refusal{"DrafterOfAnotherWindow",
                set_drafter("gemma4-assistant.attention.sliding_window", u32(16)),
                core::Code::kFailedPrecondition, "its sliding window is 16, the target's is 8"},
        Refusal{"DrafterOfOtherRotation", set_drafter("gemma4-assistant.rope.freq_base", 5e5F),
                core::Code::kFailedPrecondition, "rotary frequencies of full layers differ"},
        Refusal{"DrafterThatOwnsKv",
                set_drafter("gemma4-assistant.attention.shared_kv_layers", u32(0)),
                core::Code::kDataLoss, "must be 4 (every layer of a drafter), but is 0"},
        Refusal{"TargetAsDrafter",
                [](GgufContents& target, GgufContents& drafter) { drafter = target; },
                core::Code::kFailedPrecondition, "is a target (gemma4), not a drafter"},
        Refusal{"DrafterAsTarget",
                [](GgufContents& target, GgufContents& drafter) { target = drafter; },
                core::Code::kFailedPrecondition, "is a drafter (gemma4-assistant)"}),
    refusal_name);

TEST(Loader, RefusesOptionsThatCannotRun) {
  const testing::TemporaryFile file(testing::toy_e_series());
  model::LoadOptions options;
  options.target_path = file.path();
  options.max_sequences = 8;
  options.max_rows = 4;
  const auto model = model::Model::load(options, testing::make_backend("reference"));
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), core::Code::kInvalidArgument);
  EXPECT_THAT(model.status().message(), HasSubstr("8 sequences in steps of 4 rows"));
}

TEST(Loader, RefusesTextsThatCannotBeScored) {
  const testing::TemporaryFile file(testing::toy_e_series());
  const auto model = load_files(file.path(), "");
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<TokenId> unknown = {2, 64};
  EXPECT_THAT((*model)->score(unknown, 1, 0).status().message(), HasSubstr("token 64"));
  EXPECT_EQ((*model)->score({}, 1, 0).status().code(), core::Code::kInvalidArgument);
  const std::vector<TokenId> too_long((*model)->limits().max_context + 1, 2);
  EXPECT_THAT((*model)->score(too_long, 1, 0).status().message(), HasSubstr("context"));
}

}  // namespace
}  // namespace tandem
