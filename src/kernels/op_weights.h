#pragma once

#include <vector>

#include "tandem/kernels/step.h"
#include "tandem/kernels/weight.h"

// The weights of the backend's operations. Dimension letters: kernels/backend.h.

namespace tandem::kernels {

struct AttentionWeights {
  const Weight* norm = nullptr;       ///< [E]
  const Weight* q = nullptr;          ///< [H*D, E]
  const Weight* k = nullptr;          ///< [G*D, E]; null: the layer owns no KV
  const Weight* v = nullptr;          ///< [G*D, E]; null with k set: v = the raw k projection
  const Weight* q_norm = nullptr;     ///< [D]
  const Weight* k_norm = nullptr;     ///< [D]; with k
  const Weight* out = nullptr;        ///< [E, H*D]
  const Weight* post_norm = nullptr;  ///< [E]
};

struct AttentionSpec {
  AttentionKind kind = AttentionKind::kSliding;
  int heads = 0;      ///< H
  int kv_heads = 0;   ///< G
  int head_size = 0;  ///< D
  int kv_layer = 0;   ///< the layer whose K and V are read, and written if AttentionWeights::k
  /// True for the last KV-owning layer: rows that are not kept only write their K and V there.
  bool last_kv_owner = false;
};

struct FfnWeights {
  const Weight* norm = nullptr;       ///< [E]
  const Weight* gate = nullptr;       ///< [F, E]
  const Weight* up = nullptr;         ///< [F, E]
  const Weight* down = nullptr;       ///< [E, F]
  const Weight* post_norm = nullptr;  ///< [E]
};

/// Most experts of a layer, far beyond any released model.
inline constexpr int kMaxExperts = 1024;

struct ExpertWeights {
  const Weight* gate = nullptr;  ///< [F, E], F of the experts
  const Weight* up = nullptr;    ///< [F, E]
  const Weight* down = nullptr;  ///< [E, F]
};

/// The feed-forward part of a mixture-of-experts layer: a dense branch beside the routed experts.
struct MoeWeights {
  FfnWeights shared;                          ///< dense branch; post_norm is that of both together
  const Weight* shared_post_norm = nullptr;   ///< [E], of the dense branch alone
  const Weight* router = nullptr;             ///< [X, E]
  const Weight* router_scale = nullptr;       ///< [E], a vector
  const Weight* expert_scale = nullptr;       ///< [X], a vector; null: all ones
  const Weight* experts_norm = nullptr;       ///< [E]
  const Weight* experts_post_norm = nullptr;  ///< [E]
  std::vector<ExpertWeights> experts;         ///< [X <= kMaxExperts], all of one shape, kExpert
  int top_k = 0;                              ///< experts of a row, in [1, X]
};

struct PleInputWeights {
  const Weight* table = nullptr;       ///< [V, L*P], kTable
  const Weight* projection = nullptr;  ///< [L*P, E]
  const Weight* norm = nullptr;        ///< [P]
};

struct PleLayerWeights {
  const Weight* gate = nullptr;        ///< [P, E]
  const Weight* projection = nullptr;  ///< [E, P]
  const Weight* post_norm = nullptr;   ///< [E]
};

struct Head {
  const Weight* norm = nullptr;   ///< [E], final norm
  const Weight* table = nullptr;  ///< [V, E], kTableAndHead or kHead
  float softcap = 0.0F;           ///< logits = cap * tanh(logits / cap); 0: none
};

/// The drafter's cheap head, spec/mtp.md section 4: C clusters of V / C tokens each. Only the
/// tokens of a row's best clusters have logits.
struct CentroidHead {
  const Weight* centroids = nullptr;  ///< [C, d], kLinear; null: the drafter has no such head
  /// [V], kTokenIds: row r of the head's table stands for this token, the rows of cluster c being
  /// [c * V / C, (c + 1) * V / C).
  const Weight* tokens = nullptr;
  int top_clusters = 0;  ///< largest centroids taken, the lower id on ties; in [1, C]
};

/// The drafter's ends; its layers are ordinary attention and ffn calls on RowSet::kDraft rows.
struct DraftWeights {
  const Weight* target_embedding = nullptr;  ///< the target's token table [V, E]
  const Weight* pre_projection = nullptr;    ///< [d, 2E], input = concat(embedding, hidden)
  const Weight* post_projection = nullptr;   ///< [E, d]
  Head head;                                 ///< norm [d], table [V, d], no softcap
  float embedding_scale = 1.0F;              ///< sqrt(E)
  CentroidHead centroids = {};  ///< if set, the rows of head.table lie in the order of its tokens
};

}  // namespace tandem::kernels
