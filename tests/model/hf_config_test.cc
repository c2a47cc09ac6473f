// config.json of all sizes and their assistants, in every spelling: spec/model.md and spec/mtp.md
// section 1.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "tandem/model/config.h"

namespace tandem {
namespace {

namespace json = boost::json;
using kernels::AttentionKind;
using model::ModelConfig;
using ::testing::HasSubstr;

/// The numbers of one size in the tables of the specification.
struct Size {
  std::string name;
  int layers, hidden, ffn, heads, kv_heads, full_kv_heads, period, window, shared, ple, experts;
  bool is_double_wide = false;
  bool is_unified = false;
  int draft_hidden = 0, draft_ffn = 0;

  bool value_is_key() const { return shared == 0; }
};

const std::vector<Size>& sizes() {
  static const std::vector<Size> all = {
      {"E2B", 35, 1536, 6144, 8, 1, 1, 5, 512, 20, 256, 0, true, false, 256, 2048},
      {"E4B", 42, 2560, 10240, 8, 2, 2, 6, 512, 18, 256, 0, false, false, 256, 2048},
      {"12B", 48, 3840, 15360, 16, 8, 1, 6, 1024, 0, 0, 0, false, true, 1024, 8192},
      {"26B", 30, 2816, 2112, 16, 8, 2, 6, 1024, 0, 0, 128, false, false, 1024, 8192},
      {"31B", 60, 5376, 21504, 32, 16, 4, 6, 1024, 0, 0, 0, false, false, 1024, 8192},
  };
  return all;
}

json::array layer_types(int layers, int period) {
  json::array types;
  for (int l = 0; l < layers; ++l) {
    types.emplace_back((l + 1) % period == 0 ? "full_attention" : "sliding_attention");
  }
  return types;
}

json::object text_config(const Size& s) {
  json::object text = {
      {"model_type", s.is_unified ? "gemma4_unified_text" : "gemma4_text"},
      {"vocab_size", 262144},
      {"hidden_size", s.hidden},
      {"intermediate_size", s.ffn},
      {"num_hidden_layers", s.layers},
      {"num_attention_heads", s.heads},
      {"num_key_value_heads", s.kv_heads},
      {"head_dim", 256},
      {"global_head_dim", 512},
      {"layer_types", layer_types(s.layers, s.period)},
      {"sliding_window", s.window},
      {"attention_k_eq_v", s.value_is_key()},
      {"num_kv_shared_layers", s.shared},
      {"use_double_wide_mlp", s.is_double_wide},
      {"hidden_size_per_layer_input", s.ple},
      {"max_position_embeddings", 131072},
      {"rms_norm_eps", 1e-6},
      {"final_logit_softcapping", 30.0},
      {"enable_moe_block", s.experts > 0},
  };
  if (s.value_is_key()) text["num_global_key_value_heads"] = s.full_kv_heads;
  if (s.experts > 0) {
    text["num_experts"] = s.experts;
    text["top_k_experts"] = 8;
    text["moe_intermediate_size"] = 704;
  }
  text["rope_parameters"] = {
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 10000.0}}},
      {"full_attention",
       {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}}}};
  return text;
}

json::object target(const Size& s) {
  return {{"model_type", s.is_unified ? "gemma4_unified" : "gemma4"},
          {"vision_config", {{"hidden_size", 768}}},
          {"audio_config", nullptr},
          {"text_config", text_config(s)}};
}

json::object assistant(const Size& s) {
  Size draft = s;
  draft.layers = draft.shared = draft.period = 4;
  draft.hidden = s.draft_hidden;
  draft.ffn = s.draft_ffn;
  draft.ple = draft.experts = 0;
  draft.is_double_wide = false;
  json::object text = text_config(draft);
  text["attention_k_eq_v"] = s.value_is_key();
  text["num_global_key_value_heads"] = s.value_is_key() ? json::value(s.full_kv_heads) : nullptr;
  text["final_logit_softcapping"] = nullptr;
  return {{"model_type", s.is_unified ? "gemma4_unified_assistant" : "gemma4_assistant"},
          {"backbone_hidden_size", s.hidden},
          {"num_centroids", 2048},
          {"centroid_intermediate_top_k", 32},
          {"text_config", text}};
}

core::Result<ModelConfig> read(const json::object& config, const std::string& generation = "") {
  return model::read_config("DIR", json::serialize(config), generation);
}

ModelConfig read_ok(const json::object& config) {
  auto result = read(config);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return std::move(result).value();
}

/// Every number of a config on one line, for comparisons.
std::string describe(const ModelConfig& c) {
  std::string out = fmt::format("{} {} {} {} {} {} {} {} {}/{}/{}", c.family, c.hidden, c.vocab,
                                c.ple_width, c.window, c.max_context, c.backbone_hidden,
                                c.final_softcap, c.experts, c.experts_per_token, c.expert_ffn);
  for (const model::LayerConfig& l : c.layers) {
    out += fmt::format(" [{} {} {} {} {} {} {} {}]", static_cast<int>(l.kind), l.heads, l.kv_heads,
                       l.head_size, l.ffn, l.owns_kv, l.value_is_key, l.kv_layer);
  }
  for (const auto& frequencies : c.rope_frequencies) {
    for (const float f : frequencies) out += fmt::format(" {}", f);
  }
  return out;
}

TEST(HfConfig, ReadsEverySizeOfTheTables) {
  for (const Size& s : sizes()) {
    SCOPED_TRACE(s.name);
    const ModelConfig c = read_ok(target(s));
    ASSERT_EQ(c.layers.size(), static_cast<std::size_t>(s.layers));
    EXPECT_EQ(c.hidden, s.hidden);
    EXPECT_EQ(c.vocab, 262144);
    EXPECT_EQ(c.ple_width, s.ple);
    EXPECT_EQ(c.window, s.window);
    EXPECT_EQ(c.final_softcap, 30.0F);
    EXPECT_EQ(c.num_kv_owners(), s.layers - s.shared);
    EXPECT_EQ(c.experts, s.experts);
    for (int l = 0; l < s.layers; ++l) {
      const model::LayerConfig& layer = c.layers[static_cast<std::size_t>(l)];
      const bool is_full = (l + 1) % s.period == 0;
      EXPECT_EQ(layer.kind, is_full ? AttentionKind::kFull : AttentionKind::kSliding);
      EXPECT_EQ(layer.heads, s.heads);
      EXPECT_EQ(layer.head_size, is_full ? 512 : 256);
      EXPECT_EQ(layer.kv_heads, is_full ? s.full_kv_heads : s.kv_heads);
      EXPECT_EQ(layer.value_is_key, is_full && s.value_is_key());
      EXPECT_EQ(layer.owns_kv, l < s.layers - s.shared);
      EXPECT_EQ(layer.ffn, s.is_double_wide && l >= 15 ? 12288 : s.ffn);
    }
    EXPECT_EQ(c.layers.back().kv_layer, s.layers - s.shared - 1);
    // A quarter of the pairs of full layers turn, spec/model.md section 5.2.
    EXPECT_EQ(c.rope_frequencies[0].size(), 128U);
    EXPECT_GT(c.rope_frequencies[0][127], 0.0F);
    ASSERT_EQ(c.rope_frequencies[1].size(), 256U);
    EXPECT_GT(c.rope_frequencies[1][63], 0.0F);
    EXPECT_EQ(c.rope_frequencies[1][64], 0.0F);
  }
}

TEST(HfConfig, EveryAssistantFitsItsTargetAloneOfTheOtherWidths) {
  for (const Size& s : sizes()) {
    SCOPED_TRACE(s.name);
    const ModelConfig drafter = read_ok(assistant(s));
    EXPECT_TRUE(drafter.is_drafter());
    EXPECT_EQ(drafter.family, "gemma4-assistant");
    EXPECT_EQ(drafter.centroids_per_token, 32);
    EXPECT_EQ(drafter.num_kv_owners(), 0);
    for (const Size& other : sizes()) {
      const core::Status fits = check_pair(read_ok(target(other)), drafter);
      if (other.name == s.name) {
        EXPECT_TRUE(fits.ok()) << fits.message();
      } else {
        EXPECT_THAT(fits.message(),
                    HasSubstr(fmt::format("its target width is {}, the target's is {}", s.hidden,
                                          other.hidden)));
      }
    }
  }
}

TEST(HfConfig, FlatAndNestedAreTheSame) {
  for (const Size& s : sizes()) {
    EXPECT_EQ(describe(read_ok(text_config(s))), describe(read_ok(target(s)))) << s.name;
  }
}

TEST(HfConfig, LayersMayBeSpelledOneByOne) {
  for (const Size& s : sizes()) {
    SCOPED_TRACE(s.name);
    const std::string expected = describe(read_ok(target(s)));
    json::object text = text_config(s);
    text.erase("global_head_dim");
    text.erase("num_global_key_value_heads");
    json::object layers;
    for (int l = s.period - 1; l < s.layers; l += s.period) {
      layers[std::to_string(l)] = {{"head_dim", 512}, {"num_key_value_heads", s.full_kv_heads}};
    }
    text["per_layer_config"] = layers;
    EXPECT_EQ(describe(read_ok(text)), expected);
    text["num_attention_heads"] = json::array(static_cast<std::size_t>(s.layers), s.heads);
    EXPECT_EQ(describe(read_ok(text)), expected);
  }
}

TEST(HfConfig, DefaultsAreThoseOfTheFamily) {
  const Size& s = sizes()[1];
  const std::string expected = describe(read_ok(target(s)));
  json::object text = text_config(s);
  for (const char* key : {"layer_types", "rope_parameters", "rms_norm_eps", "head_dim",
                          "max_position_embeddings", "sliding_window", "use_double_wide_mlp"}) {
    text.erase(key);
  }
  EXPECT_EQ(describe(read_ok(text)), expected);
}

TEST(HfConfig, SuppressesWhatGenerationConfigNames) {
  const json::object config = target(sizes()[2]);
  const auto result = read(config, R"({"suppress_tokens": [258883, 258882]})");
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->suppressed, ::testing::ElementsAre(258883, 258882));
  EXPECT_THAT(read(config, R"({"suppress_tokens": [262144]})").status().message(),
              HasSubstr("DIR/generation_config.json: \"suppress_tokens\" must be 0 to 262143"));
}

struct Refusal {
  std::string name;
  std::string key;  ///< of text_config; "/KEY": of the top
  json::value value;
  core::Code code;
  std::string message;
};

class HfConfigRefused : public ::testing::TestWithParam<Refusal> {};

TEST_P(HfConfigRefused, WithOneSentence) {
  json::object config = target(sizes()[1]);
  const Refusal& refusal = GetParam();
  if (refusal.key.starts_with('/')) {
    config[refusal.key.substr(1)] = refusal.value;
  } else {
    config["text_config"].as_object()[refusal.key] = refusal.value;
  }
  const auto result = read(config);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), refusal.code);
  EXPECT_THAT(result.status().message(), HasSubstr(refusal.message));
  EXPECT_THAT(result.status().message(), ::testing::StartsWith("DIR/config.json: "));
}

const core::Code kBad = core::Code::kDataLoss;

INSTANTIATE_TEST_SUITE_P(
    Table, HfConfigRefused,
    ::testing::Values(
        Refusal{"OtherFamily", "/model_type", "llama", core::Code::kUnimplemented,
                "model_type \"llama\" is not supported"},
        Refusal{"NoFamily", "/model_type", nullptr, core::Code::kNotFound,
                "\"model_type\" is missing"},
        Refusal{"FamilyAsNumber", "/model_type", 4, kBad, "\"model_type\" must be a string"},
        Refusal{"TextAsList", "/text_config", json::array{}, kBad,
                "\"text_config\" must be an object, but is []"},
        Refusal{"NoLayers", "num_hidden_layers", nullptr, core::Code::kNotFound,
                "\"text_config.num_hidden_layers\" is missing"},
        Refusal{"ZeroLayers", "num_hidden_layers", 0, kBad,
                "\"text_config.num_hidden_layers\" must be 1 to 1024, but is 0"},
        Refusal{"HugeWidth", "hidden_size", 1e30, kBad, "must be 1 to 65536, but is 1E30"},
        Refusal{"NegativeHeads", "num_attention_heads", -8, kBad, "must be 1 to 1024, but is -8"},
        Refusal{"HeadsNotAMultiple", "num_key_value_heads", 3, kBad,
                "layer 0 has 8 query heads, not a multiple of its 3 KV heads"},
        Refusal{"TooFewLayerTypes", "layer_types", json::array{"full_attention"}, kBad,
                "\"text_config.layer_types\" has 1 values where 42 are expected"},
        Refusal{"OddHeads", "head_dim", 255, kBad, "heads of size 255, which must be even"},
        Refusal{"AllLayersShare", "num_kv_shared_layers", 42, kBad,
                "layer 0 shares the KV of a sliding layer, but none before it has any"},
        Refusal{"MoreSharedThanLayers", "num_kv_shared_layers", 43, kBad, "must be 0 to 42"},
        Refusal{"LayerBeyondTheLast",
                "per_layer_config",
                {{"42", {{"head_dim", 2}}}},
                kBad,
                "names layer \"42\", but there are 42"},
        Refusal{"HeadSizesDiffer",
                "per_layer_config",
                {{"11", {{"head_dim", 256}}}},
                kBad,
                "layer 11 has heads of size 256"},
        Refusal{"EpsilonAsText", "rms_norm_eps", "1e-6", kBad, "must be 1e-12 to 0.01"},
        Refusal{"ExpertsWithoutTheirNumber", "enable_moe_block", true, core::Code::kNotFound,
                "\"text_config.num_experts\" is missing"},
        Refusal{"UnknownRotation",
                "rope_parameters",
                {{"full_attention", {{"rope_type", "yarn"}}}},
                core::Code::kUnimplemented,
                "\"text_config.rope_parameters.full_attention.rope_type\" is \"yarn\""},
        Refusal{"NegativeBase",
                "rope_parameters",
                {{"sliding_attention", {{"rope_theta", -1}}}},
                kBad,
                "must be 1 to 1e+12"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem
