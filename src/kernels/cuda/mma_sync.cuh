#pragma once

// A brick times 8 NT rows by mma.sync m16n8k16: a warp has 16 outputs.

#include "tandem/kernels/cuda/bricks.cuh"
#include "tandem/kernels/cuda/pipeline.cuh"

namespace tandem::kernels::cuda {

/// The B fragments of two k-steps: four core matrices of 8 rows x 8 K, a row of one from each
/// lane's address.
__device__ inline uint4 load_fragments(const uint4* at) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(smem_address(at)));
  return v;
}

struct MmaSync {
  template <BrickKind kKind, int NT>
  __device__ static void multiply(const std::uint8_t* brick, const std::uint8_t* rows, int warp,
                                  int lane, float (&acc)[NT][4]) {
    const uint4* x = reinterpret_cast<const uint4*>(rows) + lane;
    BrickReader<kKind> reader;
    reader.begin(brick, warp, lane);
#pragma unroll
    for (int chunk = 0; chunk < kBrickChunks; ++chunk) {
      reader.load(chunk);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        std::uint32_t low[4], high[4];
        reader.fragment(2 * pair, low);
        reader.fragment(2 * pair + 1, high);
#pragma unroll
        for (int t = 0; t < NT; ++t) {
          const uint4 b = load_fragments(x + (t * 8 + 2 * chunk + pair) * 32);
          mma_m16n8k16(acc[t], low, b.x, b.y);
          mma_m16n8k16(acc[t], high, b.z, b.w);
        }
      }
    }
  }
};

}  // namespace tandem::kernels::cuda
