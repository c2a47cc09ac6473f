#pragma once

#include <cuda_runtime.h>

#include <cstddef>
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

/// The device had no room for `bytes` more.
inline core::Status no_room(std::size_t bytes) {
  std::size_t free = 0, total = 0;
  cudaGetLastError();  // the failed allocation's; the device is well
  cudaMemGetInfo(&free, &total);
  const auto mib = [](std::size_t n) {
    return std::to_string((n + (1 << 20) - 1) >> 20) + " MiB";
  };
  return core::resource_exhausted("the GPU has no room for " + mib(bytes) + " more: " + mib(free) +
                                  " of " + mib(total) +
                                  " are free; lower --kv-memory or --max-sequences, or take "
                                  "--ple host");
}

}  // namespace tandem::kernels::cuda

/// Returns the Status of a failed CUDA call from the enclosing function.
#define TANDEM_CUDA(call) TANDEM_TRY(::tandem::kernels::cuda::to_status((call), #call))
