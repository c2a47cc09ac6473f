#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <charconv>
#include <filesystem>

#include "tandem/model/config.h"
#include "tandem/model/config_build.h"
#include "tandem/model/json_reader.h"

namespace tandem::model {
namespace {

using kernels::AttentionKind;

/// Every fifth layer but one slides where the file does not list them, spec/model.md section 1.
constexpr std::size_t kDefaultPattern = 6;

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The family that config.json's model_type names.
core::Result<std::string_view> read_family(const JsonReader& top) {
  TANDEM_ASSIGN(const std::string type, top.required_string("model_type"));
  if (is_one_of(type, {"gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"})) {
    return kTargetFamily;
  }
  if (is_one_of(type, {"gemma4_assistant", "gemma4_unified_assistant"})) return kDrafterFamily;
  return core::unimplemented(
      fmt::format("{}: model_type \"{}\" is not supported; Tandem runs gemma4, gemma4_unified and "
                  "their assistants",
                  top.file(), type));
}

core::Result<std::vector<AttentionKind>> read_kinds(const JsonReader& text, std::size_t layers) {
  std::vector<AttentionKind> kinds(layers, AttentionKind::kSliding);
  TANDEM_ASSIGN(const auto names, text.optional_strings("layer_types"));
  if (names.empty()) {
    for (std::size_t l = kDefaultPattern - 1; l < layers; l += kDefaultPattern) {
      kinds[l] = AttentionKind::kFull;
    }
    kinds.back() = AttentionKind::kFull;
    return kinds;
  }
  if (names.size() != layers) {
    return text.error(fmt::format("\"{}\" has {} values where {} are expected, one per layer",
                                  text.name("layer_types"), names.size(), layers));
  }
  for (std::size_t l = 0; l < layers; ++l) {
    if (names[l] == "full_attention") {
      kinds[l] = AttentionKind::kFull;
    } else if (names[l] != "sliding_attention") {
      return text.error(
          fmt::format("\"{}\" names \"{}\" for layer {}, which is neither sliding_attention nor "
                      "full_attention",
                      text.name("layer_types"), names[l], l));
    }
  }
  return kinds;
}

/// Newer files name what differs from layer to layer: {"5": {"head_dim": 512, ...}}.
core::Status read_layer_overrides(const JsonReader& text, std::vector<LayerConfig>& layers) {
  TANDEM_ASSIGN(const auto overrides, text.optional_object("per_layer_config"));
  if (!overrides) return {};
  for (const auto& [key, value] : text.find("per_layer_config")->get_object()) {
    std::size_t l = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), l);
    if (error != std::errc() || end != key.data() + key.size() || l >= layers.size()) {
      return text.error(fmt::format("\"{}\" names layer \"{}\", but there are {}",
                                    text.name("per_layer_config"), std::string_view(key),
                                    layers.size()));
    }
    TANDEM_ASSIGN(const auto layer, overrides->optional_object(key));
    if (!layer) continue;
    TANDEM_ASSIGN(layers[l].head_size,
                  layer->optional_int("head_dim", kHeadSize, layers[l].head_size));
    TANDEM_ASSIGN(layers[l].kv_heads,
                  layer->optional_int("num_key_value_heads", kHeads, layers[l].kv_heads));
    TANDEM_ASSIGN(layers[l].ffn, layer->optional_int("intermediate_size", kFfn, layers[l].ffn));
  }
  return {};
}

/// Heads have one even size by kind.
core::Status check_head_sizes(const JsonReader& text, const std::vector<LayerConfig>& layers) {
  std::array<int, kernels::kNumAttentionKinds> sizes = {};
  for (std::size_t l = 0; l < layers.size(); ++l) {
    int& size = sizes[index_of(layers[l].kind)];
    if (size == 0) size = layers[l].head_size;
    if (layers[l].head_size == size && size % 2 == 0) continue;
    return text.error(fmt::format(
        "layer {} has heads of size {}, which must be even and the same in all {} layers", l,
        layers[l].head_size, kind_name(layers[l].kind)));
  }
  return {};
}

core::Result<std::vector<LayerConfig>> read_layers(const JsonReader& text, int shared) {
  TANDEM_ASSIGN(const int num_layers, text.required_int("num_hidden_layers", kLayers));
  const auto n = static_cast<std::size_t>(num_layers);
  TANDEM_ASSIGN(const auto kinds, read_kinds(text, n));
  TANDEM_ASSIGN(const auto heads, text.per_layer("num_attention_heads", n, kHeads));
  TANDEM_ASSIGN(const auto kv_heads, text.per_layer("num_key_value_heads", n, kHeads));
  TANDEM_ASSIGN(const auto ffn, text.per_layer("intermediate_size", n, kFfn));
  TANDEM_ASSIGN(const int head_size, text.optional_int("head_dim", kHeadSize, 256));
  TANDEM_ASSIGN(const int full_size, text.optional_int("global_head_dim", kHeadSize, head_size));
  TANDEM_ASSIGN(const bool value_is_key, text.optional_bool("attention_k_eq_v", false));
  TANDEM_ASSIGN(const int full_kv_heads,
                text.optional_int("num_global_key_value_heads", kHeads, 0));
  TANDEM_ASSIGN(const bool is_double_wide, text.optional_bool("use_double_wide_mlp", false));
  std::vector<LayerConfig> layers(n);
  for (std::size_t l = 0; l < n; ++l) {
    LayerConfig& layer = layers[l];
    const bool is_full = kinds[l] == AttentionKind::kFull;
    layer.kind = kinds[l];
    layer.heads = heads[l];
    layer.value_is_key = is_full && value_is_key;
    layer.kv_heads = layer.value_is_key && full_kv_heads > 0 ? full_kv_heads : kv_heads[l];
    layer.head_size = is_full ? full_size : head_size;
    layer.ffn = ffn[l];
    if (is_double_wide && static_cast<int>(l) >= num_layers - shared) layer.ffn *= 2;
  }
  TANDEM_TRY(read_layer_overrides(text, layers));
  TANDEM_TRY(check_head_sizes(text, layers));
  return layers;
}

/// What rope_parameters say of one kind of layers, or spec/model.md section 1's defaults.
struct Rope {
  double base = 1e4;
  double rotated = 1.0;  ///< share of the pairs that rotate
  double factor = 1.0;   ///< slows all of them
};

core::Result<Rope> read_rope_parameters(const JsonReader& text, AttentionKind kind) {
  const bool is_full = kind == AttentionKind::kFull;
  Rope rope;
  TANDEM_ASSIGN(const auto all, text.optional_object("rope_parameters"));
  std::optional<JsonReader> keys;
  if (all) {
    TANDEM_ASSIGN(keys, all->optional_object(is_full ? "full_attention" : "sliding_attention"));
  }
  if (!keys) return is_full ? Rope{1e6, 0.25, 1.0} : rope;
  TANDEM_ASSIGN(const std::string type, keys->optional_string("rope_type", "default"));
  if (type != "default" && type != "proportional") {
    return core::unimplemented(
        fmt::format("{}: \"{}\" is \"{}\", which no Gemma 4 uses; only default and proportional "
                    "rotations are supported",
                    keys->file(), keys->name("rope_type"), type));
  }
  TANDEM_ASSIGN(rope.base, keys->optional_float("rope_theta", kRopeBase, is_full ? 1e6 : 1e4));
  rope.base = static_cast<double>(static_cast<float>(rope.base));  // as a GGUF file keeps it
  TANDEM_ASSIGN(rope.factor, keys->optional_float("factor", {1e-3, 1e6}, 1.0));
  if (type == "proportional") {
    TANDEM_ASSIGN(rope.rotated, keys->optional_float("partial_rotary_factor", {0.0, 1.0}, 1.0));
  }
  return rope;
}

core::Status read_rope(const JsonReader& text, ModelConfig& config) {
  for (const LayerConfig& layer : config.layers) {
    std::vector<float>& frequencies = config.rope_frequencies[index_of(layer.kind)];
    if (!frequencies.empty()) continue;
    TANDEM_ASSIGN(const Rope rope, read_rope_parameters(text, layer.kind));
    config.rope_bases[index_of(layer.kind)] = rope.base;
    const auto pairs = static_cast<std::size_t>(layer.head_size) / 2;
    std::vector<float> factors(pairs, 1e30F);
    const auto rotated = static_cast<std::size_t>(rope.rotated * static_cast<double>(pairs));
    std::fill_n(factors.begin(), rotated, static_cast<float>(rope.factor));
    frequencies = rope_frequencies(rope.base, layer.head_size, factors);
  }
  return {};
}

core::Status read_experts(const JsonReader& text, ModelConfig& config) {
  TANDEM_ASSIGN(const bool has_experts, text.optional_bool("enable_moe_block", false));
  if (!has_experts) return {};
  TANDEM_ASSIGN(config.experts, text.required_int("num_experts", {1, kExperts.max}));
  TANDEM_ASSIGN(config.experts_per_token, text.required_int("top_k_experts", {1, config.experts}));
  TANDEM_ASSIGN(config.expert_ffn, text.required_int("moe_intermediate_size", kFfn));
  return {};
}

core::Status read_text(const JsonReader& text, ModelConfig& config) {
  TANDEM_ASSIGN(config.vocab, text.required_int("vocab_size", kVocab));
  TANDEM_ASSIGN(config.hidden, text.required_int("hidden_size", kWidth));
  TANDEM_ASSIGN(config.max_context, text.optional_int("max_position_embeddings", kContext, 131072));
  TANDEM_ASSIGN(config.ple_width, text.optional_int("hidden_size_per_layer_input", kPleWidth, 0));
  TANDEM_ASSIGN(const double eps, text.optional_float("rms_norm_eps", kEpsilon, 1e-6));
  config.rms_eps = static_cast<float>(eps);
  TANDEM_ASSIGN(const double softcap,
                text.optional_float("final_logit_softcapping", kSoftcap, 0.0));
  config.final_softcap = static_cast<float>(softcap);
  const IntRange layers = {0, kLayers.max};
  TANDEM_ASSIGN(const int shared, text.optional_int("num_kv_shared_layers", layers, 0));
  TANDEM_ASSIGN(config.layers, read_layers(text, shared));
  const int num_layers = static_cast<int>(config.layers.size());
  if (shared > num_layers || (config.is_drafter() && shared != num_layers)) {
    return text.bad_value("num_kv_shared_layers",
                          config.is_drafter()
                              ? fmt::format("{} (every layer of an assistant)", num_layers)
                              : fmt::format("0 to {}", num_layers),
                          shared);
  }
  const auto is_sliding = [](const LayerConfig& l) {
    return l.kind == AttentionKind::kSliding;
  };
  if (std::any_of(config.layers.begin(), config.layers.end(), is_sliding)) {
    TANDEM_ASSIGN(config.window, text.optional_int("sliding_window", kWindow, 512));
  }
  if (auto status = assign_kv(shared, config); !status.ok()) return text.error(status.message());
  TANDEM_TRY(read_experts(text, config));
  return read_rope(text, config);
}

}  // namespace

core::Result<ModelConfig> read_config(const std::string& directory, std::string_view config_json,
                                      std::string_view generation_json) {
  const std::filesystem::path path = directory;
  const std::string file = (path / "config.json").string();
  TANDEM_ASSIGN(const auto object, parse_json_object(config_json, file));
  const JsonReader top(object, file);
  ModelConfig config;
  TANDEM_ASSIGN(config.family, read_family(top));
  TANDEM_ASSIGN(const auto nested, top.optional_object("text_config"));
  const JsonReader text = nested.value_or(top);
  if (config.family == kDrafterFamily) {
    TANDEM_ASSIGN(config.backbone_hidden, top.required_int("backbone_hidden_size", kWidth));
    TANDEM_ASSIGN(
        config.centroids_per_token,
        top.optional_int("centroid_intermediate_top_k", {1, kVocab.max}, kCentroidsPerToken));
  }
  TANDEM_TRY(read_text(text, config));
  if (config.is_drafter() && (config.ple_width > 0 || config.experts > 0)) {
    return text.error("an assistant with per-layer embeddings or experts is not supported");
  }
  if (generation_json.empty()) return config;
  const std::string generation_file = (path / "generation_config.json").string();
  TANDEM_ASSIGN(const auto generation, parse_json_object(generation_json, generation_file));
  TANDEM_ASSIGN(const auto suppressed,
                JsonReader(generation, generation_file)
                    .optional_ints("suppress_tokens", {0, config.vocab - 1}));
  config.suppressed.assign(suppressed.begin(), suppressed.end());
  return config;
}

}  // namespace tandem::model
