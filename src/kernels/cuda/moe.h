#pragma once

#include <cuda_runtime.h>

#include "tandem/kernels/cuda/row_ops.h"

namespace tandem::kernels::cuda {

/// One expert's weights, as device code finds them.
struct ExpertViews {
  MatrixView gate, up, down;
};

/// The experts of a layer and what a step routes to them. An entry is one of a row's top_k choices:
/// entry = row * top_k + its place among them, in ascending order of the experts.
struct ExpertArguments {
  const ExpertViews* views = nullptr;  ///< [experts], device memory
  int experts = 0, top_k = 0;
  int width = 0, ffn = 0;           ///< E, and F of an expert
  float* weights = nullptr;         ///< [entries]
  std::int32_t* chosen = nullptr;   ///< [entries] the expert
  std::int32_t* offsets = nullptr;  ///< [experts + 1] where an expert's entries begin
  std::int32_t* entries = nullptr;  ///< [entries] by expert
};

/// Chooses the experts of every row from the router's scores * score_scale: softmax over the
/// chosen, times expert_scale (null: 1). Ties go to the lower id.
void route_rows(const Partials& scores, float score_scale, const float* expert_scale, int rows,
                const ExpertArguments& a, cudaStream_t stream);

/// out[entry] = gelu_tanh(gate x) * up x of the entry's row and expert, stored as geglu() does.
void expert_gates(const ExpertArguments& a, const HalfRows& x, const HalfRows& out,
                  std::int32_t* broken, cudaStream_t stream);

/// out[entry] [E] = down x of the entry and its expert.
void expert_downs(const ExpertArguments& a, const HalfRows& x, float* out, cudaStream_t stream);

/// x = (x + rms(dense + rms(sum of the entries' weight * out) * experts_norm) * post_norm) * scale.
void mix_experts(const ExpertArguments& a, const float* out, const float* dense,
                 const float* experts_norm, const float* post_norm, float eps, float scale,
                 int rows, float* x, cudaStream_t stream);

}  // namespace tandem::kernels::cuda
