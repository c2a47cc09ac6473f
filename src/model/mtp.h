#pragma once

#include <span>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/kernels/backend.h"
#include "tandem/model/config.h"
#include "tandem/model/weights.h"

namespace tandem::model {

/// The multi-token-prediction drafter, spec/mtp.md: a few layers without KV of their own, which
/// read the target's cache. Thread: the engine thread.
class MtpDrafter {
 public:
  /// Allocates one row per sequence: kResourceExhausted if the backend has no room. The configs
  /// must fit (check_pair); `backend` must outlive the drafter.
  static core::Result<MtpDrafter> create(const ModelConfig& target, const ModelConfig& config,
                                         DrafterWeights weights, kernels::Backend& backend,
                                         int max_sequences);

  /// Drafts after verify(). rows_of_step[i] sequences draft more than i tokens, so it never grows;
  /// token, position and hidden row of each come from its slot, and the drafts go there.
  void draft(std::span<const int> rows_of_step);

  bool uses_centroids() const { return weights_.ends.centroids.centroids != nullptr; }

 private:
  MtpDrafter(const ModelConfig& target, const ModelConfig& config, DrafterWeights weights,
             kernels::Backend& backend);

  kernels::Backend* backend_;
  DrafterWeights weights_;
  std::vector<kernels::AttentionSpec> attention_;  // one per layer, over the target's KV layers
  kernels::Rows x_;                                // [S, d] the residual stream
};

}  // namespace tandem::model
