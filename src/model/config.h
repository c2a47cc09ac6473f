#pragma once

#include <string>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/formats/gguf.h"
#include "tandem/kernels/backend.h"

namespace tandem::model {

/// One decoder layer as plain numbers; every per-layer difference of the family is here.
struct LayerConfig {
  kernels::AttentionKind kind = kernels::AttentionKind::kSliding;
  int heads = 0;      // H
  int kv_heads = 0;   // G
  int head_size = 0;  // D
  int ffn = 0;        // F
  bool owns_kv = true;
  bool value_is_key = false;  ///< no v projection: v = raw k projection
  int kv_layer = 0;           ///< index into Geometry::kv_layers of the cache this layer reads
};

/// A Gemma 4 target or its drafter ("assistant"), spec/model.md section 1 and spec/mtp.md section 1.
struct ModelConfig {
  std::string family;  ///< "gemma4" or "gemma4-assistant"
  std::string name;    ///< general.name of the file, for logs and /v1/models
  int hidden = 0;      // E (d of a drafter)
  int vocab = 0;       // V
  int ple_width = 0;   // P, 0: none
  int window = 0;      // W
  int max_context = 0;
  int backbone_hidden = 0;  ///< drafter: E of its target
  float rms_eps = 1e-6F;
  float final_softcap = 0.0F;
  int experts = 0;  // X, 0: dense
  std::vector<LayerConfig> layers;
  /// Inverse RoPE frequencies by AttentionKind, [D/2] each.
  std::array<std::vector<float>, kernels::kNumAttentionKinds> rope_frequencies;
  std::vector<TokenId> suppressed;

  /// Number of layers before the first one that owns no KV.
  int num_kv_owners() const;
};

/// Reads and checks the hyper-parameters; messages name file, key and what was expected.
core::Result<ModelConfig> read_config(const formats::GgufFile& file);

/// Whether the drafter fits the target: width, vocabulary, KV heads and head sizes of the layers it
/// borrows, window. A mismatch is kFailedPrecondition with both numbers.
core::Status check_pair(const ModelConfig& target, const ModelConfig& drafter);

}  // namespace tandem::model
