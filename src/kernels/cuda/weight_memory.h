#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "tandem/core/checked_math.h"
#include "tandem/kernels/cuda/device_buffer.h"

namespace tandem::kernels::cuda {

/// Device memory of a weight: a share of a larger allocation. Movable, not copyable.
class WeightBuffer {
 public:
  WeightBuffer() = default;
  WeightBuffer(WeightBuffer&& other) noexcept { *this = std::move(other); }
  WeightBuffer& operator=(WeightBuffer&& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  WeightBuffer(const WeightBuffer&) = delete;
  WeightBuffer& operator=(const WeightBuffer&) = delete;

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  std::size_t size() const { return size_; }

 private:
  friend class WeightMemory;
  std::shared_ptr<const DeviceBuffer> block_;  // shared by the weights that lie in it
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Cuts weights from large blocks of device memory: the driver rounds every allocation up to 2 MiB,
/// half as much again for a model with thousands of experts. Small weights fill what larger ones
/// leave of their blocks. A block is freed when no weight is left in it. Thread: one at a time.
class WeightMemory {
 public:
  /// `bytes` zeros, as aligned as cudaMalloc's. kResourceExhausted when the device is full.
  core::Result<WeightBuffer> allocate(std::size_t bytes) {
    if (bytes == 0) return core::Result<WeightBuffer>(WeightBuffer());
    std::erase_if(blocks_, [](const Block& block) { return block.memory.use_count() == 1; });
    auto found = std::find_if(blocks_.begin(), blocks_.end(), [bytes](const Block& block) {
      return block.memory->size() - block.used >= bytes;
    });
    if (found == blocks_.end()) {
      TANDEM_ASSIGN(DeviceBuffer memory, allocate_block(bytes));
      blocks_.push_back({std::make_shared<const DeviceBuffer>(std::move(memory)), 0});
      found = blocks_.end() - 1;
    }
    WeightBuffer out;
    out.block_ = found->memory;
    out.data_ = found->memory->as<std::byte>() + found->used;
    out.size_ = bytes;
    found->used = std::min(core::round_up(found->used + bytes, kAlignment), found->memory->size());
    return core::Result<WeightBuffer>(std::move(out));
  }

  /// A copy of `values` that has arrived.
  template <typename T>
  core::Result<WeightBuffer> copy_of(const std::vector<T>& values) {
    TANDEM_ASSIGN(WeightBuffer buffer, allocate(values.size() * sizeof(T)));
    TANDEM_TRY(copy_to_device(buffer.data_, values));
    return core::Result<WeightBuffer>(std::move(buffer));
  }

 private:
  static constexpr std::size_t kAlignment = 256;
  static constexpr std::size_t kDriverUnit = std::size_t{2} << 20;
  static constexpr std::size_t kBlockBytes = std::size_t{128} << 20;
  static constexpr std::size_t kLargeWeight = kBlockBytes / 2;  // has a block of its own

  struct Block {
    std::shared_ptr<const DeviceBuffer> memory;
    std::size_t used = 0;
  };

  /// With room for `bytes` and, unless these are many or the device nearly full, for more.
  static core::Result<DeviceBuffer> allocate_block(std::size_t bytes) {
    const std::size_t least = core::round_up(bytes, kDriverUnit);
    auto block = DeviceBuffer::allocate(bytes < kLargeWeight ? kBlockBytes : least);
    return block.ok() ? std::move(block) : DeviceBuffer::allocate(least);
  }

  std::vector<Block> blocks_;
};

}  // namespace tandem::kernels::cuda
