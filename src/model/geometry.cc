#include "tandem/model/geometry.h"

#include <algorithm>

namespace tandem::model {
namespace {

/// Raises the geometry's bounds on products to what the layers of a target or drafter need.
void bound_products(const ModelConfig& config, kernels::Geometry& geometry) {
  const auto raise = [&geometry](int inputs, int outputs) {
    geometry.max_inputs = std::max(geometry.max_inputs, inputs);
    geometry.max_outputs = std::max(geometry.max_outputs, outputs);
  };
  raise(config.hidden, static_cast<int>(config.layers.size()) * config.ple_width);
  raise(2 * config.backbone_hidden, config.backbone_hidden);  // a drafter's ends
  raise(config.expert_ffn, 2 * config.expert_ffn);
  for (const LayerConfig& layer : config.layers) {
    raise(layer.heads * layer.head_size, (layer.heads + 2 * layer.kv_heads) * layer.head_size);
    raise(layer.ffn, 2 * layer.ffn);
  }
}

}  // namespace

kernels::Geometry geometry_of(const ModelConfig& target, const ModelConfig* drafter) {
  kernels::Geometry geometry;
  geometry.hidden = target.hidden;
  geometry.vocab = target.vocab;
  geometry.kv_layers = target.kv_layers();
  geometry.window = target.window;
  geometry.rope_frequencies = target.rope_frequencies;
  geometry.suppressed = target.suppressed;
  geometry.rms_eps = target.rms_eps;
  geometry.max_context = target.max_context;
  geometry.top_experts = target.experts_per_token;
  geometry.expert_ffn = target.expert_ffn;
  bound_products(target, geometry);
  if (drafter != nullptr) bound_products(*drafter, geometry);
  return geometry;
}

}  // namespace tandem::model
