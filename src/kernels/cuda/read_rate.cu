#include <algorithm>

#include "tandem/kernels/cuda/device_buffer.h"
#include "tandem/kernels/cuda/read_rate.h"

namespace tandem::kernels::cuda {
namespace {

constexpr std::size_t kBytes = std::size_t{1} << 30;
constexpr int kSweeps = 7;
constexpr int kThreads = 512;

__global__ void read_kernel(const uint4* words, std::size_t count, unsigned int* out) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  unsigned int all = 0;
#pragma unroll 8
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += step) {
    const uint4 v = words[i];
    all |= v.x | v.y | v.z | v.w;
  }
  if (all != 0) *out = all;  // never: the memory is zero
}

struct Event {
  cudaEvent_t value = nullptr;
  Event() { cudaEventCreate(&value); }
  ~Event() { cudaEventDestroy(value); }
};

}  // namespace

core::Result<double> measure_read_rate(cudaStream_t stream) {
  TANDEM_ASSIGN(const DeviceBuffer memory, DeviceBuffer::allocate(kBytes + sizeof(uint4)));
  int device = 0, sms = 0;
  TANDEM_CUDA(cudaGetDevice(&device));
  TANDEM_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  const std::size_t count = kBytes / sizeof(uint4);
  const Event begin, end;
  float best = 0;
  for (int i = 0; i < kSweeps; ++i) {
    TANDEM_CUDA(cudaEventRecord(begin.value, stream));
    read_kernel<<<4 * sms, kThreads, 0, stream>>>(memory.as<uint4>(), count,
                                                  memory.as<unsigned int>() + kBytes / 4);
    TANDEM_CUDA(cudaEventRecord(end.value, stream));
    TANDEM_CUDA(cudaEventSynchronize(end.value));
    float ms = 0;
    TANDEM_CUDA(cudaEventElapsedTime(&ms, begin.value, end.value));
    if (i > 0) best = std::max(best, 1e3f * static_cast<float>(kBytes) / ms);
  }
  return static_cast<double>(best);
}

}  // namespace tandem::kernels::cuda
