#pragma once

#include <memory>
#include <string>

#include "tandem/core/status.h"
#include "tandem/kernels/backend.h"

namespace tandem::kernels {

struct CudaOptions {
  int device = 0;
  bool tables_on_host = false;  ///< kTable weights stay in host memory, read row by row
  std::string
      library;  ///< path of libtandem_cuda.so; empty: beside the executable, then the loader's path
};

/// Opens the CUDA backend from its shared object, so that one program runs with and without a GPU.
/// kUnavailable when the object, a driver or a device is missing, kUnimplemented when the device is
/// too old; the sentence says which. fp16 activations and KV, fp16 tensor cores with f32 sums
/// (docs/kernels.md).
core::Result<std::unique_ptr<Backend>> open_cuda_backend(const CudaOptions& options);

/// What the shared object exports: a new backend, or null and a message in `error` (`size` bytes).
using MakeCudaBackend = Backend* (*)(const CudaOptions& options, char* error, std::size_t size);
inline constexpr const char* kMakeCudaBackendName = "tandem_make_cuda_backend_v2";

}  // namespace tandem::kernels
