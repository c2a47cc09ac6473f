#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/model/config.h"
#include "tandem/model/range.h"

/// What the readers of GGUF metadata and of config.json share: bounds and derived values.
namespace tandem::model {

// Bounds far beyond any released size. They keep every product of two dimensions inside an int, so
// that nothing after the readers needs checked arithmetic for shapes.
inline constexpr IntRange kLayers = {1, 1024};
inline constexpr IntRange kWidth = {1, 1 << 16};
inline constexpr IntRange kFfn = {1, 1 << 20};
inline constexpr IntRange kHeads = {1, 1 << 10};
inline constexpr IntRange kHeadSize = {2, 1 << 11};
inline constexpr IntRange kPleWidth = {0, 1 << 12};
inline constexpr IntRange kContext = {2, 1 << 24};  // a prompt and an answer
inline constexpr IntRange kWindow = {1, 1 << 24};
inline constexpr IntRange kExperts = {0, kernels::kMaxExperts};
inline constexpr IntRange kVocab = {1, 1 << 22};
inline constexpr FloatRange kRopeBase = {1.0, 1e12};
inline constexpr FloatRange kEpsilon = {1e-12, 1e-2};
inline constexpr FloatRange kSoftcap = {0.0, 1e6};

/// Clusters that a drafter's centroid head searches where the files do not say; spec/mtp.md.
inline constexpr int kCentroidsPerToken = 32;
/// The key by which a GGUF drafter may say so: Tandem's own, other engines ignore it.
inline constexpr std::string_view kCentroidsKey = "masked_embd_top_k";

/// Tokens of a GGUF file that are never generated.
inline constexpr std::string_view kSuppressKey = "tokenizer.ggml.suppress_tokens";

inline constexpr std::string_view kTargetFamily = "gemma4";
inline constexpr std::string_view kDrafterFamily = "gemma4-assistant";

/// "sliding" or "full", for messages.
const char* kind_name(kernels::AttentionKind kind);

/// f_i = base^(-2i/D) / factor_i, spec/model.md section 5.2. `factors` is empty or [D/2]; a factor
/// so large that nothing turns at any position yields 0.
std::vector<float> rope_frequencies(double base, int head_size, std::span<const float> factors);

/// Completes a config whose layers have kinds, heads, sizes and widths: says which layers own KV
/// (all but the last `shared`; none in a drafter) and which cache each reads, spec/model.md section
/// 6, and checks that heads share evenly. kDataLoss without the file's name.
core::Status assign_kv(int shared, ModelConfig& config);

}  // namespace tandem::model
