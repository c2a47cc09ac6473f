// M4: what is lost between kernels? A chain of 300 kernels, each streaming its own weights (about 1
// to 7 us worth) with 132 or 264 CTAs. Time a kernel minus bytes / (best streaming rate) is the gap
// g, for: plain stream launches, a CUDA graph, a graph with programmatic dependent launch (PDL),
// and PDL with the first stages requested before the dependency wait. M6: what a launch of that
// graph costs the host.

#include <chrono>

#include "common.cuh"

constexpr int kKernels = 300;
constexpr int kBrick = 9472;
constexpr int kStages = 6;

__global__ void __launch_bounds__(160)
    link(const uint8_t* data, int bricks, float* chain, int mode) {
  extern __shared__ __align__(128) uint8_t smem[];
  __shared__ uint64_t full[kStages], empty[kStages];
  const bool pdl = mode >= 1, prefetch = mode >= 2;
  const int first = static_cast<int>(static_cast<long long>(bricks) * blockIdx.x / gridDim.x);
  const int last = static_cast<int>(static_cast<long long>(bricks) * (blockIdx.x + 1) / gridDim.x);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&full[i], 1);
      mbarrier_init(&empty[i], 128);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const auto request = [&](int i) {
    mbarrier_expect(&full[i % kStages], kBrick);
    bulk_copy(smem + i % kStages * kBrick, data + static_cast<size_t>(first + i) * kBrick, kBrick,
              &full[i % kStages]);
  };
  const int count = last - first, ahead = count < kStages ? count : kStages;
  if (prefetch && threadIdx.x == 128) {
    for (int i = 0; i < ahead; ++i) request(i);
  }
  if (pdl) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  }
  const float before = chain[0];
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128) {
      for (int i = prefetch ? ahead : 0; i < count; ++i) {
        if (i >= kStages) mbarrier_wait(&empty[i % kStages], (i / kStages - 1) & 1);
        request(i);
      }
    }
    return;
  }
  uint32_t sum = 0;
  for (int i = 0; i < count; ++i) {
    mbarrier_wait(&full[i % kStages], (i / kStages) & 1);
    const uint4* words = reinterpret_cast<const uint4*>(smem + i % kStages * kBrick);
    for (int w = threadIdx.x; w < kBrick / 16; w += 128) {
      const uint4 v = words[w];
      sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    mbarrier_arrive(&empty[i % kStages]);
  }
  chain[1 + blockIdx.x * 128 + threadIdx.x] = before + static_cast<float>(sum & 1);
}

void enqueue(cudaStream_t stream, const uint8_t* data, size_t span, int bricks, int grid,
             float* chain, int mode) {
  for (int k = 0; k < kKernels; ++k) {
    const size_t room = span / kBrick - bricks;
    const uint8_t* at = data + (static_cast<size_t>(k) * bricks % room) * kBrick;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = 160;
    config.dynamicSmemBytes = kStages * kBrick;
    config.stream = stream;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = mode >= 1 ? 1 : 0;
    CUDA_OK(cudaLaunchKernelEx(&config, link, at, bricks, chain, mode));
  }
}

int main() {
  const size_t span = size_t{3} << 30;
  uint8_t* data;
  float* chain;
  CUDA_OK(cudaMalloc(&data, span));
  CUDA_OK(cudaMalloc(&chain, (1 + 264 * 128) * 4));
  std::vector<uint32_t> noise(16 << 20);
  for (size_t i = 0; i < noise.size(); ++i) noise[i] = hash32(static_cast<uint32_t>(i));
  for (size_t at = 0; at < span; at += noise.size() * 4) {
    CUDA_OK(cudaMemcpy(data + at, noise.data(), noise.size() * 4, cudaMemcpyHostToDevice));
  }
  CUDA_OK(cudaMemset(chain, 0, 4));
  CUDA_OK(cudaFuncSetAttribute(link, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 * 1024));
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreate(&stream));
  for (int grid : {132, 264}) {
    const int big = 200000;
    link<<<grid, 160, kStages * kBrick, stream>>>(data, big, chain, 0);
    const Stat bulk = time_ms(
        stream, 5, [&] { link<<<grid, 160, kStages * kBrick, stream>>>(data, big, chain, 0); });
    const double rate = static_cast<double>(big) * kBrick / bulk.median / 1e6;
    std::printf("M4 | grid %d | one large kernel: %.0f GB/s\n", grid, rate);
    for (int bricks : {80, 465, 1560, 3120}) {
      const double ideal_us = bricks * static_cast<double>(kBrick) / rate / 1e3;
      for (int variant = 0; variant < 4; ++variant) {
        const char* names[] = {"stream", "graph", "graph+PDL", "graph+PDL+prefetch"};
        const int mode = variant < 2 ? 0 : variant - 1;
        cudaGraphExec_t graph = nullptr;
        if (variant > 0) {
          cudaGraph_t captured;
          CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
          enqueue(stream, data, span, bricks, grid, chain, mode);
          CUDA_OK(cudaStreamEndCapture(stream, &captured));
          CUDA_OK(cudaGraphInstantiate(&graph, captured, 0));
        }
        double host_us = 0;
        const Stat t = time_ms(stream, 9, [&] {
          const auto begin = std::chrono::steady_clock::now();
          if (graph != nullptr) {
            CUDA_OK(cudaGraphLaunch(graph, stream));
          } else {
            enqueue(stream, data, span, bricks, grid, chain, mode);
          }
          host_us =
              std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
                  .count();
        });
        const double each_us = t.median * 1e3 / kKernels;
        std::printf(
            "M4 | grid %d | %5.2f MB a kernel | %-18s | %6.2f us a kernel | bytes alone %5.2f | "
            "gap %5.2f us | "
            "M6 host %6.1f us a launch of %d\n",
            grid, bricks * kBrick / 1e6, names[variant], each_us, ideal_us, each_us - ideal_us,
            host_us, kKernels);
      }
    }
  }
}
