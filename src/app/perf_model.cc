// What `tandem perf` measures: weights of a model, or of E4B's shapes.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "tandem/app/perf_table.h"
#include "tandem/app/perf_weights.h"
#include "tandem/model/config_build.h"
#include "tandem/model/geometry.h"
#include "tandem/model/loader.h"

namespace tandem::app {
namespace {

using kernels::AttentionKind;
using kernels::Weight;
using kernels::WeightRole;
using model::LayerConfig;
using model::LayerWeights;

kernels::AttentionSpec attention_spec(const LayerConfig& layer) {
  return {layer.kind, layer.heads, layer.kv_heads, layer.head_size, layer.kv_layer, false};
}

/// Packs random weights into a model.
class Builder {
 public:
  Builder(kernels::Backend& backend, PerfModel& model) : backend_(backend), model_(model) {}

  core::Status linear(const RandomWeight& w, const Weight*& out) {
    return pack(w.view, WeightRole::kLinear, out);
  }
  core::Status norm(int size, const Weight*& out) {
    const std::vector<float> ones(static_cast<std::size_t>(size), 1.0F);
    const core::TensorView view = {
        reinterpret_cast<const std::byte*>(ones.data()), core::DType::kF32, 1, {size, 1, 1, 1}};
    return pack(view, WeightRole::kVector, out);
  }
  core::Status head(WeightForm form);
  core::Status ffn_layers(WeightForm form, int copies);
  core::Status attention_layers(WeightForm form, const LayerConfig& layer, int copies);

 private:
  core::Status pack(const kernels::WeightView& view, WeightRole role, const Weight*& out) {
    TANDEM_ASSIGN(auto weight, backend_.pack(view, role, "a random weight"));
    model_.storage.push_back(std::move(weight));
    out = model_.storage.back().get();
    return {};
  }
  LayerWeights& add_layer(PerfLayers& group, const LayerConfig& layer) {
    model_.owned_layers.push_back(std::make_unique<LayerWeights>());
    group.layers.push_back(model_.owned_layers.back().get());
    group.attention.push_back(attention_spec(layer));
    return *model_.owned_layers.back();
  }

  kernels::Backend& backend_;
  PerfModel& model_;
};

core::Status Builder::head(WeightForm form) {
  TANDEM_TRY(norm(model_.config.hidden, model_.head.norm));
  const RandomWeight table = random_weight(form, model_.config.vocab, model_.config.hidden);
  model_.head_type = name(form);
  model_.head.softcap = model_.config.final_softcap;
  return pack(table.view, WeightRole::kTableAndHead, model_.head.table);
}

core::Status Builder::ffn_layers(WeightForm form, int copies) {
  const LayerConfig& layer = model_.config.layers.front();
  const int width = model_.config.hidden;
  const RandomWeight up = random_weight(form, layer.ffn, width);
  const RandomWeight down = random_weight(form, width, layer.ffn);
  const int ple = model_.config.ple_width;
  const RandomWeight gate = random_weight(form, ple, width);
  const RandomWeight projection = random_weight(form, width, ple);
  PerfLayers group;
  group.type = name(form);
  for (int i = 0; i < copies; ++i) {
    LayerWeights& w = add_layer(group, layer);
    TANDEM_TRY(norm(width, w.ffn.norm));
    TANDEM_TRY(linear(up, w.ffn.gate));
    TANDEM_TRY(linear(up, w.ffn.up));
    TANDEM_TRY(linear(down, w.ffn.down));
    TANDEM_TRY(norm(width, w.ffn.post_norm));
    TANDEM_TRY(linear(gate, w.ple.gate));
    TANDEM_TRY(linear(projection, w.ple.projection));
    TANDEM_TRY(norm(width, w.ple.post_norm));
  }
  model_.layers.push_back(std::move(group));
  return {};
}

core::Status Builder::attention_layers(WeightForm form, const LayerConfig& layer, int copies) {
  const int width = model_.config.hidden;
  const int q = layer.heads * layer.head_size, kv = layer.kv_heads * layer.head_size;
  const RandomWeight wq = random_weight(form, q, width), wkv = random_weight(form, kv, width);
  const RandomWeight out = random_weight(form, width, q);
  PerfLayers group;
  group.type = name(form);
  for (int i = 0; i < copies; ++i) {
    kernels::AttentionWeights& w = add_layer(group, layer).attention;
    TANDEM_TRY(norm(width, w.norm));
    TANDEM_TRY(linear(wq, w.q));
    TANDEM_TRY(linear(wkv, w.k));
    TANDEM_TRY(linear(wkv, w.v));
    TANDEM_TRY(norm(layer.head_size, w.q_norm));
    TANDEM_TRY(norm(layer.head_size, w.k_norm));
    TANDEM_TRY(linear(out, w.out));
    TANDEM_TRY(norm(width, w.post_norm));
  }
  model_.layers.push_back(std::move(group));
  return {};
}

/// "4.6 bit": what the weights of a layer take, on the average.
std::string bits(const LayerWeights& layer) {
  double bytes = 0, values = 0;
  for (const Weight* w : {layer.ffn.gate, layer.ffn.up, layer.ffn.down}) {
    bytes += static_cast<double>(w->bytes());
    values += static_cast<double>(w->rows()) * static_cast<double>(w->cols());
  }
  return fmt::format("{:.1f} bit", 8 * bytes / values);
}

}  // namespace

kernels::Geometry perf_geometry(const model::ModelConfig& config) {
  kernels::Geometry g = model::geometry_of(config, nullptr);
  g.max_sequences = kPerfSequences;
  g.max_rows = kPerfRows;
  g.max_kept_rows = kPerfRows;
  g.kv_memory_bytes = std::size_t{1} << 30;
  return g;
}

model::ModelConfig e4b_shapes() {
  model::ModelConfig config;
  config.family = "gemma4";
  config.hidden = 2560;
  config.vocab = 262144;
  config.ple_width = 256;
  config.window = 512;
  config.max_context = 131072;
  config.final_softcap = 30.0F;
  config.layers = {{AttentionKind::kSliding, 8, 2, 256, 10240, true, false, 0},
                   {AttentionKind::kFull, 8, 2, 512, 10240, true, false, 1}};
  for (const LayerConfig& layer : config.layers) {
    const auto kind = static_cast<std::size_t>(layer.kind);
    config.rope_frequencies[kind] =
        model::rope_frequencies(config.rope_bases[kind], layer.head_size, {});
  }
  return config;
}

core::Result<PerfModel> builtin_perf_model(kernels::Backend& backend,
                                           const model::ModelConfig& shapes, int copies) {
  PerfModel model;
  model.config = shapes;
  Builder builder(backend, model);
  for (const WeightForm form : {WeightForm::kQ4_K, WeightForm::kQ6_K, WeightForm::kQ8_0,
                                WeightForm::kFp8, WeightForm::kNvfp4, WeightForm::kBF16}) {
    TANDEM_TRY(builder.ffn_layers(form, copies));
  }
  for (const LayerConfig& layer : shapes.layers) {
    TANDEM_TRY(builder.attention_layers(WeightForm::kQ4_K, layer, copies));
  }
  TANDEM_TRY(builder.head(WeightForm::kQ6_K));
  return core::Result<PerfModel>(std::move(model));
}

core::Result<PerfModel> loaded_perf_model(kernels::Backend& backend, const model::ModelFiles& files,
                                          const model::ModelConfig& config) {
  TANDEM_ASSIGN(model::TargetWeights weights, model::load_target(files, config, backend));
  PerfModel model;
  model.config = config;
  model.head = weights.head;
  model.storage = std::move(weights.storage);
  const Weight& table = *model.head.table;
  model.head_type = fmt::format("{:.1f} bit", 8 * static_cast<double>(table.bytes()) /
                                                  static_cast<double>(table.rows() * table.cols()));
  // Layers that own keys, by kind and size of their weights.
  std::map<std::pair<AttentionKind, std::string>, PerfLayers> groups;
  for (std::size_t l = 0; l < weights.layers.size(); ++l) {
    const LayerConfig& layer = config.layers[l];
    if (!layer.owns_kv) continue;
    model.owned_layers.push_back(std::make_unique<LayerWeights>(weights.layers[l]));
    const LayerWeights& w = *model.owned_layers.back();
    PerfLayers& group = groups[{layer.kind, bits(w)}];
    group.type = bits(w);
    group.layers.push_back(&w);
    group.attention.push_back(attention_spec(layer));
  }
  for (auto& [key, group] : groups) model.layers.push_back(std::move(group));
  return core::Result<PerfModel>(std::move(model));
}

}  // namespace tandem::app
