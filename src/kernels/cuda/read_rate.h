#pragma once

#include <cuda_runtime.h>

#include "tandem/core/status.h"

namespace tandem::kernels::cuda {

/// Bytes a second at which the device reads memory that its cache does not hold: the best of a few
/// sweeps.
core::Result<double> measure_read_rate(cudaStream_t stream);

}  // namespace tandem::kernels::cuda
