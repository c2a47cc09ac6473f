#pragma once

// Block reductions with one fixed order, and the gelu of the model.

#include <cstdint>

namespace tandem::kernels::cuda {

template <typename T, typename Op>
__device__ T block_reduce(T value, T* scratch, Op op) {  // scratch: [32] of shared memory
  for (int offset = 16; offset > 0; offset /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  const int warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[warp] = value;
  __syncthreads();
  T total = scratch[0];
  for (int i = 1; i < warps; ++i) total = op(total, scratch[i]);
  return total;
}
__device__ inline float block_sum(float value, float* scratch) {
  return block_reduce(value, scratch, [](float a, float b) { return a + b; });
}
__device__ inline float block_max(float value, float* scratch) {
  return block_reduce(value, scratch, [](float a, float b) { return fmaxf(a, b); });
}

/// The power of two that brings a row whose largest magnitude is `largest` to at most 2^14.
__device__ inline float row_scale(float largest) {
  if (!(largest > 0.0f) || largest > 3.0e38f) return 1.0f;
  return ldexpf(1.0f, ilogbf(largest) - 13);
}

__device__ inline float gelu_tanh(float x) {
  const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + tanhf(inner));
}

}  // namespace tandem::kernels::cuda
