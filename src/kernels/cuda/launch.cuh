#pragma once

// Launches that overlap. A kernel may start while the one before it on the stream still runs, so
// that its start-up costs nothing; every thread of every kernel calls after_previous() before it
// touches memory that other kernels write. Since the call comes first, the end of a kernel also
// means the end of all before it.

#include <cuda_runtime.h>

#include <cstddef>

namespace tandem::kernels::cuda {

/// Waits for the kernels before this one and lets the next one start. What may be read earlier:
/// weights and other constants, what the step's block holds, and what a kernel before the previous
/// one wrote.
__device__ inline void after_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Enqueues kernel<<<grid, threads, shared, stream>>>(arguments...); failures show in
/// cudaGetLastError().
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, std::size_t shared,
            cudaStream_t stream, Arguments... arguments) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace tandem::kernels::cuda
