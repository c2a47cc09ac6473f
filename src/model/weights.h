#pragma once

#include <memory>
#include <vector>

#include "tandem/kernels/backend.h"

namespace tandem::model {

/// One decoder layer, ready to be handed to the backend. The weights belong to the storage of the
/// model; shapes stand beside the fields of the kernels' structs.
struct LayerWeights {
  kernels::AttentionWeights attention;
  kernels::FfnWeights ffn;
  kernels::MoeWeights moe;       ///< set if the model has experts; its dense branch is `ffn`
  kernels::PleLayerWeights ple;  ///< set if the model has per-layer embeddings
  float scale = 1.0F;            ///< layer_scalar: multiplies the stream at the layer's end
};

using WeightStorage = std::vector<std::unique_ptr<kernels::Weight>>;

/// Every tensor of a target, packed. Must not outlive the backend that packed it, nor the file,
/// which gathered tables may stay in.
struct TargetWeights {
  WeightStorage storage;                       ///< owns all that the pointers below name
  const kernels::Weight* embedding = nullptr;  ///< [V, E]
  kernels::PleInputWeights ple_inputs;         ///< set if the model has per-layer embeddings
  std::vector<LayerWeights> layers;            ///< [L]
  kernels::Head head;
};

/// Every tensor of a drafter, packed. `ends.target_embedding` belongs to the target.
struct DrafterWeights {
  WeightStorage storage;
  kernels::DraftWeights ends;
  std::vector<LayerWeights> layers;
};

}  // namespace tandem::model
