#pragma once

// Four columns of a row at a time: what the kernels that touch whole rows share.

#include "tandem/kernels/cuda/layouts.cuh"
#include "tandem/kernels/cuda/reduce.cuh"

namespace tandem::kernels::cuda {

// The gated products are not bounded by a norm: they are stored / 64, so that fp16 reaches 4e6.
constexpr float kGateScale = 64.0f;

__device__ inline float4 load4(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}
__device__ inline void store4(float* p, float4 v) {
  *reinterpret_cast<float4*>(p) = v;
}
__device__ inline float4 operator*(float4 a, float b) {
  return {a.x * b, a.y * b, a.z * b, a.w * b};
}
__device__ inline float4 operator*(float4 a, float4 b) {
  return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}
__device__ inline float4 operator+(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
__device__ inline float sum_of_squares(float4 v) {
  return (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
}
__device__ inline float largest_of(float4 v) {
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

/// No smaller than any magnitude in four columns of rms(a row) * norm, whatever the row of `cols`
/// columns: none of its values is larger than sqrt(cols) times the root mean square.
__device__ inline float most_after_norm(float4 norm, int cols) {
  return sqrtf(static_cast<float>(cols)) * largest_of(norm);
}

/// Four columns from `col` on, a multiple of 4.
__device__ inline void store_half4(const HalfRows& out, int row, int col, float4 v) {
  half2* at = reinterpret_cast<half2*>(out.data + activation_index(row, col, out.row_tiles));
  at[0] = __floats2half2_rn(v.x, v.y);
  at[1] = __floats2half2_rn(v.z, v.w);
}

/// Stores a gated product, saturating; a value that fp16 cannot hold is a broken.
__device__ inline void store_gated(const HalfRows& out, int row, int col, float4 value,
                                   std::int32_t* broken) {
  const float4 v = value * (1.0f / kGateScale);
  if (!(largest_of(v) <= 65504.0f)) broken[row] = 1;
  const auto saturated = [](float x) {
    return fminf(fmaxf(x, -65504.0f), 65504.0f);
  };
  store_half4(out, row, col, {saturated(v.x), saturated(v.y), saturated(v.z), saturated(v.w)});
  if (col == 0) out.scale[row] = kGateScale;
}
__device__ inline float4 gelu4(float4 v) {
  return {gelu_tanh(v.x), gelu_tanh(v.y), gelu_tanh(v.z), gelu_tanh(v.w)};
}

}  // namespace tandem::kernels::cuda
