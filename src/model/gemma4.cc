#include "tandem/model/gemma4.h"

#include <cmath>
#include <utility>

namespace tandem::model {

using kernels::Rows;
using kernels::RowSet;

Gemma4::Gemma4(const ModelConfig& config, TargetWeights weights, kernels::Backend& backend)
    : backend_(&backend),
      weights_(std::move(weights)),
      embedding_scale_(std::sqrt(static_cast<float>(config.hidden))),
      has_ple_(config.ple_width > 0) {
  const int last_kv_layer = config.num_kv_owners() - 1;
  for (const LayerConfig& layer : config.layers) {
    const bool last_kv_owner = layer.owns_kv && layer.kv_layer == last_kv_layer;
    attention_.push_back(
        {layer.kind, layer.heads, layer.kv_heads, layer.head_size, layer.kv_layer, last_kv_owner});
  }
}

core::Result<Gemma4> Gemma4::create(const ModelConfig& config, TargetWeights weights,
                                    kernels::Backend& backend, int max_rows, int max_kept_rows) {
  Gemma4 model(config, std::move(weights), backend);
  TANDEM_ASSIGN(model.x_, backend.allocate_rows(max_rows, config.hidden, RowSet::kStep));
  TANDEM_ASSIGN(model.h_, backend.allocate_rows(max_kept_rows, config.hidden, RowSet::kStep));
  if (model.has_ple_) {
    const int width = static_cast<int>(config.layers.size()) * config.ple_width;
    TANDEM_ASSIGN(model.ple_, backend.allocate_rows(max_rows, width, RowSet::kStep));
  }
  return model;
}

Rows Gemma4::forward(const kernels::Backend::StepShape& shape) {
  Rows x = x_.prefix(shape.rows);
  backend_->embed(*weights_.embedding, embedding_scale_, x);
  if (has_ple_) backend_->ple_inputs(weights_.ple_inputs, x, ple_.prefix(shape.rows));

  for (std::size_t l = 0; l < weights_.layers.size(); ++l) {
    const LayerWeights& layer = weights_.layers[l];
    backend_->attention(layer.attention, attention_[l], x);
    // From here on nobody reads the other rows: the layers above only read the cache.
    if (attention_[l].last_kv_owner) x = x.prefix(shape.kept_rows);
    if (x.rows == 0) break;
    const float scale = has_ple_ ? 1.0F : layer.scale;
    if (layer.moe.experts.empty()) {
      backend_->ffn(layer.ffn, scale, x);
    } else {
      backend_->moe(layer.moe, scale, x);
    }
    if (has_ple_) {
      backend_->ple(layer.ple, ple_.prefix(x.rows), static_cast<int>(l), layer.scale, x);
    }
  }

  const Rows h = h_.prefix(shape.kept_rows);
  if (h.rows > 0) backend_->final_norm(weights_.head, x, h);
  return h;
}

}  // namespace tandem::model
