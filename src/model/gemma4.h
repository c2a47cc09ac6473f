#pragma once

#include <vector>

#include "tandem/core/status.h"
#include "tandem/kernels/backend.h"
#include "tandem/model/config.h"
#include "tandem/model/weights.h"

namespace tandem::model {

/// The Gemma 4 text backbone over one ragged batch, spec/model.md. Thread: the engine thread.
class Gemma4 {
 public:
  /// Allocates the activations of a step of at most max_rows rows of which max_kept_rows are kept:
  /// kResourceExhausted if the backend has no room. `backend` must outlive the model.
  static core::Result<Gemma4> create(const ModelConfig& config, TargetWeights weights,
                                     kernels::Backend& backend, int max_rows, int max_kept_rows);

  /// Runs the rows of the begun step and returns the final-normed hidden state of the kept ones,
  /// [R, E]: the LM head's and the drafter's input. Rows that are not kept leave after the last
  /// layer that owns KV. Valid until the next call.
  kernels::Rows forward(const kernels::Backend::StepShape& shape);

  const TargetWeights& weights() const { return weights_; }

 private:
  Gemma4(const ModelConfig& config, TargetWeights weights, kernels::Backend& backend);

  kernels::Backend* backend_;
  TargetWeights weights_;
  std::vector<kernels::AttentionSpec> attention_;  // [L]
  float embedding_scale_;                          // sqrt(E)
  bool has_ple_;
  kernels::Rows x_;    // [T, E] the residual stream
  kernels::Rows h_;    // [R, E] after the final norm
  kernels::Rows ple_;  // [T, L*P]
};

}  // namespace tandem::model
