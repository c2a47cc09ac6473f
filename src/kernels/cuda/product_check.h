#pragma once

#include <cuda_runtime.h>

#include <string_view>

#include "tandem/core/status.h"
#include "tandem/kernels/cuda/gemm.h"
#include "tandem/kernels/weight.h"

namespace tandem::kernels::cuda {

/// Multiplies a packed weight by a few rows under every schedule and compares some outputs with
/// those of the file's values: kInternal, a sentence that names the shape, where one is wrong or
/// two schedules differ in a bit. A few milliseconds.
core::Status check_product(const WeightView& view, const MatrixView& matrix, int num_ctas,
                           cudaStream_t stream, std::string_view name);

}  // namespace tandem::kernels::cuda
