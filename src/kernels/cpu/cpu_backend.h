#pragma once

#include <memory>
#include <string>

#include "tandem/core/status.h"
#include "tandem/kernels/backend.h"

namespace tandem::kernels {

struct CpuOptions {
  int threads = 0;       ///< size of the compute team, the caller included; 0: all usable cores
  std::string isa = "";  ///< "scalar", "avx2", "avx512", "neon"; empty: the best one present
};

/// int8 activations times quantized weights, e4m3 activations times FP8 weights and f32 ones times
/// plain weights in the exact arithmetic of docs/kernels.md, KV in 16-bit or int8 codes.
/// The bits do not depend on the instruction set or the number of threads. Fails with
/// kInvalidArgument for an unknown ISA and kUnimplemented for one that this machine lacks.
core::Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options);

}  // namespace tandem::kernels
