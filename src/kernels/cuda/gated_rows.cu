#include <cooperative_groups.h>

#include "tandem/kernels/cuda/e4m3.cuh"
#include "tandem/kernels/cuda/gated_rows.h"
#include "tandem/kernels/cuda/launch.cuh"

namespace tandem::kernels::cuda {
namespace {

constexpr int kCtas = 8;  // of a row: a cluster, which shares the row's largest value
constexpr int kMostThreads = 512;
constexpr int kQuads = 2;  // of columns, of a thread
static_assert(kCtas * kMostThreads * kQuads * 4 == kMostGatedCols);

struct Quad {
  float v[4];
};

__device__ Quad quad(float4 v) {
  return {{v.x, v.y, v.z, v.w}};
}

__global__ void __cluster_dims__(kCtas, 1, 1) __launch_bounds__(kMostThreads)
    gated_rows_kernel(Partials p, int up_tile, const float* ple, int ple_stride, int cols,
                      HalfRows out, std::int32_t* broken) {
  __shared__ float scratch[32], largest_here;
  const int row = blockIdx.y;
  TileParts gate_parts[kQuads] = {}, up_parts[kQuads] = {};
  Quad values[kQuads] = {};
  const auto each = [&](auto&& body) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int c = 4 * static_cast<int>((i * kCtas + blockIdx.x) * blockDim.x + threadIdx.x);
      if (c < cols) body(i, c);
    }
  };
  each([&](int i, int c) {
    gate_parts[i] = p.parts[c / kTileRows];
    if (ple == nullptr) up_parts[i] = p.parts[up_tile + c / kTileRows];
  });
  after_previous();
  float largest = 0.0f;
  each([&](int i, int c) {
    const Quad gate = quad(sum_parts(p, gate_parts[i], row, c % kTileRows));
    const Quad up =
        quad(ple == nullptr ? sum_parts(p, up_parts[i], row, c % kTileRows)
                            : *reinterpret_cast<const float4*>(
                                  ple + static_cast<std::size_t>(row) * ple_stride + c));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      values[i].v[j] = gelu_tanh(gate.v[j]) * up.v[j];
      const float size = fabsf(values[i].v[j]);
      if (!(size <= 3.0e38f)) broken[row] = 1;
      largest = fmaxf(largest, size);
    }
  });
  largest = block_max(largest, scratch);
  if (threadIdx.x == 0) largest_here = largest;
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  for (int i = 0; i < kCtas; ++i) {
    largest = fmaxf(largest, *cluster.map_shared_rank(&largest_here, i));
  }
  cluster.sync();  // nobody leaves before all have read
  const float scale = e4m3_scale(largest);
  each([&](int i, int c) {
    uint2 halves = {e4m3_pair(values[i].v[0], values[i].v[1], scale, 1.0f),
                    e4m3_pair(values[i].v[2], values[i].v[3], scale, 1.0f)};
    *reinterpret_cast<uint2*>(out.data + activation_index(row, c, out.row_tiles)) = halves;
    if (c == 0) out.scale[row] = scale;
  });
}

}  // namespace

HalfRows gated_rows(const Partials& p, int up_tile, const float* ple, int ple_stride, int rows,
                    int cols, HalfRows out, std::int32_t* broken, cudaStream_t stream) {
  const int quads = (cols + 3) / 4, per_cta = (quads + kCtas - 1) / kCtas;
  const int threads = (per_cta + 31) / 32 * 32;
  const int used = threads <= kMostThreads ? threads : kMostThreads;
  launch(gated_rows_kernel, dim3(kCtas, static_cast<unsigned>(rows)), static_cast<unsigned>(used),
         0, stream, p, up_tile, ple, ple_stride, cols, out, broken);
  out.form = InputForm::kE4m3Rows;
  return out;
}

}  // namespace tandem::kernels::cuda
