#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::model {

/// What a tensor is in the model, whatever its file calls it; spec/model.md section 9,
/// spec/mtp.md section 2, spec/formats.md section 2.
enum class TensorRole : std::uint8_t {
  kEmbedding,
  kOutput,  ///< a head of its own; absent: tied to the embedding
  kOutputNorm,
  kPleTable,
  kPleProjection,
  kPleNorm,
  kPreProjection,   ///< drafter
  kPostProjection,  ///< drafter
  kCentroids,       ///< drafter
  kTokenOrdering,   ///< drafter
  // One per layer from here on.
  kAttentionNorm,
  kQuery,
  kKey,
  kValue,
  kQueryKeyValue,  ///< rows of the three, in this order; rare
  kQueryNorm,
  kKeyNorm,
  kAttentionOutput,
  kPostAttentionNorm,
  kFfnNorm,
  kGate,
  kUp,
  kDown,
  kPostFfnNorm,
  kLayerScale,
  kPleGate,
  kPleOutput,
  kPostPleNorm,
  kRouter,
  kRouterScale,
  kExpertScale,
  kExpertsGateUp,  ///< [X, 2F, E], gate rows first
  kExpertsGate,    ///< [X, F, E]
  kExpertsUp,      ///< [X, F, E]
  kExpertsDown,    ///< [X, E, F]
  kExpertGate,     ///< [F, E], of one expert
  kExpertUp,       ///< [F, E]
  kExpertDown,     ///< [E, F]
  kExpertsNorm,
  kPostDenseNorm,
  kPostExpertsNorm,
};

/// Where a tensor is: its role, and for roles that every layer or expert has, which one.
struct TensorKey {
  TensorRole role;
  int layer = 0;
  int expert = 0;
};

/// The name in a GGUF file. Empty for what such a file cannot hold.
std::string gguf_name(TensorKey key);

/// The name in a Hugging Face checkpoint whose text model's tensors begin with `prefix`, such as
/// "model.language_model.". Empty for what such a checkpoint cannot hold.
std::string hf_name(TensorKey key, std::string_view prefix);

}  // namespace tandem::model
