#include "tandem/model/tensor_list.h"

namespace tandem::model {
namespace {

class TensorLister {
 public:
  TensorLister(const ModelConfig& config, const ModelFiles& files)
      : config_(config), files_(files) {}

  std::vector<ListedTensor> list() {
    add_ends();
    for (std::size_t l = 0; l < config_.layers.size(); ++l) {
      add_layer(static_cast<int>(l), config_.layers[l]);
    }
    return std::move(out_);
  }

 private:
  bool has(TensorKey key) const {
    const std::string name = files_.tensor_name(key);
    return !name.empty() && files_.has_weight(name);
  }
  void vector(TensorRole role, int l, int size) {
    out_.push_back({{role, l}, TensorUse::kVector, 1, size});
  }
  void linear(TensorRole role, int l, int rows, int cols) {
    out_.push_back({{role, l}, TensorUse::kLinear, rows, cols});
  }
  void table(TensorRole role, int rows, int cols) {
    out_.push_back({{role}, TensorUse::kTable, rows, cols});
  }

  void add_ends();
  void add_layer(int l, const LayerConfig& layer);

  const ModelConfig& config_;
  const ModelFiles& files_;
  std::vector<ListedTensor> out_;
};

void TensorLister::add_ends() {
  const int hidden = config_.hidden;
  table(TensorRole::kEmbedding, config_.vocab, hidden);
  if (has({TensorRole::kOutput})) table(TensorRole::kOutput, config_.vocab, hidden);
  vector(TensorRole::kOutputNorm, 0, hidden);
  if (config_.ple_width > 0) {
    const int width = static_cast<int>(config_.layers.size()) * config_.ple_width;
    table(TensorRole::kPleTable, config_.vocab, width);
    linear(TensorRole::kPleProjection, 0, width, hidden);
    vector(TensorRole::kPleNorm, 0, config_.ple_width);
  }
  if (!config_.is_drafter()) return;
  linear(TensorRole::kPreProjection, 0, hidden, 2 * config_.backbone_hidden);
  linear(TensorRole::kPostProjection, 0, config_.backbone_hidden, hidden);
  const TensorKey centroids = {TensorRole::kCentroids};
  if (!has(centroids) || !has({TensorRole::kTokenOrdering})) return;
  const auto view = files_.weight(files_.tensor_name(centroids));
  if (view.ok()) table(TensorRole::kCentroids, static_cast<int>(view->rows()), hidden);
  out_.push_back({{TensorRole::kTokenOrdering}, TensorUse::kTokenIds, 1, config_.vocab});
}

void TensorLister::add_layer(int l, const LayerConfig& layer) {
  const int hidden = config_.hidden;
  const int kv_size = layer.kv_heads * layer.head_size;
  vector(TensorRole::kAttentionNorm, l, hidden);
  linear(TensorRole::kQuery, l, layer.heads * layer.head_size, hidden);
  vector(TensorRole::kQueryNorm, l, layer.head_size);
  if (layer.owns_kv) {
    linear(TensorRole::kKey, l, kv_size, hidden);
    vector(TensorRole::kKeyNorm, l, layer.head_size);
    if (!layer.value_is_key) linear(TensorRole::kValue, l, kv_size, hidden);
  }
  linear(TensorRole::kAttentionOutput, l, hidden, layer.heads * layer.head_size);
  vector(TensorRole::kPostAttentionNorm, l, hidden);
  vector(TensorRole::kFfnNorm, l, hidden);
  linear(TensorRole::kGate, l, layer.ffn, hidden);
  linear(TensorRole::kUp, l, layer.ffn, hidden);
  linear(TensorRole::kDown, l, hidden, layer.ffn);
  vector(TensorRole::kPostFfnNorm, l, hidden);
  if (config_.ple_width > 0) {
    linear(TensorRole::kPleGate, l, config_.ple_width, hidden);
    linear(TensorRole::kPleOutput, l, hidden, config_.ple_width);
    vector(TensorRole::kPostPleNorm, l, hidden);
  }
  if (has({TensorRole::kLayerScale, l})) vector(TensorRole::kLayerScale, l, 1);
}

}  // namespace

std::vector<ListedTensor> list_tensors(const ModelConfig& config, const ModelFiles& files) {
  return TensorLister(config, files).list();
}

}  // namespace tandem::model
