#include "tandem/model/mtp.h"

#include <utility>

namespace tandem::model {

using kernels::Rows;

MtpDrafter::MtpDrafter(const ModelConfig& target, const ModelConfig& config, DrafterWeights weights,
                       kernels::Backend& backend)
    : backend_(&backend), weights_(std::move(weights)) {
  for (const LayerConfig& layer : config.layers) {
    attention_.push_back({layer.kind, layer.heads, layer.kv_heads, layer.head_size,
                          target.last_kv_layer(layer.kind), /*last_kv_owner=*/false});
  }
}

core::Result<MtpDrafter> MtpDrafter::create(const ModelConfig& target, const ModelConfig& config,
                                            DrafterWeights weights, kernels::Backend& backend,
                                            int max_sequences) {
  MtpDrafter drafter(target, config, std::move(weights), backend);
  TANDEM_ASSIGN(drafter.x_,
                backend.allocate_rows(max_sequences, config.hidden, kernels::RowSet::kDraft));
  return drafter;
}

void MtpDrafter::draft(std::span<const int> rows_of_step) {
  for (std::size_t i = 0; i < rows_of_step.size(); ++i) {
    const Rows x = x_.prefix(rows_of_step[i]);
    backend_->draft_input(weights_.ends, static_cast<int>(i), x);
    for (std::size_t l = 0; l < weights_.layers.size(); ++l) {
      backend_->attention(weights_.layers[l].attention, attention_[l], x);
      backend_->ffn(weights_.layers[l].ffn, weights_.layers[l].scale, x);
    }
    backend_->draft_head(weights_.ends, static_cast<int>(i), x);
  }
}

}  // namespace tandem::model
