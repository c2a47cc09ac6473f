#pragma once

#include "tandem/core/status.h"
#include "tandem/kernels/backend.h"
#include "tandem/model/config.h"
#include "tandem/model/load_draft_head.h"
#include "tandem/model/model_files.h"
#include "tandem/model/weights.h"

namespace tandem::model {

/// Finds, checks and packs the tensors of a target whose config was read from the same files.
/// The mapped pages of a tensor are given back once it is packed, so that the peak is the packed
/// weights plus one tensor; gathered tables may stay in the files, which must outlive the weights.
/// kDataLoss names the tensor that is missing or has another shape or type than the config asks
/// for; other failures are the backend's. `backend` must be configured.
core::Result<TargetWeights> load_target(const ModelFiles& files, const ModelConfig& config,
                                        kernels::Backend& backend);

/// The same for a drafter that fits `target_config` (check_pair).
core::Result<DrafterWeights> load_drafter(const ModelFiles& files, const ModelConfig& config,
                                          const TargetWeights& target, kernels::Backend& backend,
                                          DraftHead head);

}  // namespace tandem::model
