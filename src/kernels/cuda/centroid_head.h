#pragma once

#include <cuda_runtime.h>

#include "tandem/core/units.h"
#include "tandem/kernels/cuda/gemm.h"

namespace tandem::kernels::cuda {

/// A drafter's head that looks at the tokens of a row's best clusters only (kernels::CentroidHead).
struct CentroidArguments {
  Partials scores;               ///< of the centroids: [rows, clusters]
  MatrixView table;              ///< [V, d]; cluster c has the rows [c * V / C, (c + 1) * V / C)
  const TokenId* ids = nullptr;  ///< [V] tokens of the table's rows
  const std::uint32_t* suppressed = nullptr;  ///< mask of V bits, may be null
  int clusters = 0, top = 0;
  unsigned long long* order = nullptr;  ///< scratch [rows, clusters]
  std::int32_t* chosen = nullptr;       ///< scratch [rows, top]
  unsigned long long* keys = nullptr;   ///< [rows, centroid_keys()]
};

/// Keys (order_key) that every row leaves.
int centroid_keys(int vocab, int clusters, int top);

/// The keys of the likeliest tokens of each row of x among those of its `top` largest centroids,
/// the lower id on ties. A token's logit has the bits that it has in the whole head.
void centroid_head(const CentroidArguments& a, const HalfRows& x, int rows, cudaStream_t stream);

}  // namespace tandem::kernels::cuda
