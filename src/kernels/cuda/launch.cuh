#pragma once

// Launches that overlap. A kernel may start while the one before it on the stream still runs, so
// that its start-up costs nothing; every thread of every kernel waits for the previous one before
// it touches memory that other kernels write, and so the end of a kernel also means the end of all
// before it.

#include <cuda_runtime.h>

#include <cstddef>

namespace tandem::kernels::cuda {

/// Waits for the kernels before this one. Weights and other constants and what the step's block
/// holds may be read earlier; where the kernel before comes with after_previous(), also what any
/// kernel before that one wrote.
__device__ inline void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
/// Lets the next kernel start, once every block has come here or ended. Before this one waits only
/// where the next one reads nothing early that this one or an earlier kernel still writes.
__device__ inline void let_next_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ inline void after_previous() {
  wait_for_previous();
  let_next_start();
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

/// Of such a launch whose grid consists of clusters of `ranks` blocks along x. `attributes` must
/// live until it is made.
inline cudaLaunchConfig_t cluster_launch(int ranks, dim3 grid, unsigned threads, std::size_t shared,
                                         cudaStream_t stream,
                                         cudaLaunchAttribute (&attributes)[2]) {
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = static_cast<unsigned>(ranks);
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return config;
}

}  // namespace tandem::kernels::cuda
