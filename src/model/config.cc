#include "tandem/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tandem/model/config_build.h"

namespace tandem::model {

using kernels::AttentionKind;

const char* kind_name(AttentionKind kind) {
  return kind == AttentionKind::kSliding ? "sliding" : "full";
}

std::vector<float> rope_frequencies(double base, int head_size, std::span<const float> factors) {
  // A rotation slower than this is no rotation in f32 at any position we accept. Files mark the
  // dimensions that do not rotate with a factor of 1e30.
  constexpr double kSlowestRotation = 1e-15;
  std::vector<float> frequencies(static_cast<std::size_t>(head_size) / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    double f = std::pow(base, -2.0 * static_cast<double>(i) / head_size);
    if (!factors.empty()) f /= static_cast<double>(factors[i]);
    frequencies[i] = f < kSlowestRotation ? 0.0F : static_cast<float>(f);
  }
  return frequencies;
}

namespace {

core::Status check_heads(const ModelConfig& config) {
  for (std::size_t l = 0; l < config.layers.size(); ++l) {
    const LayerConfig& layer = config.layers[l];
    if (layer.heads % layer.kv_heads == 0) continue;
    return core::data_loss(
        fmt::format("layer {} has {} query heads, not a multiple of its {} KV heads", l,
                    layer.heads, layer.kv_heads));
  }
  return {};
}

}  // namespace

core::Status assign_kv(int shared, ModelConfig& config) {
  TANDEM_TRY(check_heads(config));
  if (config.is_drafter()) {
    for (LayerConfig& layer : config.layers) layer.owns_kv = false;
    return {};
  }
  const int num_layers = static_cast<int>(config.layers.size());
  std::array<int, kernels::kNumAttentionKinds> donor = {-1, -1};
  int num_caches = 0;
  for (int l = 0; l < num_layers; ++l) {
    LayerConfig& layer = config.layers[static_cast<std::size_t>(l)];
    int& last = donor[index_of(layer.kind)];
    layer.owns_kv = l < num_layers - shared;
    if (layer.owns_kv) {
      layer.kv_layer = num_caches++;
      last = l;
      continue;
    }
    if (last < 0) {
      return core::data_loss(
          fmt::format("layer {} shares the KV of a {} layer, but none before it has any", l,
                      kind_name(layer.kind)));
    }
    const LayerConfig& owner = config.layers[static_cast<std::size_t>(last)];
    if (owner.kv_heads != layer.kv_heads || owner.head_size != layer.head_size) {
      return core::data_loss(fmt::format(
          "layer {} has {} KV heads of size {}, but shares the KV of layer {} with {} of size {}",
          l, layer.kv_heads, layer.head_size, last, owner.kv_heads, owner.head_size));
    }
    layer.kv_layer = owner.kv_layer;
  }
  return {};
}

namespace {

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

core::Status check_pair(const ModelConfig& target, const ModelConfig& drafter) {
  if (target.is_drafter()) {
    return core::failed_precondition(
        "the model is a drafter (gemma4-assistant); give it as the draft model and a gemma4 model "
        "as the model");
  }
  if (!drafter.is_drafter()) {
    return core::failed_precondition(
        "the draft model is a target (gemma4), not a drafter; use the gemma4-assistant that was "
        "made for this model");
  }
  TANDEM_TRY(check_equal("target width", drafter.backbone_hidden, target.hidden));
  TANDEM_TRY(check_equal("vocabulary size", drafter.vocab, target.vocab));
  for (std::size_t l = 0; l < drafter.layers.size(); ++l) {
    TANDEM_TRY(check_borrowed_cache(target, drafter.layers[l], static_cast<int>(l)));
  }
  TANDEM_TRY(check_equal("sliding window", drafter.window, target.window));
  for (AttentionKind kind : kernels::kAttentionKinds) {
    const std::vector<float>& frequencies = drafter.rope_frequencies[index_of(kind)];
    if (!frequencies.empty() && frequencies != target.rope_frequencies[index_of(kind)]) {
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
