#include "tandem/model/loader.h"

#include <cmath>

#include "tandem/model/load_draft_head.h"
#include "tandem/model/load_moe.h"
#include "tandem/model/tensor_packer.h"

namespace tandem::model {
namespace {

using kernels::Weight;
using kernels::WeightRole;

core::Status load_qkv(TensorPacker& pack, int l, const LayerConfig& layer, int hidden,
                      kernels::AttentionWeights& w) {
  const int kv_size = layer.kv_heads * layer.head_size;
  TANDEM_TRY(pack.linear({TensorRole::kQuery, l}, layer.heads * layer.head_size, hidden, w.q));
  if (!layer.owns_kv) return {};
  TANDEM_TRY(pack.linear({TensorRole::kKey, l}, kv_size, hidden, w.k));
  return layer.value_is_key ? core::Status()
                            : pack.linear({TensorRole::kValue, l}, kv_size, hidden, w.v);
}

/// One tensor [(H + 2G) D, E] with the rows of q, k and v.
core::Status load_joined_qkv(TensorPacker& pack, int l, const LayerConfig& layer, int hidden,
                             kernels::AttentionWeights& w) {
  const TensorKey key = {TensorRole::kQueryKeyValue, l};
  const std::int64_t q_size = layer.heads * layer.head_size;
  const std::int64_t kv_size = layer.kv_heads * layer.head_size;
  TANDEM_ASSIGN(const kernels::WeightView joined, pack.find(key, q_size + 2 * kv_size, hidden));
  const auto part = [&](std::int64_t first, std::int64_t count, const Weight*& out) {
    return pack.pack(key, joined.slice(first, count), WeightRole::kLinear, out);
  };
  TANDEM_TRY(part(0, q_size, w.q));
  if (!layer.owns_kv) return {};
  TANDEM_TRY(part(q_size, kv_size, w.k));
  return part(q_size + kv_size, kv_size, w.v);
}

/// Tensors k, v and k_norm of a layer that shares KV may be in the files; nothing reads them.
core::Status load_attention(TensorPacker& pack, int l, const LayerConfig& layer, int hidden,
                            kernels::AttentionWeights& w) {
  TANDEM_TRY(pack.vector({TensorRole::kAttentionNorm, l}, hidden, w.norm));
  TANDEM_TRY(pack.has({TensorRole::kQueryKeyValue, l}) ? load_joined_qkv(pack, l, layer, hidden, w)
                                                       : load_qkv(pack, l, layer, hidden, w));
  TANDEM_TRY(pack.vector({TensorRole::kQueryNorm, l}, layer.head_size, w.q_norm));
  if (layer.owns_kv) TANDEM_TRY(pack.vector({TensorRole::kKeyNorm, l}, layer.head_size, w.k_norm));
  const int q_size = layer.heads * layer.head_size;
  TANDEM_TRY(pack.linear({TensorRole::kAttentionOutput, l}, hidden, q_size, w.out));
  return pack.vector({TensorRole::kPostAttentionNorm, l}, hidden, w.post_norm);
}

core::Status load_ffn(TensorPacker& pack, int l, int ffn, int hidden, kernels::FfnWeights& w) {
  TANDEM_TRY(pack.vector({TensorRole::kFfnNorm, l}, hidden, w.norm));
  TANDEM_TRY(pack.linear({TensorRole::kGate, l}, ffn, hidden, w.gate));
  TANDEM_TRY(pack.linear({TensorRole::kUp, l}, ffn, hidden, w.up));
  TANDEM_TRY(pack.linear({TensorRole::kDown, l}, hidden, ffn, w.down));
  return pack.vector({TensorRole::kPostFfnNorm, l}, hidden, w.post_norm);
}

core::Status load_ple(TensorPacker& pack, int l, int ple_width, int hidden,
                      kernels::PleLayerWeights& w) {
  TANDEM_TRY(pack.linear({TensorRole::kPleGate, l}, ple_width, hidden, w.gate));
  TANDEM_TRY(pack.linear({TensorRole::kPleOutput, l}, hidden, ple_width, w.projection));
  return pack.vector({TensorRole::kPostPleNorm, l}, hidden, w.post_norm);
}

core::Status load_layers(TensorPacker& pack, const ModelConfig& config,
                         std::vector<LayerWeights>& layers) {
  layers.resize(config.layers.size());
  for (int l = 0; l < static_cast<int>(layers.size()); ++l) {
    const LayerConfig& layer = config.layers[static_cast<std::size_t>(l)];
    LayerWeights& w = layers[static_cast<std::size_t>(l)];
    TANDEM_TRY(load_attention(pack, l, layer, config.hidden, w.attention));
    TANDEM_TRY(load_ffn(pack, l, layer.ffn, config.hidden, w.ffn));
    if (config.experts > 0) TANDEM_TRY(load_moe(pack, l, config, w.ffn, w.moe));
    if (config.ple_width > 0) {
      TANDEM_TRY(load_ple(pack, l, config.ple_width, config.hidden, w.ple));
    }
    TANDEM_TRY(pack.optional_scalar({TensorRole::kLayerScale, l}, w.scale));
  }
  return {};
}

core::Status load_ple_inputs(TensorPacker& pack, const ModelConfig& config,
                             kernels::PleInputWeights& w) {
  const std::int64_t width =
      static_cast<std::int64_t>(config.layers.size()) * config.ple_width;  // L*P
  TANDEM_TRY(
      pack.matrix({TensorRole::kPleTable}, config.vocab, width, WeightRole::kTable, w.table));
  TANDEM_TRY(pack.linear({TensorRole::kPleProjection}, width, config.hidden, w.projection));
  return pack.vector({TensorRole::kPleNorm}, config.ple_width, w.norm);
}

}  // namespace

core::Result<TargetWeights> load_target(const ModelFiles& files, const ModelConfig& config,
                                        kernels::Backend& backend) {
  TargetWeights w;
  TensorPacker pack(files, backend, w.storage);
  const bool tied = !pack.has({TensorRole::kOutput});
  TANDEM_TRY(pack.matrix({TensorRole::kEmbedding}, config.vocab, config.hidden,
                         tied ? WeightRole::kTableAndHead : WeightRole::kTable, w.embedding));
  w.head.table = w.embedding;
  if (!tied) {
    TANDEM_TRY(pack.matrix({TensorRole::kOutput}, config.vocab, config.hidden, WeightRole::kHead,
                           w.head.table));
  }
  TANDEM_TRY(pack.vector({TensorRole::kOutputNorm}, config.hidden, w.head.norm));
  w.head.softcap = config.final_softcap;
  if (config.ple_width > 0) TANDEM_TRY(load_ple_inputs(pack, config, w.ple_inputs));
  TANDEM_TRY(load_layers(pack, config, w.layers));
  return w;
}

core::Result<DrafterWeights> load_drafter(const ModelFiles& files, const ModelConfig& config,
                                          const TargetWeights& target, kernels::Backend& backend,
                                          DraftHead head) {
  DrafterWeights w;
  TensorPacker pack(files, backend, w.storage);
  kernels::DraftWeights& ends = w.ends;
  ends.target_embedding = target.embedding;
  ends.embedding_scale = std::sqrt(static_cast<float>(config.backbone_hidden));
  TANDEM_TRY(pack.linear({TensorRole::kPreProjection}, config.hidden, 2 * config.backbone_hidden,
                         ends.pre_projection));
  TANDEM_TRY(pack.linear({TensorRole::kPostProjection}, config.backbone_hidden, config.hidden,
                         ends.post_projection));
  TANDEM_TRY(load_draft_head(pack, config, head, ends));
  TANDEM_TRY(pack.vector({TensorRole::kOutputNorm}, config.hidden, ends.head.norm));
  TANDEM_TRY(load_layers(pack, config, w.layers));
  return w;
}

}  // namespace tandem::model
