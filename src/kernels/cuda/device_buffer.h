#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#include "tandem/kernels/cuda/error.h"

namespace tandem::kernels::cuda {

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
    TANDEM_CUDA(cudaMalloc(&buffer.data_, bytes));
    buffer.size_ = bytes;
    TANDEM_CUDA(cudaMemset(buffer.data_, 0, bytes));
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

}  // namespace tandem::kernels::cuda
