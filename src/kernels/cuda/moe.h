#pragma once

#include <cuda_runtime.h>

#include "tandem/kernels/cuda/device_buffer.h"
#include "tandem/kernels/cuda/row_ops.h"

namespace tandem::kernels::cuda {

/// One expert's weights, as device code finds them.
struct ExpertViews {
  MatrixView gate, up, down;
};

/// A layer's experts on the device, and the most bytes of two bricks that are multiplied at once,
/// of gate and up and of down.
struct LayerExperts {
  DeviceBuffer views;  ///< ExpertViews
  int gate_bytes = 0, down_bytes = 0;
};

/// What ExpertArguments point to, and the experts' outputs.
struct ExpertMemory {
  DeviceBuffer weights, chosen, entries, active, arrived, outputs;
};

/// An expert that rows of the step chose, and its place among the entries.
struct ActiveExpert {
  std::int32_t expert = 0, begin = 0, end = 0;
};

/// The experts of a layer and what a step routes to them. An entry is one of a row's top_k choices:
/// entry = row * top_k + its place among them, in ascending order of the experts.
struct ExpertArguments {
  const ExpertViews* views = nullptr;  ///< [experts], device memory
  int experts = 0, top_k = 0;
  int width = 0, ffn = 0;              ///< E, and F of an expert
  int gate_bytes = 0, down_bytes = 0;  ///< LayerExperts
  float* weights = nullptr;            ///< [entries]
  std::int32_t* chosen = nullptr;      ///< [entries] the expert
  std::int32_t* entries = nullptr;     ///< [entries] by expert
  ActiveExpert* active = nullptr;      ///< [experts], behind the last one without entries
  std::int32_t* arrived = nullptr;     ///< blocks of route_rows() that are done; 0 between steps
};

/// Inputs of products of one row: rms(x) * norm, as out.form says.
struct NormedRows {
  const float* norm = nullptr;  ///< [E]
  HalfRows out;
};

/// Adds `residual` to x [rows, E] as residual_norm() does, and writes the inputs of the dense
/// branch, the router and the experts.
void expert_inputs(const Residual& residual, float* x, int rows, int cols, float eps,
                   const NormedRows& dense, const NormedRows& router, const NormedRows& experts,
                   std::int32_t* broken, cudaStream_t stream);

/// Chooses the experts of every row from the router's scores * score_scale: softmax over the
/// chosen, times expert_scale (null: 1). Ties go to the lower id.
void route_rows(const Partials& scores, float score_scale, const float* expert_scale, int rows,
                const ExpertArguments& a, cudaStream_t stream);

/// Readies the products of experts for their largest shared memory. Once, before the first.
core::Status prepare_experts();

/// out[entry] = gelu_tanh(gate x) * up x of the entry's row and expert, stored as geglu() does. Of
/// a step's `rows` rows. Two kernels or more behind route_rows(), whose choices are read early.
void expert_gates(const ExpertArguments& a, const HalfRows& x, int rows, const HalfRows& out,
                  std::int32_t* broken, cudaStream_t stream);

/// out[entry] [E] = down x of the entry and its expert.
void expert_downs(const ExpertArguments& a, const HalfRows& x, int rows, float* out,
                  cudaStream_t stream);

/// What the branches of a layer still have to add to the residual stream:
/// x = (x + rms(rms(dense) * dense_norm + rms(sum of the entries' weight * out) * experts_norm) *
/// post_norm) * scale.
struct ExpertMix {
  ExpertArguments experts;
  const float* out = nullptr;  ///< [entries, E], two kernels old
  Partials dense;
  const float *dense_norm = nullptr, *experts_norm = nullptr, *post_norm = nullptr;
  float scale = 1.0f;
};

/// Adds it to x [rows, E]; then norm, out, plain and broken as in residual_norm().
void mix_experts(const ExpertMix& mix, float* x, int rows, float eps, const float* norm,
                 const HalfRows& out, float* plain, std::int32_t* broken, cudaStream_t stream);

}  // namespace tandem::kernels::cuda
