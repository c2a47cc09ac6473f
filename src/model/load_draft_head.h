#pragma once

#include "tandem/core/status.h"
#include "tandem/kernels/op_weights.h"
#include "tandem/model/config.h"
#include "tandem/model/tensor_packer.h"

namespace tandem::model {

/// Which head a drafter uses, spec/mtp.md section 4.
enum class DraftHead {
  kAuto,   ///< by centroids where the files have them, the backend runs them and fewer bytes are
           ///< read
  kDense,  ///< all of the vocabulary
};

/// Loads the table and, where it is used, the centroid head of a drafter into `ends`; the rows of
/// the table then lie in the order of the clusters, for which a copy of it exists for a while.
/// Errors: see TensorPacker.
core::Status load_draft_head(TensorPacker& pack, const ModelConfig& config, DraftHead choice,
                             kernels::DraftWeights& ends);

}  // namespace tandem::model
