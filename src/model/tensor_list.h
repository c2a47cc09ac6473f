#pragma once

#include <vector>

#include "tandem/model/config.h"
#include "tandem/model/model_files.h"
#include "tandem/model/tensor_role.h"

namespace tandem::model {

/// What a listed tensor holds.
enum class TensorUse {
  kVector,    ///< [cols]
  kTable,     ///< [rows, cols], gathered or multiplied at the ends of the model
  kLinear,    ///< [rows, cols]
  kTokenIds,  ///< [cols] integers
};

struct ListedTensor {
  TensorKey key;
  TensorUse use = TensorUse::kVector;
  int rows = 1;
  int cols = 0;
};

/// Every tensor that a target without experts, or a drafter, consists of, in the order of the
/// layers; those that may be absent only if `files` have them. The loader judges whether they are
/// there.
std::vector<ListedTensor> list_tensors(const ModelConfig& config, const ModelFiles& files);

}  // namespace tandem::model
