// M3: how fast do bricks arrive? Each CTA walks its own contiguous run of bricks with cp.async.bulk
// into a ring of shared-memory stages; consumers read every byte once. Bytes over time, for brick
// sizes of Q4_K (9,472) and Q6_K (13,440), stages and CTAs a SM; and for a working set that fits
// the L2.

#include "common.cuh"

__global__ void __launch_bounds__(160) stream(const uint8_t* data, int brick, int bricks_per_cta,
                                              int stages, int rounds, uint32_t* sink) {
  extern __shared__ __align__(128) uint8_t smem[];
  __shared__ uint64_t full[16], empty[16];
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(&full[i], 1);
      mbarrier_init(&empty[i], 128);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const int total = bricks_per_cta * rounds;
  const uint8_t* run = data + static_cast<size_t>(blockIdx.x) * bricks_per_cta * brick;
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128) {
      for (int i = 0; i < total; ++i) {
        const int s = i % stages;
        if (i >= stages) mbarrier_wait(&empty[s], (i / stages - 1) & 1);
        mbarrier_expect(&full[s], brick);
        bulk_copy(smem + s * brick, run + static_cast<size_t>(i % bricks_per_cta) * brick, brick,
                  &full[s]);
      }
    }
    return;
  }
  uint32_t sum = 0;
  for (int i = 0; i < total; ++i) {
    const int s = i % stages;
    mbarrier_wait(&full[s], (i / stages) & 1);
    const uint4* words = reinterpret_cast<const uint4*>(smem + s * brick);
    for (int w = threadIdx.x; w < brick / 16; w += 128) {
      const uint4 v = words[w];
      sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    mbarrier_arrive(&empty[s]);
  }
  sink[blockIdx.x * 128 + threadIdx.x] = sum;
}

int main() {
  const size_t bytes = size_t{3} << 30;
  uint8_t* data;
  uint32_t* sink;
  CUDA_OK(cudaMalloc(&data, bytes));
  CUDA_OK(cudaMalloc(&sink, 132 * 4 * 128 * 4));
  std::vector<uint32_t> noise(16 << 20);
  for (size_t i = 0; i < noise.size(); ++i) noise[i] = hash32(static_cast<uint32_t>(i));
  for (size_t at = 0; at < bytes; at += noise.size() * 4) {
    CUDA_OK(cudaMemcpy(data + at, noise.data(), noise.size() * 4, cudaMemcpyHostToDevice));
  }
  CUDA_OK(cudaFuncSetAttribute(stream, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 * 1024));
  for (const auto& [where, limit] :
       {std::pair{"HBM", size_t{2} << 30}, std::pair{"L2", size_t{24} << 20}}) {
    for (int brick : {9472, 13440}) {
      for (int ctas_per_sm : {1, 2, 3}) {
        for (int stages : {2, 4, 6, 8, 12}) {
          if (ctas_per_sm * stages * brick > 200 * 1024) continue;
          const int grid = 132 * ctas_per_sm;
          const int per_cta = static_cast<int>(limit / grid / brick);
          const int rounds = limit < (size_t{1} << 30) ? 32 : 1;
          const Stat t = time_ms(nullptr, 5, [&] {
            stream<<<grid, 160, stages * brick>>>(data, brick, per_cta, stages, rounds, sink);
          });
          const double moved = static_cast<double>(grid) * per_cta * rounds * brick;
          std::printf("M3 | %-3s | brick %5d | CTAs/SM %d | stages %2d | GB/s %6.0f (%.0f..%.0f)\n",
                      where, brick, ctas_per_sm, stages, moved / t.median / 1e6,
                      moved / t.max / 1e6, moved / t.min / 1e6);
        }
      }
    }
  }
}
