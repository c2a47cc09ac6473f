#pragma once

#include "tandem/core/status.h"
#include "tandem/kernels/op_weights.h"
#include "tandem/model/config.h"
#include "tandem/model/tensor_packer.h"

namespace tandem::model {

/// Loads router and experts of layer `l` into `w`, whose dense branch is `shared`. The experts may
/// lie in one tensor with gate and up joined, in one for each of the two, or in tensors of their
/// own. Errors: see TensorPacker.
core::Status load_moe(TensorPacker& pack, int l, const ModelConfig& config,
                      const kernels::FfnWeights& shared, kernels::MoeWeights& w);

}  // namespace tandem::model
