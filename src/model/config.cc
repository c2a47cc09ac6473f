#include "tandem/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "tandem/model/key_reader.h"

namespace tandem::model {
namespace {

using kernels::AttentionKind;

// Bounds far beyond any released size. They keep every product of two dimensions inside an int, so
// that nothing after this file needs checked arithmetic for shapes.
constexpr IntRange kLayers = {1, 1024};
constexpr IntRange kWidth = {1, 1 << 16};
constexpr IntRange kFfn = {1, 1 << 20};
constexpr IntRange kHeads = {1, 1 << 10};
constexpr IntRange kHeadSize = {2, 1 << 11};
constexpr IntRange kPleWidth = {0, 1 << 12};
constexpr IntRange kContext = {1, 1 << 24};
constexpr IntRange kExperts = {0, 1 << 12};
constexpr std::int64_t kMaxVocab = 1 << 22;

constexpr std::size_t index(AttentionKind kind) {
  return static_cast<std::size_t>(kind);
}

const char* kind_name(AttentionKind kind) {
  return kind == AttentionKind::kSliding ? "sliding" : "full";
}

// A rotation slower than this is no rotation in f32 at any position we accept. Files mark the
// dimensions that do not rotate with a factor of 1e30.
constexpr double kSlowestRotation = 1e-15;

/// f_i = base^(-2i/D) / factor_i, spec/model.md section 5.2. `factors` is empty or [D/2].
std::vector<float> rope_frequencies(double base, int head_size, std::span<const float> factors) {
  std::vector<float> frequencies(static_cast<std::size_t>(head_size) / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    double f = std::pow(base, -2.0 * static_cast<double>(i) / head_size);
    if (!factors.empty()) f /= static_cast<double>(factors[i]);
    frequencies[i] = f < kSlowestRotation ? 0.0F : static_cast<float>(f);
  }
  return frequencies;
}

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
  for (AttentionKind kind : {AttentionKind::kSliding, AttentionKind::kFull}) {
    const int is_sliding = kind == AttentionKind::kSliding ? 1 : 0;
    if (std::find(sliding.begin(), sliding.end(), is_sliding) == sliding.end()) continue;
    TANDEM_ASSIGN(head_sizes[index(kind)], read_head_size(keys, kind));
  }
  std::vector<LayerConfig> layers(n);
  for (std::size_t l = 0; l < n; ++l) {
    LayerConfig& layer = layers[l];
    layer.kind = sliding[l] != 0 ? AttentionKind::kSliding : AttentionKind::kFull;
    layer.heads = heads[l];
    layer.kv_heads = kv_heads[l];
    layer.head_size = head_sizes[index(layer.kind)];
    layer.ffn = ffn[l];
    if (layer.heads % layer.kv_heads != 0) {
      return keys.error(
          fmt::format("layer {} has {} query heads, not a multiple of its {} KV heads", l,
                      layer.heads, layer.kv_heads));
    }
  }
  return layers;
}

/// Says which layers own KV and which cache the others read, spec/model.md section 6.
core::Status assign_kv(const KeyReader& keys, ModelConfig& config) {
  const int num_layers = static_cast<int>(config.layers.size());
  TANDEM_ASSIGN(const int shared,
                keys.optional_int("attention.shared_kv_layers", {0, num_layers}, 0));
  if (config.is_drafter()) {
    if (shared != num_layers) {
      return keys.bad_value("attention.shared_kv_layers",
                            fmt::format("{} (every layer of a drafter)", num_layers), shared);
    }
    for (LayerConfig& layer : config.layers) layer.owns_kv = false;
    return {};
  }
  std::array<int, kernels::kNumAttentionKinds> donor = {-1, -1};
  int num_caches = 0;
  for (int l = 0; l < num_layers; ++l) {
    LayerConfig& layer = config.layers[static_cast<std::size_t>(l)];
    int& last = donor[index(layer.kind)];
    layer.owns_kv = l < num_layers - shared;
    if (layer.owns_kv) {
      layer.kv_layer = num_caches++;
      last = l;
      continue;
    }
    if (last < 0) {
      return keys.error(
          fmt::format("layer {} shares the KV of a {} layer, but none before it has "
                      "any",
                      l, kind_name(layer.kind)));
    }
    const LayerConfig& owner = config.layers[static_cast<std::size_t>(last)];
    if (owner.kv_heads != layer.kv_heads) {
      return keys.error(
          fmt::format("layer {} has {} KV heads, but shares the KV of layer {} with "
                      "{}",
                      l, layer.kv_heads, last, owner.kv_heads));
    }
    layer.kv_layer = owner.kv_layer;
  }
  return {};
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
    std::vector<float>& frequencies = config.rope_frequencies[index(layer.kind)];
    if (!frequencies.empty()) continue;
    if (layer.kind == AttentionKind::kSliding) {
      TANDEM_ASSIGN(const double base, keys.optional_float("rope.freq_base_swa", {1.0, 1e12}, 1e4));
      frequencies = rope_frequencies(base, layer.head_size, {});
      continue;
    }
    TANDEM_ASSIGN(const double base, keys.required_float("rope.freq_base", {1.0, 1e12}));
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
  if (table->rows() < 1 || table->rows() > kMaxVocab) {
    return keys.error(fmt::format("tensor \"token_embd.weight\" has {} rows, expected 1 to {}",
                                  table->rows(), kMaxVocab));
  }
  config.vocab = static_cast<int>(table->rows());
  constexpr std::string_view kSuppressKey = "tokenizer.ggml.suppress_tokens";
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

core::Status read_scalars(const KeyReader& keys, ModelConfig& config) {
  TANDEM_ASSIGN(config.experts, keys.optional_int("expert_count", kExperts, 0));
  if (config.experts > 0) {
    return core::unimplemented(fmt::format(
        "{}: this is a mixture-of-experts model ({} experts), which Tandem does not run yet; use "
        "an E2B, E4B, 12B or 31B file",
        keys.file().path(), config.experts));
  }
  TANDEM_ASSIGN(config.hidden, keys.required_int("embedding_length", kWidth));
  TANDEM_ASSIGN(config.max_context, keys.required_int("context_length", kContext));
  TANDEM_ASSIGN(config.ple_width,
                keys.optional_int("embedding_length_per_layer_input", kPleWidth, 0));
  TANDEM_ASSIGN(const double eps,
                keys.required_float("attention.layer_norm_rms_epsilon", {1e-12, 1e-2}));
  config.rms_eps = static_cast<float>(eps);
  TANDEM_ASSIGN(const double softcap,
                keys.optional_float("final_logit_softcapping", {0.0, 1e6}, 0.0));
  config.final_softcap = static_cast<float>(softcap);
  const bool is_drafter = config.family == "gemma4-assistant";
  if (!is_drafter) return {};
  TANDEM_ASSIGN(config.backbone_hidden, keys.required_int("embedding_length_out", kWidth));
  if (config.ple_width > 0) {
    return keys.bad_value("embedding_length_per_layer_input", "0 in a drafter", config.ple_width);
  }
  return {};
}

/// "the drafter's WHAT is A, the target's B" unless the two are equal.
core::Status check_equal(std::string_view what, int drafter, int target) {
  if (drafter == target) return {};
  return core::failed_precondition(
      fmt::format("the drafter does not fit the target: its {} is {}, the target's is {}; use the "
                  "drafter that was made for this model",
                  what, drafter, target));
}

core::Status check_borrowed_cache(const ModelConfig& target, const LayerConfig& layer, int l) {
  const int kv_layer = target.last_kv_layer(layer.kind);
  if (kv_layer < 0) {
    return core::failed_precondition(
        fmt::format("the drafter does not fit the target: its layer {} reads a {} KV cache, but "
                    "the target has none; use the drafter that was made for this model",
                    l, kind_name(layer.kind)));
  }
  const kernels::KvLayerSpec cache = target.kv_layers()[static_cast<std::size_t>(kv_layer)];
  TANDEM_TRY(check_equal(fmt::format("{} head size", kind_name(layer.kind)), layer.head_size,
                         cache.head_size));
  return check_equal(fmt::format("number of {} KV heads", kind_name(layer.kind)), layer.kv_heads,
                     cache.kv_heads);
}

}  // namespace

int ModelConfig::num_kv_owners() const {
  const auto owns = [](const LayerConfig& layer) {
    return layer.owns_kv;
  };
  return static_cast<int>(std::count_if(layers.begin(), layers.end(), owns));
}

std::vector<kernels::KvLayerSpec> ModelConfig::kv_layers() const {
  std::vector<kernels::KvLayerSpec> specs;
  for (const LayerConfig& layer : layers) {
    if (layer.owns_kv) specs.push_back({layer.kind, layer.kv_heads, layer.head_size});
  }
  return specs;
}

int ModelConfig::last_kv_layer(AttentionKind kind) const {
  int last = -1;
  for (const LayerConfig& layer : layers) {
    if (layer.owns_kv && layer.kind == kind) last = layer.kv_layer;
  }
  return last;
}

core::Result<ModelConfig> read_config(const formats::GgufFile& file) {
  ModelConfig config;
  TANDEM_ASSIGN(config.family, file.get_string("general.architecture"));
  if (config.family != "gemma4" && config.family != "gemma4-assistant") {
    return core::unimplemented(
        fmt::format("{}: architecture \"{}\" is not supported; Tandem runs "
                    "gemma4 and gemma4-assistant files",
                    file.path(), config.family));
  }
  if (const auto name = file.get_string("general.name"); name.ok()) config.name = *name;
  const KeyReader keys(file, config.family + ".");
  TANDEM_TRY(read_scalars(keys, config));
  TANDEM_ASSIGN(config.layers, read_layers(keys));
  const auto is_sliding = [](const LayerConfig& l) {
    return l.kind == AttentionKind::kSliding;
  };
  if (std::any_of(config.layers.begin(), config.layers.end(), is_sliding)) {
    TANDEM_ASSIGN(config.window, keys.required_int("attention.sliding_window", kContext));
  }
  TANDEM_TRY(assign_kv(keys, config));
  TANDEM_TRY(find_value_is_key(keys, config));
  TANDEM_TRY(read_rope(keys, config));
  TANDEM_TRY(read_vocabulary(keys, config));
  return config;
}

core::Status check_pair(const ModelConfig& target, const ModelConfig& drafter) {
  if (target.is_drafter()) {
    return core::failed_precondition(
        "the model file holds a drafter (gemma4-assistant); give it as the draft model and a "
        "gemma4 file as the model");
  }
  if (!drafter.is_drafter()) {
    return core::failed_precondition(
        "the draft file holds a target model (gemma4), not a drafter; use the "
        "gemma4-assistant file that was made for this model");
  }
  TANDEM_TRY(check_equal("target width", drafter.backbone_hidden, target.hidden));
  TANDEM_TRY(check_equal("vocabulary size", drafter.vocab, target.vocab));
  for (std::size_t l = 0; l < drafter.layers.size(); ++l) {
    TANDEM_TRY(check_borrowed_cache(target, drafter.layers[l], static_cast<int>(l)));
  }
  TANDEM_TRY(check_equal("sliding window", drafter.window, target.window));
  for (AttentionKind kind : {AttentionKind::kSliding, AttentionKind::kFull}) {
    const std::vector<float>& frequencies = drafter.rope_frequencies[index(kind)];
    if (!frequencies.empty() && frequencies != target.rope_frequencies[index(kind)]) {
      return core::failed_precondition(
          fmt::format("the drafter does not fit the target: its rotary frequencies of {} layers "
                      "differ; use the drafter that was made for this model",
                      kind_name(kind)));
    }
  }
  if (drafter.rms_eps != target.rms_eps) {
    return core::failed_precondition(
        fmt::format("the drafter does not fit the target: its RMS epsilon is {}, the target's is "
                    "{}; use the drafter that was made for this model",
                    drafter.rms_eps, target.rms_eps));
  }
  return {};
}

}  // namespace tandem::model
