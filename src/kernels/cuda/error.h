#pragma once

#include <cuda_runtime.h>

#include <string>

#include "tandem/core/status.h"

namespace tandem::kernels::cuda {

/// A CUDA error as a Status: what was asked, and what the driver says.
inline core::Status to_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  const std::string message = std::string(what) + ": " + cudaGetErrorString(error);
  if (error == cudaErrorMemoryAllocation) {
    return core::resource_exhausted(message + "; lower --kv-memory or --max-sequences");
  }
  return core::internal_error(message);
}

}  // namespace tandem::kernels::cuda

/// Returns the Status of a failed CUDA call from the enclosing function.
#define TANDEM_CUDA(call) TANDEM_TRY(::tandem::kernels::cuda::to_status((call), #call))
