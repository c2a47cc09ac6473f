#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/formats/gguf.h"
#include "tandem/kernels/backend.h"

namespace tandem::model {

/// One decoder layer as plain numbers; every per-layer difference of the family is here.
struct LayerConfig {
  kernels::AttentionKind kind = kernels::AttentionKind::kSliding;
  int heads = 0;              ///< H
  int kv_heads = 0;           ///< G; of the borrowed cache in a layer that owns none
  int head_size = 0;          ///< D
  int ffn = 0;                ///< F
  bool owns_kv = true;        ///< false in every layer of a drafter
  bool value_is_key = false;  ///< no v projection: v = raw k projection
  /// Index into Geometry::kv_layers of the cache this layer reads. Unset (0) in a drafter, whose
  /// layers read the caches named by ModelConfig::last_kv_layer of the target.
  int kv_layer = 0;
};

/// A Gemma 4 target or its drafter ("assistant"), spec/model.md section 1 and spec/mtp.md
/// section 1.
struct ModelConfig {
  std::string family;  ///< "gemma4" or "gemma4-assistant"
  std::string name;    ///< what the files call it, for logs and /v1/models
  int hidden = 0;      ///< E (d of a drafter)
  int vocab = 0;       ///< V
  int ple_width = 0;   ///< P, 0: none
  int window = 0;      ///< W, own position included; 0: no sliding layers
  int max_context = 0;
  int backbone_hidden = 0;  ///< drafter: E of its target
  float rms_eps = 1e-6F;
  float final_softcap = 0.0F;
  int experts = 0;            ///< X, 0: dense
  int experts_per_token = 0;  ///< of X, chosen by the router
  int expert_ffn = 0;         ///< F of one expert
  /// Drafter with a centroid head: clusters that are searched, spec/mtp.md section 4.
  int centroids_per_token = 0;
  std::vector<LayerConfig> layers;
  /// RoPE frequencies by AttentionKind, [D/2] each, 0: not rotated. Empty for a kind that no layer
  /// has; a drafter without rope_freqs.weight leaves kFull empty too: its target's hold.
  std::array<std::vector<float>, kernels::kNumAttentionKinds> rope_frequencies;
  /// Base of those frequencies, by AttentionKind.
  std::array<double, kernels::kNumAttentionKinds> rope_bases = {1e4, 1e6};
  std::vector<TokenId> suppressed;

  bool is_drafter() const { return backbone_hidden > 0; }
  /// Number of layers before the first one that owns no KV.
  int num_kv_owners() const;
  /// The caches of the KV-owning layers, in layer order.
  std::vector<kernels::KvLayerSpec> kv_layers() const;
  /// Index into kv_layers() of the last cache of a kind, -1: none. Layers that share KV read it,
  /// and so does the drafter.
  int last_kv_layer(kernels::AttentionKind kind) const;
};

/// Reads and checks the hyper-parameters of a target or a drafter; messages name file, key and
/// what was expected. kUnimplemented for other architectures.
core::Result<ModelConfig> read_config(const formats::GgufFile& file);

/// The same from the texts of a Hugging Face directory's config.json and generation_config.json
/// (empty: none); `directory` is for messages. The name stays empty.
core::Result<ModelConfig> read_config(const std::string& directory, std::string_view config_json,
                                      std::string_view generation_json);

/// Whether the drafter fits the target: width, vocabulary, KV heads and head sizes of the layers it
/// borrows, window, RoPE. A mismatch is kFailedPrecondition with both numbers.
core::Status check_pair(const ModelConfig& target, const ModelConfig& drafter);

}  // namespace tandem::model
