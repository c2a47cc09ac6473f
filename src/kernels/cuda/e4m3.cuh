#pragma once

// Rounding of activations to e4m3, as FP8-Dynamic does it: docs/kernels.md, "Weights with scales".

#include <cuda_fp8.h>

#include "tandem/kernels/cuda/layouts.cuh"
#include "tandem/kernels/cuda/reduce.cuh"

namespace tandem::kernels::cuda {

/// The scale of values of which the largest magnitude is given.
__device__ inline float e4m3_scale(float largest) {
  return fmaxf(largest / 448.0f, 1.0f / (448.0f * 512.0f));
}

/// The values of the codes nearest to a / scale and b / scale, times `factor`, in fp16.
__device__ inline std::uint32_t e4m3_pair(float a, float b, float scale, float factor) {
  const __nv_fp8x2_storage_t codes =
      __nv_cvt_float2_to_fp8x2({a / scale, b / scale}, __NV_SATFINITE, __NV_E4M3);
  const float2 values = __half22float2(half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3)));
  return as_bits(__floats2half2_rn(values.x * factor, values.y * factor));
}

/// Four columns of a row from `col` on, a multiple of 4, rounded with the row's scale, as out.form
/// stores codes.
__device__ inline void store_e4m3(const HalfRows& out, int row, int col, float4 v, float scale) {
  if (out.form == InputForm::kE4m3Codes) {
    const auto pair = [scale](float a, float b) {
      return static_cast<std::uint32_t>(
          __nv_cvt_float2_to_fp8x2({a / scale, b / scale}, __NV_SATFINITE, __NV_E4M3));
    };
    auto* codes = reinterpret_cast<std::uint8_t*>(out.data);
    *reinterpret_cast<std::uint32_t*>(codes + code_index(row, col, out.row_tiles)) =
        pair(v.x, v.y) | pair(v.z, v.w) << 16;
  } else {
    *reinterpret_cast<uint2*>(out.data + activation_index(row, col, out.row_tiles)) = {
        e4m3_pair(v.x, v.y, scale, 1.0f), e4m3_pair(v.z, v.w, scale, 1.0f)};
  }
}

}  // namespace tandem::kernels::cuda
