#pragma once

#include "tandem/core/status.h"
#include "tandem/formats/gguf.h"
#include "tandem/kernels/backend.h"
#include "tandem/model/config.h"
#include "tandem/model/weights.h"

namespace tandem::model {

/// Finds, checks and packs the tensors of a `gemma4` file whose config was read with read_config.
/// The mapped pages of a tensor are given back once it is packed, so that the peak is the packed
/// weights plus one tensor; gathered tables may stay in the file, which must outlive the weights.
/// kDataLoss names the tensor that is missing or has another shape or type than the config asks
/// for; other failures are the backend's. `backend` must be configured.
core::Result<TargetWeights> load_target(const formats::GgufFile& file, const ModelConfig& config,
                                        kernels::Backend& backend);

/// The same for a `gemma4-assistant` file that fits `target_config` (check_pair). Its dense head is
/// used; centroid tensors are ignored.
core::Result<DrafterWeights> load_drafter(const formats::GgufFile& file, const ModelConfig& config,
                                          const TargetWeights& target, kernels::Backend& backend);

}  // namespace tandem::model
