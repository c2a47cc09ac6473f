#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "tandem/core/printable.h"
#include "tandem/model/config.h"
#include "tandem/model/config_build.h"
#include "tandem/model/key_reader.h"

namespace tandem::model {
namespace {

using kernels::AttentionKind;

/// rope_freqs.weight as [D/2] positive factors.
core::Result<std::vector<float>> read_rope_factors(const KeyReader& keys,
                                                   const core::TensorView& view, int head_size) {
  if (view.dtype != core::DType::kF32 || view.rank != 1 || view.cols() != head_size / 2) {
    return keys.error(
        fmt::format("tensor \"rope_freqs.weight\" must be F32 with {} values", head_size / 2));
  }
  std::vector<float> factors(static_cast<std::size_t>(view.cols()));
  std::memcpy(factors.data(), view.data, view.bytes());
  for (float factor : factors) {
    if (!std::isfinite(factor) || factor <= 0.0F) {
      return keys.error("tensor \"rope_freqs.weight\" holds a factor that is not positive");
    }
  }
  return factors;
}

/// Head size of a kind; keys, values and the rotated part must have the same.
core::Result<int> read_head_size(const KeyReader& keys, AttentionKind kind) {
  const std::string_view suffix = kind == AttentionKind::kSliding ? "_swa" : "";
  const std::string key = fmt::format("attention.key_length{}", suffix);
  TANDEM_ASSIGN(const int head_size, keys.required_int(key, kHeadSize));
  if (head_size % 2 != 0) return keys.bad_value(key, "an even number", head_size);
  for (const std::string& other : {fmt::format("attention.value_length{}", suffix),
                                   fmt::format("rope.dimension_count{}", suffix)}) {
    TANDEM_ASSIGN(const int value, keys.optional_int(other, kHeadSize, head_size));
    if (value != head_size) {
      return keys.bad_value(other, fmt::format("{} like \"{}\"", head_size, key), value);
    }
  }
  return head_size;
}

/// Kinds, head counts, head sizes and ffn widths of all layers.
core::Result<std::vector<LayerConfig>> read_layers(const KeyReader& keys) {
  TANDEM_ASSIGN(const int num_layers, keys.required_int("block_count", kLayers));
  const auto n = static_cast<std::size_t>(num_layers);
  TANDEM_ASSIGN(const auto sliding, keys.per_layer("attention.sliding_window_pattern", n, {0, 1}));
  TANDEM_ASSIGN(const auto heads, keys.per_layer("attention.head_count", n, kHeads));
  TANDEM_ASSIGN(const auto kv_heads, keys.per_layer("attention.head_count_kv", n, kHeads));
  TANDEM_ASSIGN(const auto ffn, keys.per_layer("feed_forward_length", n, kFfn));
  std::array<int, kernels::kNumAttentionKinds> head_sizes = {};
  for (AttentionKind kind : kernels::kAttentionKinds) {
    const int is_sliding = kind == AttentionKind::kSliding ? 1 : 0;
    if (std::find(sliding.begin(), sliding.end(), is_sliding) == sliding.end()) continue;
    TANDEM_ASSIGN(head_sizes[index_of(kind)], read_head_size(keys, kind));
  }
  std::vector<LayerConfig> layers(n);
  for (std::size_t l = 0; l < n; ++l) {
    LayerConfig& layer = layers[l];
    layer.kind = sliding[l] != 0 ? AttentionKind::kSliding : AttentionKind::kFull;
    layer.heads = heads[l];
    layer.kv_heads = kv_heads[l];
    layer.head_size = head_sizes[index_of(layer.kind)];
    layer.ffn = ffn[l];
  }
  return layers;
}

/// Number of last layers that own no KV: all of a drafter's.
core::Result<int> read_shared_layers(const KeyReader& keys, const ModelConfig& config) {
  constexpr std::string_view kKey = "attention.shared_kv_layers";
  const int num_layers = static_cast<int>(config.layers.size());
  TANDEM_ASSIGN(const int shared, keys.optional_int(kKey, {0, num_layers}, 0));
  if (config.is_drafter() && shared != num_layers) {
    return keys.bad_value(kKey, fmt::format("{} (every layer of a drafter)", num_layers), shared);
  }
  return shared;
}

/// A KV-owning layer without a v projection takes the raw k projection: the full layers of the
/// 12B, 26B and 31B models. All full layers of a model agree, which tells them from a lost tensor.
core::Status find_value_is_key(const KeyReader& keys, ModelConfig& config) {
  int with_v = 0;
  int without_v = 0;
  for (std::size_t l = 0; l < config.layers.size(); ++l) {
    LayerConfig& layer = config.layers[l];
    if (!layer.owns_kv || layer.kind != AttentionKind::kFull) continue;
    layer.value_is_key = keys.file().find(fmt::format("blk.{}.attn_v.weight", l)) == nullptr &&
                         keys.file().find(fmt::format("blk.{}.attn_qkv.weight", l)) == nullptr;
    ++(layer.value_is_key ? without_v : with_v);
  }
  if (with_v > 0 && without_v > 0) {
    return keys.error(
        fmt::format("tensor \"attn_v.weight\" is missing from {} of {} full layers; "
                    "get the file again",
                    without_v, with_v + without_v));
  }
  return {};
}

core::Status read_rope(const KeyReader& keys, ModelConfig& config) {
  for (const LayerConfig& layer : config.layers) {
    std::vector<float>& frequencies = config.rope_frequencies[index_of(layer.kind)];
    if (!frequencies.empty()) continue;
    if (layer.kind == AttentionKind::kSliding) {
      TANDEM_ASSIGN(const double base, keys.optional_float("rope.freq_base_swa", kRopeBase, 1e4));
      config.rope_bases[index_of(layer.kind)] = base;
      frequencies = rope_frequencies(base, layer.head_size, {});
      continue;
    }
    TANDEM_ASSIGN(const double base, keys.required_float("rope.freq_base", kRopeBase));
    config.rope_bases[index_of(layer.kind)] = base;
    const core::TensorView* view = keys.file().find("rope_freqs.weight");
    if (view == nullptr) {
      if (config.is_drafter()) continue;
      return keys.error("tensor \"rope_freqs.weight\" is missing; convert the model again");
    }
    TANDEM_ASSIGN(const auto factors, read_rope_factors(keys, *view, layer.head_size));
    frequencies = rope_frequencies(base, layer.head_size, factors);
  }
  return {};
}

core::Status read_vocabulary(const KeyReader& keys, ModelConfig& config) {
  const core::TensorView* table = keys.file().find("token_embd.weight");
  if (table == nullptr) {
    return keys.error("tensor \"token_embd.weight\" is missing; the file holds no model");
  }
  if (table->rows() < kVocab.min || table->rows() > kVocab.max) {
    return keys.error(fmt::format("tensor \"token_embd.weight\" has {} rows, expected {} to {}",
                                  table->rows(), kVocab.min, kVocab.max));
  }
  config.vocab = static_cast<int>(table->rows());
  if (!keys.file().has(kSuppressKey)) return {};
  TANDEM_ASSIGN(const auto ids, keys.file().get_ints(kSuppressKey));
  for (std::int64_t id : ids) {
    if (id < 0 || id >= config.vocab) {
      return keys.error(fmt::format("metadata key \"{}\" names token {}, but the vocabulary has {}",
                                    kSuppressKey, id, config.vocab));
    }
    config.suppressed.push_back(static_cast<TokenId>(id));
  }
  return {};
}

/// Router and expert sizes of a mixture-of-experts model; the file may spell them by layer.
core::Status read_experts(const KeyReader& keys, ModelConfig& config) {
  TANDEM_ASSIGN(config.experts, keys.optional_int("expert_count", kExperts, 0));
  if (config.experts == 0) return {};
  const std::pair<std::string_view, std::pair<IntRange, int*>> sizes[] = {
      {"expert_used_count", {{1, config.experts}, &config.experts_per_token}},
      {"expert_feed_forward_length", {kFfn, &config.expert_ffn}},
  };
  for (const auto& [key, size] : sizes) {
    TANDEM_ASSIGN(const auto values, keys.per_layer(key, config.layers.size(), size.first));
    if (std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) != values.end()) {
      return keys.error(
          fmt::format("metadata key \"{}\" differs by layer, which no Gemma 4 does", key));
    }
    *size.second = values.front();
  }
  return {};
}

core::Status read_scalars(const KeyReader& keys, ModelConfig& config) {
  TANDEM_ASSIGN(config.hidden, keys.required_int("embedding_length", kWidth));
  TANDEM_ASSIGN(config.max_context, keys.required_int("context_length", kContext));
  TANDEM_ASSIGN(config.ple_width,
                keys.optional_int("embedding_length_per_layer_input", kPleWidth, 0));
  TANDEM_ASSIGN(const double eps,
                keys.required_float("attention.layer_norm_rms_epsilon", kEpsilon));
  config.rms_eps = static_cast<float>(eps);
  TANDEM_ASSIGN(const double softcap,
                keys.optional_float("final_logit_softcapping", kSoftcap, 0.0));
  config.final_softcap = static_cast<float>(softcap);
  if (config.family != kDrafterFamily) return {};
  TANDEM_ASSIGN(config.centroids_per_token,
                keys.optional_int(kCentroidsKey, {1, kVocab.max}, kCentroidsPerToken));
  TANDEM_ASSIGN(config.backbone_hidden, keys.required_int("embedding_length_out", kWidth));
  if (config.ple_width > 0) {
    return keys.bad_value("embedding_length_per_layer_input", "0 in a drafter", config.ple_width);
  }
  return {};
}

}  // namespace

core::Result<ModelConfig> read_config(const formats::GgufFile& file) {
  ModelConfig config;
  TANDEM_ASSIGN(config.family, file.get_string("general.architecture"));
  if (config.family != kTargetFamily && config.family != kDrafterFamily) {
    return core::unimplemented(
        fmt::format("{}: architecture \"{}\" is not supported; Tandem runs "
                    "gemma4 and gemma4-assistant files",
                    file.path(), core::printable(config.family, 64)));
  }
  if (const auto name = file.get_string("general.name"); name.ok()) config.name = *name;
  const KeyReader keys(file, config.family + ".");
  TANDEM_TRY(read_scalars(keys, config));
  TANDEM_ASSIGN(config.layers, read_layers(keys));
  TANDEM_TRY(read_experts(keys, config));
  const auto is_sliding = [](const LayerConfig& l) {
    return l.kind == AttentionKind::kSliding;
  };
  if (std::any_of(config.layers.begin(), config.layers.end(), is_sliding)) {
    TANDEM_ASSIGN(config.window, keys.required_int("attention.sliding_window", kWindow));
  }
  TANDEM_ASSIGN(const int shared, read_shared_layers(keys, config));
  if (auto status = assign_kv(shared, config); !status.ok()) return keys.error(status.message());
  TANDEM_TRY(find_value_is_key(keys, config));
  TANDEM_TRY(read_rope(keys, config));
  TANDEM_TRY(read_vocabulary(keys, config));
  return config;
}

}  // namespace tandem::model
