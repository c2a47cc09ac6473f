#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tandem/kernels/cuda/device_buffer.h"
#include "tandem/kernels/weight.h"

namespace tandem::kernels::cuda {

/// A table in host memory, in the file's form, as the device reads it over the bus.
struct HostRows {
  const std::uint8_t* rows = nullptr;  ///< device address
  std::size_t row_bytes = 0;
  core::DType dtype = core::DType::kF32;
  float factor = 1.0F;
};

/// A table that stays in host memory: a copy in pages that the device may read. (To register the
/// mapped file's own pages took more than a minute for 2 GB on a virtual machine.)
class HostTable {
 public:
  HostTable() = default;
  /// kUnimplemented for types whose rows have no kernel; `name` is for messages.
  static core::Result<HostTable> create(const WeightView& view, std::string_view name);

  const HostRows& rows() const { return rows_; }
  std::size_t bytes() const { return copy_.size(); }

 private:
  PinnedBuffer copy_;
  HostRows rows_;
};

/// out[r * cols + c] = table[tokens[r * stride]][c] * scale, exactly as the file's formula gives
/// it. Only the rows that are named cross the bus.
void gather_host_rows(const HostRows& table, const std::int32_t* tokens, int stride, int num_rows,
                      int cols, float scale, float* out, cudaStream_t stream);

}  // namespace tandem::kernels::cuda
