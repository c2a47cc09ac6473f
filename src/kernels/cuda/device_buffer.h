#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "tandem/kernels/cuda/error.h"

namespace tandem::kernels::cuda {

/// Copies `values` to device memory at `to`, which has room for them; they have arrived on return.
template <typename T>
core::Status copy_to_device(void* to, const std::vector<T>& values) {
  if (values.empty()) return {};
  TANDEM_CUDA(cudaMemcpy(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  TANDEM_CUDA(cudaStreamSynchronize(nullptr));
  return {};
}

/// Owned, zeroed device memory. Movable, not copyable.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  /// Fails with kResourceExhausted when the device is full.
  static core::Result<DeviceBuffer> allocate(std::size_t bytes) {
    DeviceBuffer buffer;
    if (bytes == 0) return core::Result<DeviceBuffer>(std::move(buffer));
    const cudaError_t error = cudaMalloc(&buffer.data_, bytes);
    if (error == cudaErrorMemoryAllocation) return no_room(bytes);
    TANDEM_CUDA(error);
    buffer.size_ = bytes;
    TANDEM_CUDA(cudaMemset(buffer.data_, 0, bytes));
    // Streams that do not wait for the default one may use the memory at once.
    TANDEM_CUDA(cudaStreamSynchronize(nullptr));
    return core::Result<DeviceBuffer>(std::move(buffer));
  }

  /// A copy of `values` that has arrived.
  template <typename T>
  static core::Result<DeviceBuffer> copy_of(const std::vector<T>& values) {
    TANDEM_ASSIGN(DeviceBuffer buffer, allocate(values.size() * sizeof(T)));
    TANDEM_TRY(copy_to_device(buffer.data_, values));
    return core::Result<DeviceBuffer>(std::move(buffer));
  }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Owned host memory that the device copies from and to without a detour. Movable, not copyable.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  ~PinnedBuffer() { cudaFreeHost(data_); }
  PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  static core::Result<PinnedBuffer> allocate(std::size_t bytes) {
    PinnedBuffer buffer;
    TANDEM_CUDA(cudaHostAlloc(&buffer.data_, bytes, cudaHostAllocDefault));
    buffer.size_ = bytes;
    return core::Result<PinnedBuffer>(std::move(buffer));
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tandem::kernels::cuda
