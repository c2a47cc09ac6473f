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

}  // namespace tandem::kernels::cuda
