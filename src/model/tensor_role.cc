#include "tandem/model/tensor_role.h"

#include <fmt/format.h>

#include <iterator>

namespace tandem::model {
namespace {

struct Names {
  TensorRole role;
  std::string_view gguf;
  /// After the text model's prefix; a leading "/" means that there is none.
  std::string_view hf;
};

// The first {} is the layer's number, the second the expert's.
constexpr Names kNames[] = {
    {TensorRole::kEmbedding, "token_embd.weight", "embed_tokens.weight"},
    {TensorRole::kOutput, "output.weight", "/lm_head.weight"},
    {TensorRole::kOutputNorm, "output_norm.weight", "norm.weight"},
    {TensorRole::kPleTable, "per_layer_token_embd.weight", "embed_tokens_per_layer.weight"},
    {TensorRole::kPleProjection, "per_layer_model_proj.weight",
     "per_layer_model_projection.weight"},
    {TensorRole::kPleNorm, "per_layer_proj_norm.weight", "per_layer_projection_norm.weight"},
    {TensorRole::kPreProjection, "nextn.pre_projection.weight", "/pre_projection.weight"},
    {TensorRole::kPostProjection, "nextn.post_projection.weight", "/post_projection.weight"},
    {TensorRole::kCentroids, "masked_embd_centroids.weight", "/masked_embedding.centroids.weight"},
    {TensorRole::kTokenOrdering, "masked_embd_ordering", "/masked_embedding.token_ordering"},
    {TensorRole::kAttentionNorm, "blk.{}.attn_norm.weight", "layers.{}.input_layernorm.weight"},
    {TensorRole::kQuery, "blk.{}.attn_q.weight", "layers.{}.self_attn.q_proj.weight"},
    {TensorRole::kKey, "blk.{}.attn_k.weight", "layers.{}.self_attn.k_proj.weight"},
    {TensorRole::kValue, "blk.{}.attn_v.weight", "layers.{}.self_attn.v_proj.weight"},
    {TensorRole::kQueryKeyValue, "blk.{}.attn_qkv.weight", ""},
    {TensorRole::kQueryNorm, "blk.{}.attn_q_norm.weight", "layers.{}.self_attn.q_norm.weight"},
    {TensorRole::kKeyNorm, "blk.{}.attn_k_norm.weight", "layers.{}.self_attn.k_norm.weight"},
    {TensorRole::kAttentionOutput, "blk.{}.attn_output.weight",
     "layers.{}.self_attn.o_proj.weight"},
    {TensorRole::kPostAttentionNorm, "blk.{}.post_attention_norm.weight",
     "layers.{}.post_attention_layernorm.weight"},
    {TensorRole::kFfnNorm, "blk.{}.ffn_norm.weight", "layers.{}.pre_feedforward_layernorm.weight"},
    {TensorRole::kGate, "blk.{}.ffn_gate.weight", "layers.{}.mlp.gate_proj.weight"},
    {TensorRole::kUp, "blk.{}.ffn_up.weight", "layers.{}.mlp.up_proj.weight"},
    {TensorRole::kDown, "blk.{}.ffn_down.weight", "layers.{}.mlp.down_proj.weight"},
    {TensorRole::kPostFfnNorm, "blk.{}.post_ffw_norm.weight",
     "layers.{}.post_feedforward_layernorm.weight"},
    {TensorRole::kLayerScale, "blk.{}.layer_output_scale.weight", "layers.{}.layer_scalar"},
    {TensorRole::kPleGate, "blk.{}.inp_gate.weight", "layers.{}.per_layer_input_gate.weight"},
    {TensorRole::kPleOutput, "blk.{}.proj.weight", "layers.{}.per_layer_projection.weight"},
    {TensorRole::kPostPleNorm, "blk.{}.post_norm.weight",
     "layers.{}.post_per_layer_input_norm.weight"},
    {TensorRole::kRouter, "blk.{}.ffn_gate_inp.weight", "layers.{}.router.proj.weight"},
    {TensorRole::kRouterScale, "blk.{}.ffn_gate_inp.scale", "layers.{}.router.scale"},
    {TensorRole::kExpertScale, "blk.{}.ffn_down_exps.scale", "layers.{}.router.per_expert_scale"},
    {TensorRole::kExpertsGateUp, "blk.{}.ffn_gate_up_exps.weight",
     "layers.{}.experts.gate_up_proj"},
    {TensorRole::kExpertsGate, "blk.{}.ffn_gate_exps.weight", ""},
    {TensorRole::kExpertsUp, "blk.{}.ffn_up_exps.weight", ""},
    {TensorRole::kExpertsDown, "blk.{}.ffn_down_exps.weight", "layers.{}.experts.down_proj"},
    {TensorRole::kExpertGate, "", "layers.{}.experts.{}.gate_proj.weight"},
    {TensorRole::kExpertUp, "", "layers.{}.experts.{}.up_proj.weight"},
    {TensorRole::kExpertDown, "", "layers.{}.experts.{}.down_proj.weight"},
    {TensorRole::kExpertsNorm, "blk.{}.pre_ffw_norm_2.weight",
     "layers.{}.pre_feedforward_layernorm_2.weight"},
    {TensorRole::kPostDenseNorm, "blk.{}.post_ffw_norm_1.weight",
     "layers.{}.post_feedforward_layernorm_1.weight"},
    {TensorRole::kPostExpertsNorm, "blk.{}.post_ffw_norm_2.weight",
     "layers.{}.post_feedforward_layernorm_2.weight"},
};

constexpr bool is_indexed_by_role() {
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (static_cast<std::size_t>(kNames[i].role) != i) return false;
  }
  return std::size(kNames) == static_cast<std::size_t>(TensorRole::kPostExpertsNorm) + 1;
}
static_assert(is_indexed_by_role());

}  // namespace

std::string gguf_name(TensorKey key) {
  const std::string_view name = kNames[static_cast<std::size_t>(key.role)].gguf;
  return fmt::format(fmt::runtime(name), key.layer);
}

std::string hf_name(TensorKey key, std::string_view prefix) {
  std::string_view name = kNames[static_cast<std::size_t>(key.role)].hf;
  if (name.empty()) return "";
  if (name.starts_with('/')) {
    name.remove_prefix(1);
    prefix = {};
  }
  return std::string(prefix) + fmt::format(fmt::runtime(name), key.layer, key.expert);
}

}  // namespace tandem::model
