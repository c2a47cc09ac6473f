#pragma once

// Block reductions with one fixed order, and the gelu of the model.

#include <cstdint>

namespace tandem::kernels::cuda {

/// Over the block, in one fixed order; T{} is neutral. `scratch`: [32] of shared memory that nobody
/// has used before.
template <typename T, typename Op>
__device__ T block_reduce_once(T value, T* scratch, Op op) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if (lane == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = lane < warps ? scratch[lane] : T{};
  for (int offset = 16; offset > 0; offset /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}
/// The same where the last readers of `scratch` may still be at work.
template <typename T, typename Op>
__device__ T block_reduce(T value, T* scratch, Op op) {
  __syncthreads();
  return block_reduce_once(value, scratch, op);
}
__device__ inline float block_sum_once(float value, float* scratch) {
  return block_reduce_once(value, scratch, [](float a, float b) { return a + b; });
}
/// Over the warp, in one fixed order.
__device__ inline float warp_sum(float value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}
struct SumAndLargest {
  float sum, largest;
};
/// Over the warp, the sums in one fixed order; the values behind `largest` are not negative, so
/// that their bits have their order.
__device__ inline SumAndLargest over_warp(SumAndLargest v) {
  v.sum = warp_sum(v.sum);
  v.largest = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(v.largest)));
  return v;
}

/// Of values that are not negative.
__device__ inline float block_max(float value, float* scratch) {
  return block_reduce(value, scratch, [](float a, float b) { return fmaxf(a, b); });
}

/// Larger for larger values and, among equal ones, for lower ids.
__device__ inline unsigned long long order_key(float value, int id) {
  const std::uint32_t bits = __float_as_uint(value);
  const std::uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(ordered) << 32 |
         (0xffffffffu - static_cast<std::uint32_t>(id));
}
__device__ inline int id_of_key(unsigned long long key) {
  return static_cast<int>(0xffffffffu - static_cast<std::uint32_t>(key));
}

/// The power of two that brings a row whose largest magnitude is `largest` to at most 2^14.
__device__ inline float row_scale(float largest) {
  if (!(largest > 0.0f) || largest > 3.0e38f) return 1.0f;
  const std::uint32_t exponent = __float_as_uint(largest) >> 23;
  return __uint_as_float((max(exponent, 14u) - 13) << 23);
}
/// 1 / a power of two whose reciprocal is normal, such as a row_scale().
__device__ inline float inverse_power(float power) {
  return __uint_as_float((254u << 23) - __float_as_uint(power));
}
/// 1 / the root mean square of `size` values.
__device__ inline float inverse_rms(float sum_of_squares, int size, float eps) {
  return rsqrtf(__fdividef(sum_of_squares, static_cast<float>(size)) + eps);
}

__device__ inline float gelu_tanh(float x) {
  const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + tanhf(inner));
}

}  // namespace tandem::kernels::cuda
