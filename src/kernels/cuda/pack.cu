// File rows to bricks, on the device: each thread writes one element's share with an atomic or
// (codes) or a plain store (bytes, values). Runs once at load.

#include <algorithm>
#include <vector>

#include "tandem/core/half.h"
#include "tandem/formats/dequantize.h"
#include "tandem/kernels/cuda/brick_element.cuh"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/pack.h"

namespace tandem::kernels::cuda {
namespace {

constexpr std::size_t kStagingBytes = std::size_t{32} << 20;

struct PackArguments {
  const std::uint8_t* rows;  // raw file rows, or fp16 values for kF16
  std::size_t row_bytes;
  int num_rows, cols, superblocks;
  int first_row;  // of the matrix, a multiple of kTileRows
  std::uint8_t* bricks;
};

__device__ std::uint8_t* brick_of(const PackArguments& p, int row, int sb, int bytes) {
  const std::size_t unit = static_cast<std::size_t>(row / kTileRows) * p.superblocks + sb;
  return p.bricks + (unit * 2 + row % kTileRows / kBrickRows) * bytes;
}
__device__ void or_byte(std::uint8_t* p, int value) {  // neighbours write the same word
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  atomicOr(reinterpret_cast<unsigned int*>(address & ~std::uintptr_t{3}),
           static_cast<unsigned int>(value) << (address % 4 * 8));
}

// One block of 256 threads a (row, superblock).
__global__ void pack_q4k(PackArguments p) {
  const int row = p.first_row + blockIdx.x, sb = blockIdx.y, k = threadIdx.x;
  const std::uint8_t* block = p.rows + blockIdx.x * p.row_bytes + sb * 144;
  std::uint8_t* brick = brick_of(p, row, sb, brick_bytes(BrickKind::kQ4K));
  const int code = block[16 + k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15;
  const int r = row % kBrickRows;
  const NibbleAt at = nibble_at(fragment_slot(r, k));
  or_byte(brick + at.byte, code << at.shift);
  if (k < 8) {
    const std::uint8_t* s = block + 4;
    const int g = k;
    brick[8192 + 16 * r + g] =
        static_cast<std::uint8_t>(g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4);
    brick[8192 + 16 * r + 8 + g] =
        static_cast<std::uint8_t>(g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | (s[g] >> 6) << 4);
  }
  if (k < 4) brick[9216 + 4 * r + k] = block[k];
}

__global__ void pack_q6k(PackArguments p) {
  const int row = p.first_row + blockIdx.x, sb = blockIdx.y, k = threadIdx.x;
  const std::uint8_t* block = p.rows + blockIdx.x * p.row_bytes + sb * 210;
  std::uint8_t* brick = brick_of(p, row, sb, brick_bytes(BrickKind::kQ6K));
  const int part = k % 128 / 32, l = k % 32, n = k / 128;
  const int low = block[64 * n + l + part % 2 * 32] >> (part / 2 * 4) & 15;
  const int high = block[128 + 32 * n + l] >> (2 * part) & 3;
  const int r = row % kBrickRows;
  const FragmentSlot f = fragment_slot(r, k);
  or_byte(brick + nibble_at(f).byte, low << nibble_at(f).shift);
  or_byte(brick + pair_at(f).byte, high << pair_at(f).shift);
  if (k < 16) brick[12288 + 16 * r + k] = block[192 + k] ^ 0x80;
  if (k < 2) brick[13312 + 2 * r + k] = block[208 + k];
}

__global__ void pack_q8(PackArguments p, ByteSource source, int block_bytes) {
  const int row = p.first_row + blockIdx.x, sb = blockIdx.y, k = threadIdx.x, r = row % kBrickRows;
  std::uint8_t* brick = brick_of(p, row, sb, brick_bytes(BrickKind::kQ8));
  const int column = sb * kBrickCols + k;
  const std::uint8_t* block = p.rows + blockIdx.x * p.row_bytes + column / 32 * block_bytes;
  const bool inside = column < p.cols;
  brick[byte_at(fragment_slot(r, k))] =
      static_cast<std::uint8_t>((inside ? block_code(source, block, k % 32) : 0) + 128);
  if (k % 32 < 2) brick[16384 + 16 * r + 2 * (k / 32) + k % 32] = inside ? block[k % 32] : 0;
}

__global__ void pack_f16(PackArguments p) {
  const int row = p.first_row + blockIdx.x, sb = blockIdx.y, k = threadIdx.x;
  const int column = sb * kBrickCols + k;
  if (column >= p.cols) return;
  half* brick = reinterpret_cast<half*>(brick_of(p, row, sb, brick_bytes(BrickKind::kF16)));
  brick[value_at(fragment_slot(row % kBrickRows, k))] =
      reinterpret_cast<const half*>(p.rows + blockIdx.x * p.row_bytes)[column];
}

__global__ void gather_kernel(MatrixView table, const std::int32_t* tokens, int stride, int cols,
                              float scale, float* out) {
  after_previous();
  const int row = tokens[blockIdx.x * stride];
  const int bytes = brick_bytes(table.kind),
            superblocks = (table.cols + kBrickCols - 1) / kBrickCols;
  for (int c = threadIdx.x + blockIdx.y * blockDim.x; c < cols; c += blockDim.x * gridDim.y) {
    const std::size_t unit =
        static_cast<std::size_t>(row / kTileRows) * superblocks + c / kBrickCols;
    const std::uint8_t* brick = table.bricks + (unit * 2 + row % kTileRows / kBrickRows) * bytes;
    out[static_cast<std::size_t>(blockIdx.x) * cols + c] =
        brick_value(table.kind, brick, row % kBrickRows, c % kBrickCols) * scale;
  }
}

void launch_pack(const PackArguments& p, core::DType dtype, BrickKind kind) {
  const dim3 grid(static_cast<unsigned>(p.num_rows), static_cast<unsigned>(p.superblocks));
  switch (kind) {
    case BrickKind::kQ4K:
      pack_q4k<<<grid, 256>>>(p);
      break;
    case BrickKind::kQ6K:
      pack_q6k<<<grid, 256>>>(p);
      break;
    case BrickKind::kF16:
      pack_f16<<<grid, 256>>>(p);
      break;
    case BrickKind::kQ8: {
      const ByteSource source = dtype == core::DType::kQ8_0   ? ByteSource::kQ8_0
                                : dtype == core::DType::kQ5_0 ? ByteSource::kQ5_0
                                : dtype == core::DType::kQ4_0 ? ByteSource::kQ4_0
                                                              : ByteSource::kIQ4_NL;
      pack_q8<<<grid, 256>>>(p, source, core::traits(dtype).block_bytes);
      break;
    }
  }
}

}  // namespace

BrickKind brick_kind(core::DType dtype) {
  switch (dtype) {
    case core::DType::kQ4_K:
      return BrickKind::kQ4K;
    case core::DType::kQ6_K:
      return BrickKind::kQ6K;
    case core::DType::kQ8_0:
    case core::DType::kQ5_0:
    case core::DType::kQ4_0:
    case core::DType::kIQ4_NL:
      return BrickKind::kQ8;
    default:
      return BrickKind::kF16;
  }
}

std::size_t packed_bytes(BrickKind kind, std::int64_t rows, std::int64_t cols) {
  const MatrixView m = {nullptr, kind, static_cast<int>(rows), static_cast<int>(cols)};
  return static_cast<std::size_t>(m.tiles()) * m.superblocks() * 2 * brick_bytes(kind);
}

core::Result<DeviceBuffer> pack_bricks(const core::TensorView& view, BrickKind kind) {
  TANDEM_ASSIGN(DeviceBuffer bricks,
                DeviceBuffer::allocate(packed_bytes(kind, view.rows(), view.cols())));
  const bool convert = kind == BrickKind::kF16 && view.dtype != core::DType::kF16;
  PackArguments p = {};
  p.cols = static_cast<int>(view.cols());
  p.superblocks = (p.cols + kBrickCols - 1) / kBrickCols;
  p.row_bytes =
      convert ? 2 * static_cast<std::size_t>(p.cols) : core::row_bytes(view.dtype, view.cols());
  p.bricks = bricks.as<std::uint8_t>();
  const std::int64_t chunk =
      std::max<std::int64_t>(1,
                             static_cast<std::int64_t>(kStagingBytes / p.row_bytes) / kTileRows) *
      kTileRows;
  TANDEM_ASSIGN(const DeviceBuffer staging,
                DeviceBuffer::allocate(p.row_bytes * std::min<std::int64_t>(chunk, view.rows())));
  p.rows = staging.as<std::uint8_t>();
  std::vector<float> values(convert ? static_cast<std::size_t>(p.cols) : 0);
  std::vector<std::uint16_t> halves;
  for (std::int64_t first = 0; first < view.rows(); first += chunk) {
    p.first_row = static_cast<int>(first);
    p.num_rows = static_cast<int>(std::min<std::int64_t>(chunk, view.rows() - first));
    const void* source = view.row(first);
    if (convert) {
      halves.resize(static_cast<std::size_t>(p.num_rows) * values.size());
      for (int r = 0; r < p.num_rows; ++r) {
        formats::dequantize_row(view.dtype, view.row(first + r), view.cols(), values.data());
        std::transform(values.begin(), values.end(),
                       halves.begin() + static_cast<std::ptrdiff_t>(r) * p.cols, core::f32_to_f16);
      }
      source = halves.data();
    }
    TANDEM_CUDA(
        cudaMemcpy(staging.as<void>(), source, p.row_bytes * p.num_rows, cudaMemcpyHostToDevice));
    launch_pack(p, view.dtype, kind);
    TANDEM_CUDA(cudaGetLastError());
  }
  TANDEM_CUDA(cudaDeviceSynchronize());
  return core::Result<DeviceBuffer>(std::move(bricks));
}

void gather_rows(const MatrixView& table, const std::int32_t* tokens, int stride, int num_rows,
                 int cols, float scale, float* out, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(num_rows), static_cast<unsigned>((cols + 1023) / 1024));
  launch(gather_kernel, grid, 256, 0, stream, table, tokens, stride, cols, scale, out);
}

}  // namespace tandem::kernels::cuda
