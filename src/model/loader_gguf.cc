#include "tandem/model/loader_gguf.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

namespace tandem::model {
namespace {

using kernels::Weight;
using kernels::WeightRole;

/// Finds tensors by name, checks them and hands them to the backend.
class TensorPacker {
 public:
  TensorPacker(const formats::GgufFile& file, kernels::Backend& backend, WeightStorage& storage)
      : file_(file), backend_(backend), storage_(storage) {}

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }

  /// An f32 vector [n].
  core::Status vector(const std::string& name, int n, const Weight*& out) {
    TANDEM_ASSIGN(const core::TensorView* view, find(name, 1, n));
    TANDEM_TRY(check_f32(name, *view));
    return pack(name, *view, WeightRole::kVector, out);
  }

  /// A matrix [rows, cols] of any type that the backend can run.
  core::Status matrix(const std::string& name, std::int64_t rows, std::int64_t cols,
                      WeightRole role, const Weight*& out) {
    TANDEM_ASSIGN(const core::TensorView* view, find(name, rows, cols));
    return pack(name, *view, role, out);
  }

  core::Status linear(const std::string& name, std::int64_t rows, std::int64_t cols,
                      const Weight*& out) {
    return matrix(name, rows, cols, WeightRole::kLinear, out);
  }

  /// One f32 value; `out` stays as it is if the file has none.
  core::Status optional_scalar(const std::string& name, float& out) {
    if (!has(name)) return {};
    TANDEM_ASSIGN(const core::TensorView* view, find(name, 1, 1));
    TANDEM_TRY(check_f32(name, *view));
    std::memcpy(&out, view->data, sizeof(out));
    if (std::isfinite(out)) return {};
    return error(fmt::format("tensor \"{}\" is not a finite number", name));
  }

  core::Status unsupported(std::string_view message) const {
    return core::unimplemented(fmt::format("{}: {}", file_.path(), message));
  }

 private:
  core::Status error(std::string_view message) const {
    return core::data_loss(
        fmt::format("{}: {}; the file is damaged, get it again", file_.path(), message));
  }

  core::Result<const core::TensorView*> find(const std::string& name, std::int64_t rows,
                                             std::int64_t cols) const {
    const core::TensorView* view = file_.find(name);
    if (view == nullptr) return error(fmt::format("tensor \"{}\" is missing", name));
    if (view->rank <= 2 && view->rows() == rows && view->cols() == cols) return view;
    return error(fmt::format("tensor \"{}\" has {} x {} values, expected {} x {} (rows x columns)",
                             name, view->rows(), view->cols(), rows, cols));
  }

  core::Status check_f32(const std::string& name, const core::TensorView& view) const {
    if (view.dtype == core::DType::kF32) return {};
    return error(fmt::format("tensor \"{}\" must be F32, but is {}", name, core::name(view.dtype)));
  }

  core::Status pack(const std::string& name, const core::TensorView& view, WeightRole role,
                    const Weight*& out) {
    auto packed = backend_.pack(view, role, name);
    if (!packed.ok()) return packed.status().with_context(file_.path());
    if (role != WeightRole::kTable) file_.forget(view);
    storage_.push_back(std::move(packed).value());
    out = storage_.back().get();
    return {};
  }

  const formats::GgufFile& file_;
  kernels::Backend& backend_;
  WeightStorage& storage_;
};

std::string block(std::size_t layer, std::string_view name) {
  return fmt::format("blk.{}.{}.weight", layer, name);
}

/// Tensors k, v and k_norm of a layer that shares KV may be in the file; nothing reads them.
core::Status load_attention(TensorPacker& pack, std::size_t l, const LayerConfig& layer, int hidden,
                            kernels::AttentionWeights& w) {
  const int q_size = layer.heads * layer.head_size;
  const int kv_size = layer.kv_heads * layer.head_size;
  if (pack.has(block(l, "attn_qkv"))) {
    return pack.unsupported(
        fmt::format("tensor \"{}\" joins q, k and v; use a file with separate "
                    "attn_q, attn_k and attn_v tensors",
                    block(l, "attn_qkv")));
  }
  TANDEM_TRY(pack.vector(block(l, "attn_norm"), hidden, w.norm));
  TANDEM_TRY(pack.linear(block(l, "attn_q"), q_size, hidden, w.q));
  TANDEM_TRY(pack.vector(block(l, "attn_q_norm"), layer.head_size, w.q_norm));
  if (layer.owns_kv) {
    TANDEM_TRY(pack.linear(block(l, "attn_k"), kv_size, hidden, w.k));
    TANDEM_TRY(pack.vector(block(l, "attn_k_norm"), layer.head_size, w.k_norm));
    if (!layer.value_is_key) TANDEM_TRY(pack.linear(block(l, "attn_v"), kv_size, hidden, w.v));
  }
  TANDEM_TRY(pack.linear(block(l, "attn_output"), hidden, q_size, w.out));
  return pack.vector(block(l, "post_attention_norm"), hidden, w.post_norm);
}

core::Status load_ffn(TensorPacker& pack, std::size_t l, int ffn, int hidden,
                      kernels::FfnWeights& w) {
  TANDEM_TRY(pack.vector(block(l, "ffn_norm"), hidden, w.norm));
  TANDEM_TRY(pack.linear(block(l, "ffn_gate"), ffn, hidden, w.gate));
  TANDEM_TRY(pack.linear(block(l, "ffn_up"), ffn, hidden, w.up));
  TANDEM_TRY(pack.linear(block(l, "ffn_down"), hidden, ffn, w.down));
  return pack.vector(block(l, "post_ffw_norm"), hidden, w.post_norm);
}

core::Status load_ple(TensorPacker& pack, std::size_t l, int ple_width, int hidden,
                      kernels::PleLayerWeights& w) {
  TANDEM_TRY(pack.linear(block(l, "inp_gate"), ple_width, hidden, w.gate));
  TANDEM_TRY(pack.linear(block(l, "proj"), hidden, ple_width, w.projection));
  return pack.vector(block(l, "post_norm"), hidden, w.post_norm);
}

core::Status load_layers(TensorPacker& pack, const ModelConfig& config,
                         std::vector<LayerWeights>& layers) {
  layers.resize(config.layers.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    LayerWeights& w = layers[l];
    TANDEM_TRY(load_attention(pack, l, config.layers[l], config.hidden, w.attention));
    TANDEM_TRY(load_ffn(pack, l, config.layers[l].ffn, config.hidden, w.ffn));
    if (config.ple_width > 0) {
      TANDEM_TRY(load_ple(pack, l, config.ple_width, config.hidden, w.ple));
    }
    TANDEM_TRY(pack.optional_scalar(block(l, "layer_output_scale"), w.scale));
  }
  return {};
}

core::Status load_ple_inputs(TensorPacker& pack, const ModelConfig& config,
                             kernels::PleInputWeights& w) {
  const std::int64_t width =
      static_cast<std::int64_t>(config.layers.size()) * config.ple_width;  // L*P
  TANDEM_TRY(
      pack.matrix("per_layer_token_embd.weight", config.vocab, width, WeightRole::kTable, w.table));
  TANDEM_TRY(pack.linear("per_layer_model_proj.weight", width, config.hidden, w.projection));
  return pack.vector("per_layer_proj_norm.weight", config.ple_width, w.norm);
}

}  // namespace

core::Result<TargetWeights> load_target(const formats::GgufFile& file, const ModelConfig& config,
                                        kernels::Backend& backend) {
  TargetWeights w;
  TensorPacker pack(file, backend, w.storage);
  const bool tied = !pack.has("output.weight");
  TANDEM_TRY(pack.matrix("token_embd.weight", config.vocab, config.hidden,
                         tied ? WeightRole::kTableAndHead : WeightRole::kTable, w.embedding));
  w.head.table = w.embedding;
  if (!tied) {
    TANDEM_TRY(pack.linear("output.weight", config.vocab, config.hidden, w.head.table));
  }
  TANDEM_TRY(pack.vector("output_norm.weight", config.hidden, w.head.norm));
  w.head.softcap = config.final_softcap;
  if (config.ple_width > 0) TANDEM_TRY(load_ple_inputs(pack, config, w.ple_inputs));
  TANDEM_TRY(load_layers(pack, config, w.layers));
  return w;
}

core::Result<DrafterWeights> load_drafter(const formats::GgufFile& file, const ModelConfig& config,
                                          const TargetWeights& target, kernels::Backend& backend) {
  DrafterWeights w;
  TensorPacker pack(file, backend, w.storage);
  kernels::DraftWeights& ends = w.ends;
  ends.target_embedding = target.embedding;
  ends.embedding_scale = std::sqrt(static_cast<float>(config.backbone_hidden));
  TANDEM_TRY(pack.linear("nextn.pre_projection.weight", config.hidden, 2 * config.backbone_hidden,
                         ends.pre_projection));
  TANDEM_TRY(pack.linear("nextn.post_projection.weight", config.backbone_hidden, config.hidden,
                         ends.post_projection));
  TANDEM_TRY(pack.linear("token_embd.weight", config.vocab, config.hidden, ends.head.table));
  TANDEM_TRY(pack.vector("output_norm.weight", config.hidden, ends.head.norm));
  TANDEM_TRY(load_layers(pack, config, w.layers));
  return w;
}

}  // namespace tandem::model
