#include "tandem/kernels/cuda/e4m3.cuh"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/round_rows.h"

namespace tandem::kernels::cuda {
namespace {

constexpr int kThreads = 512;

struct Eight {
  float v[8];
};

__device__ Eight load_eight(const uint4* at, float scale) {
  const uint4 raw = *at;
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  Eight out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(as_half2(words[i]));
    out.v[2 * i] = pair.x * scale;
    out.v[2 * i + 1] = pair.y * scale;
  }
  return out;
}

__device__ float largest_of(const Eight& e) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(e.v[i]));
  return largest;
}

__device__ uint4 rounded(const Eight& e, float scale, float factor) {
  return {e4m3_pair(e.v[0], e.v[1], scale, factor), e4m3_pair(e.v[2], e.v[3], scale, factor),
          e4m3_pair(e.v[4], e.v[5], scale, factor), e4m3_pair(e.v[6], e.v[7], scale, factor)};
}

// A block a row; a thread eight columns at a time, so that 16 neighbours have 128 columns.
template <bool kBlocks>
__global__ void __launch_bounds__(kThreads) round_kernel(HalfRows x, HalfRows out) {
  __shared__ float scratch[32];
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.x, chunks = (x.cols + 255) / 256 * 32;
  const float x_scale = x.scale[row];
  const auto place = [&](const HalfRows& rows, int chunk) {
    const std::size_t tile = static_cast<std::size_t>(chunk / 32) * rows.row_tiles + row / 8;
    return reinterpret_cast<uint4*>(rows.data) + tile * 256 + chunk % 32 * 8 + row % 8;
  };
  float largest = 0.0f;
  for (int i = threadIdx.x; i < chunks; i += kThreads) {
    largest = fmaxf(largest, largest_of(load_eight(place(x, i), x_scale)));
  }
  largest = block_max(largest, scratch);
  const float row_scale_of_out = kBlocks ? row_scale(largest) : e4m3_scale(largest);
  for (int i = threadIdx.x; i < chunks; i += kThreads) {  // by whole warps
    const Eight e = load_eight(place(x, i), x_scale);
    float scale = row_scale_of_out, factor = 1.0f;
    if (kBlocks) {
      float of_block = largest_of(e);
      for (int offset = 8; offset > 0; offset /= 2) {
        of_block = fmaxf(of_block, __shfl_xor_sync(0xffffffffu, of_block, offset));
      }
      scale = e4m3_scale(of_block);
      factor = scale / row_scale_of_out;
    }
    if (out.form == InputForm::kE4m3Codes) {
      store_e4m3(out, row, 8 * i, {e.v[0], e.v[1], e.v[2], e.v[3]}, scale);
      store_e4m3(out, row, 8 * i + 4, {e.v[4], e.v[5], e.v[6], e.v[7]}, scale);
    } else {
      *place(out, i) = rounded(e, scale, factor);
    }
  }
  if (threadIdx.x == 0) out.scale[row] = row_scale_of_out;
}

}  // namespace

HalfRows round_rows(const HalfRows& x, int rows, InputForm form, HalfRows out,
                    cudaStream_t stream) {
  const auto kernel = form == InputForm::kE4m3Blocks ? round_kernel<true> : round_kernel<false>;
  out.form = form;
  launch(kernel, dim3(static_cast<unsigned>(rows)), kThreads, 0, stream, x, out);
  return out;
}

}  // namespace tandem::kernels::cuda
