// M1: does mma.sync m16n8k16 give the same bits as wgmma m64nNk16 for fp16 x fp16 -> fp32, for
// every N and for a long K chain? If so, a weight's result may be computed by either family.
//
// One block = one 64 x N tile with K = 16 * kSteps, both ways, from the same operands. Operands are
// random, or adversarial: magnitudes spread over 2^20, sums that cancel, subnormals.

#include "common.cuh"
#include "wgmma.cuh"

constexpr int kSteps = 64;

__device__ half operand(uint32_t seed, int mode) {
  const uint32_t h = hash32(seed);
  const float unit = (static_cast<float>(h & 0xffff) - 32768.0f) / 32768.0f;
  if (mode == 0) return __float2half(unit);
  if (mode == 1) return __float2half(ldexpf(unit, static_cast<int>((h >> 16) % 21) - 10));
  if (mode == 2) return __float2half((h >> 20) & 1 ? 1024.0f + unit : -1024.0f + unit);
  return __float2half(ldexpf(unit, -18));
}

template <int N>
__global__ void compare(int mode, unsigned long long* different, unsigned long long* total) {
  __shared__ alignas(128) half b_tile[2 * N * 8];  // [k half][n / 8] core matrices of 8 x 8
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t base = blockIdx.x * 0x9e3779b9u + mode * 77u;
  float wide[N / 2] = {};
  float narrow[N / 8][4] = {};
  const auto a_value = [&](int row, int k) {
    return operand(base ^ (row * 4096u + k), mode);
  };
  const auto b_value = [&](int n, int k) {
    return operand(base ^ (0x80000000u + n * 4096u + k), mode);
  };
  for (int step = 0; step < kSteps; ++step) {
    const int k0 = 16 * step;
    __syncthreads();
    for (int i = threadIdx.x; i < N * 16; i += blockDim.x) {
      const int n = i / 16, k = i % 16;
      b_tile[(k / 8) * N * 8 + n * 8 + k % 8] = b_value(n, k0 + k);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    uint32_t a[4];
    const int row = 16 * warp + lane / 4, col = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
      const half2 pair = __halves2half2(a_value(row + 8 * (i & 1), k0 + col + 8 * (i / 2)),
                                        a_value(row + 8 * (i & 1), k0 + col + 8 * (i / 2) + 1));
      a[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    wgmma_fence();
    wgmma_rs<N>(wide, a, wgmma_descriptor(b_tile, N * 16, 128));
    wgmma_commit();
    wgmma_wait<0>();
    for (int t = 0; t < N / 8; ++t) {
      uint32_t b[2];
      for (int i = 0; i < 2; ++i) {
        const int n = 8 * t + lane / 4;
        const half2 pair =
            __halves2half2(b_value(n, k0 + col + 8 * i), b_value(n, k0 + col + 8 * i + 1));
        b[i] = *reinterpret_cast<const uint32_t*>(&pair);
      }
      mma_m16n8k16(narrow[t], a, b);
    }
  }
  unsigned long long bad = 0;
  for (int t = 0; t < N / 8; ++t) {
    for (int i = 0; i < 4; ++i)
      bad += __float_as_uint(wide[4 * t + i]) != __float_as_uint(narrow[t][i]);
  }
  atomicAdd(different, bad);
  atomicAdd(total, static_cast<unsigned long long>(N / 2));
}

template <int N>
void report(unsigned long long* counters) {
  for (int mode = 0; mode < 4; ++mode) {
    CUDA_OK(cudaMemset(counters, 0, 16));
    compare<N><<<264, 128>>>(mode, counters, counters + 1);
    CUDA_OK(cudaDeviceSynchronize());
    unsigned long long host[2];
    CUDA_OK(cudaMemcpy(host, counters, sizeof host, cudaMemcpyDeviceToHost));
    std::printf("M1 | N %3d | operands %d | K %d | dots %llu | different %llu\n", N, mode,
                16 * kSteps, host[1], host[0]);
  }
}

int main() {
  unsigned long long* counters;
  CUDA_OK(cudaMalloc(&counters, 16));
  report<8>(counters);
  report<16>(counters);
  report<32>(counters);
  report<64>(counters);
  report<128>(counters);
}
