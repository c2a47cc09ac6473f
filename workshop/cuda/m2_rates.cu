// M2: how many Q4_K weights a clock can one SM expand and multiply? Bricks of 64 x 256 weights lie
// in shared memory; each warp expands its m16k16 fragments to fp16 in registers and multiplies them
// by N rows, by wgmma (A from registers) or by mma.sync. Without expansion: the tensor cores' own
// rate. Streaming at 4.3 TB/s over 132 SMs at 1.98 GHz needs 29 Q4_K weights a clock (4.625 bit
// each).

#include "common.cuh"
#include "wgmma.cuh"

constexpr int kBricks = 4;            // in shared memory, read round and round
constexpr int kCodeBytes = 64 * 128;  // nibbles of a brick
constexpr int kIterations = 512;

// w holds 8 nibbles: half2 pairs (row r, k..k+1), (row r+8, same), (row r, k+8..), (row r+8,
// k+8..).
__device__ inline void expand_q4(uint32_t w, half2 s0, half2 m0, half2 s1, half2 m1,
                                 uint32_t (&a)[4]) {
  const half2 bias = __float2half2_rn(-1024.0f), sixteenth = __float2half2_rn(0.0625f);
  const half2 high_bias = __float2half2_rn(-64.0f);
  const auto low = [&](uint32_t bits) {
    const uint32_t h = (bits & 0x000f000fu) | 0x64006400u;
    return __hadd2(*reinterpret_cast<const half2*>(&h), bias);
  };
  const auto high = [&](uint32_t bits) {
    const uint32_t h = (bits & 0x00f000f0u) | 0x64006400u;
    return __hfma2(*reinterpret_cast<const half2*>(&h), sixteenth, high_bias);
  };
  const half2 v0 = __hfma2(low(w), s0, m0), v1 = __hfma2(high(w), s1, m1);
  w >>= 8;
  const half2 v2 = __hfma2(low(w), s0, m0), v3 = __hfma2(high(w), s1, m1);
  a[0] = *reinterpret_cast<const uint32_t*>(&v0);
  a[1] = *reinterpret_cast<const uint32_t*>(&v1);
  a[2] = *reinterpret_cast<const uint32_t*>(&v2);
  a[3] = *reinterpret_cast<const uint32_t*>(&v3);
}

template <int N, bool kWgmma, bool kExpand>
__global__ void __launch_bounds__(256, 1) rate(float* sink, long long* clocks) {
  extern __shared__ __align__(128) uint8_t smem[];
  half* b_tile = reinterpret_cast<half*>(smem + kBricks * (kCodeBytes + 1280));
  const int warp = (threadIdx.x / 32) % 4, lane = threadIdx.x % 32, group = threadIdx.x / 128;
  for (int i = threadIdx.x; i < kBricks * (kCodeBytes + 1280) / 4; i += blockDim.x) {
    reinterpret_cast<uint32_t*>(smem)[i] = hash32(i) & 0x3fff3fffu;
  }
  for (int i = threadIdx.x; i < N * 256; i += blockDim.x) {
    b_tile[i] = __float2half(static_cast<float>(hash32(i) & 255) / 512.0f - 0.25f);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  float wide[N / 2] = {};
  float narrow[N / 8][4] = {};
  const long long begin = clock64();
  for (int it = 0; it < kIterations; ++it) {
    const uint8_t* brick = smem + ((it + group) % kBricks) * (kCodeBytes + 1280);
    const uint4* codes = reinterpret_cast<const uint4*>(brick) + warp * 128 + lane;
    const half2* scales = reinterpret_cast<const half2*>(brick + kCodeBytes);
#pragma unroll
    for (int quad = 0; quad < 4; ++quad) {  // 4 k-steps each
      const uint4 word = codes[32 * quad];
      const uint32_t words[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        uint32_t a[4] = {words[s], words[s], words[s], words[s]};
        if constexpr (kExpand) {
          const int row = (16 * warp + lane / 4) * 2 + (quad * 2 + s / 2) % 8;
          expand_q4(words[s], scales[row], scales[row + 16], scales[row + 32], scales[row + 48], a);
        }
        const int step = 4 * quad + s;
        if constexpr (kWgmma) {
          wgmma_fence();
          wgmma_rs<N>(wide, a, wgmma_descriptor(b_tile + step * N * 16, N * 16, 128));
          wgmma_commit();
          if (s == 3) wgmma_wait<1>();
        } else {
#pragma unroll
          for (int t = 0; t < N / 8; ++t) {
            const uint2 pair =
                reinterpret_cast<const uint2*>(b_tile)[(step * N / 8 + t) * 32 + lane];
            const uint32_t b[2] = {pair.x, pair.y};
            mma_m16n8k16(narrow[t], a, b);
          }
        }
      }
    }
  }
  if constexpr (kWgmma) wgmma_wait<0>();
  const long long end = clock64();
  float sum = 0;
  for (float v : wide) sum += v;
  for (auto& t : narrow) sum += t[0] + t[1] + t[2] + t[3];
  sink[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  if (threadIdx.x == 0) clocks[blockIdx.x] = end - begin;
}

template <int N, bool kWgmma, bool kExpand>
void report(float* sink, long long* clocks) {
  auto* kernel = rate<N, kWgmma, kExpand>;
  const int smem = kBricks * (kCodeBytes + 1280) + N * 512;
  CUDA_OK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
  for (int groups = 1; groups <= 2; ++groups) {
    for (int i = 0; i < 2; ++i) kernel<<<132, 128 * groups, smem>>>(sink, clocks);
    CUDA_OK(cudaDeviceSynchronize());
    long long host[132];
    CUDA_OK(cudaMemcpy(host, clocks, sizeof host, cudaMemcpyDeviceToHost));
    std::sort(host, host + 132);
    const double weights = 64.0 * 256 * kIterations * groups;
    std::printf(
        "M2 | %-8s | N %3d | %-6s | warpgroups %d | weights/clk/SM %6.1f | MAC/clk/SM %7.0f\n",
        kWgmma ? "wgmma" : "mma.sync", N, kExpand ? "Q4_K" : "none", groups,
        weights / static_cast<double>(host[66]), weights * N / static_cast<double>(host[66]));
  }
}

int main() {
  float* sink;
  long long* clocks;
  CUDA_OK(cudaMalloc(&sink, 132 * 256 * 4));
  CUDA_OK(cudaMalloc(&clocks, 132 * 8));
  report<8, true, false>(sink, clocks);
  report<32, true, false>(sink, clocks);
  report<64, true, false>(sink, clocks);
  report<128, true, false>(sink, clocks);
  report<8, true, true>(sink, clocks);
  report<16, true, true>(sink, clocks);
  report<32, true, true>(sink, clocks);
  report<64, true, true>(sink, clocks);
  report<128, true, true>(sink, clocks);
  report<8, false, false>(sink, clocks);
  report<32, false, false>(sink, clocks);
  report<64, false, false>(sink, clocks);
  report<8, false, true>(sink, clocks);
  report<16, false, true>(sink, clocks);
  report<32, false, true>(sink, clocks);
  report<64, false, true>(sink, clocks);
}
