#include <algorithm>
#include <cstring>
#include <string>

#include "tandem/kernels/cuda/file_value.cuh"
#include "tandem/kernels/cuda/host_table.h"
#include "tandem/kernels/cuda/launch.cuh"

namespace tandem::kernels::cuda {
namespace {

constexpr int kChunkCols = 1024;  // of a block of threads: whole blocks of every type
constexpr int kChunkBytes = kChunkCols * 4 + 32;

/// A block a (row, chunk). Loads of 16 bytes, all of them in flight at once: a trip over the bus
/// takes longer than everything else.
__global__ void gather_kernel(HostRows table, FileBlock block, const std::int32_t* tokens,
                              int stride, int cols, float scale, float* out) {
  __shared__ __align__(16) std::uint8_t staged[kChunkBytes];
  after_previous();
  const int first = blockIdx.y * kChunkCols, count = min(kChunkCols, cols - first);
  const std::uint8_t* begin = table.rows + tokens[blockIdx.x * stride] * table.row_bytes +
                              first / block.elements * block.bytes;
  const std::uint8_t* end = begin + count / block.elements * block.bytes;
  const auto skipped = static_cast<int>(reinterpret_cast<std::uintptr_t>(begin) % 16);
  const uint4* from = reinterpret_cast<const uint4*>(begin - skipped);
  const auto words = static_cast<int>((end - begin + skipped + 15) / 16);
  for (int i = threadIdx.x; i < words; i += blockDim.x) {
    reinterpret_cast<uint4*>(staged)[i] = from[i];
  }
  __syncthreads();
  float* to = out + static_cast<std::size_t>(blockIdx.x) * cols + first;
  for (int c = threadIdx.x; c < count; c += blockDim.x) {
    const std::uint8_t* at = staged + skipped + c / block.elements * block.bytes;
    to[c] = file_value(block.form, at, c % block.elements) * table.factor * scale;
  }
}

}  // namespace

core::Result<HostTable> HostTable::create(const WeightView& view, std::string_view name) {
  const core::TensorView& tensor = view.tensor;
  if (file_form(tensor.dtype) == FileForm::kNone || !view.has_one_scale()) {
    return core::unimplemented(std::string(name) + ": rows of " +
                               std::string(core::name(tensor.dtype)) +
                               " cannot be read from host memory; use --ple device");
  }
  HostTable table;
  table.rows_.row_bytes = core::row_bytes(tensor.dtype, tensor.cols());
  table.rows_.dtype = tensor.dtype;
  table.rows_.factor = view.scale(0, 0) * view.factor;
  // Whole words are read, up to 15 bytes before and behind a row.
  constexpr std::size_t kMargin = 16;
  TANDEM_ASSIGN(table.copy_, PinnedBuffer::allocate(tensor.bytes() + 2 * kMargin));
  std::memcpy(table.copy_.data() + kMargin, tensor.data, tensor.bytes());
  void* device = nullptr;
  TANDEM_CUDA(cudaHostGetDevicePointer(&device, table.copy_.data(), 0));
  table.rows_.rows = static_cast<const std::uint8_t*>(device) + kMargin;
  return core::Result<HostTable>(std::move(table));
}

void gather_host_rows(const HostRows& table, const std::int32_t* tokens, int stride, int num_rows,
                      int cols, float scale, float* out, cudaStream_t stream) {
  const core::DTypeTraits& traits = core::traits(table.dtype);
  const FileBlock block = {file_form(table.dtype), traits.block_elements, traits.block_bytes};
  const dim3 grid(static_cast<unsigned>(num_rows),
                  static_cast<unsigned>((cols + kChunkCols - 1) / kChunkCols));
  launch(gather_kernel, grid, 256, 0, stream, table, block, tokens, stride, cols, scale, out);
}

}  // namespace tandem::kernels::cuda
