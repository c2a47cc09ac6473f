#pragma once

#include <vector>

#include "op_rig.h"

namespace tandem::test {

/// A random target of four layers (sliding and full with KV, then one of each that shares it), the
/// second a mixture of experts, with per-layer embeddings, and a drafter of two layers, its head by
/// centroids for Q8_0 and FP8: every operation of a backend in the order that a model calls them.
class MiniModel {
 public:
  MiniModel(const BackendFactory& factory, core::DType dtype);

  OpRig& rig() { return rig_; }
  int width() const { return rig_.dims().hidden; }

  /// Runs a step to its end; CHECKs that the backend reports no fault.
  kernels::StepResult step(const kernels::StepPlan& plan);
  /// Row r of h [R, E] of the last step.
  std::vector<float> hidden_row(int r);

 private:
  void forward(const kernels::Backend::StepShape& shape);
  void draft(const kernels::StepPlan& plan, const kernels::Backend::StepShape& shape);

  struct Layer {
    kernels::AttentionWeights attention;
    kernels::AttentionSpec spec;
    kernels::FfnWeights ffn;
    kernels::MoeWeights moe;  // of the second layer, in place of ffn
    kernels::PleLayerWeights ple;
  };

  OpRig rig_;
  const kernels::Weight* embedding_ = nullptr;
  kernels::PleInputWeights ple_inputs_;
  std::vector<Layer> layers_;
  kernels::Head head_;
  kernels::DraftWeights draft_ends_;
  std::vector<Layer> draft_layers_;
  kernels::Rows x_, h_, ple_, draft_x_;
};

}  // namespace tandem::test
