// File rows to bricks, on the device: each thread writes one element's share with an atomic or
// (codes) or a plain store (bytes, values). Runs once at load.

#include <algorithm>
#include <vector>

#include "tandem/kernels/cuda/brick_element.cuh"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/pack.h"
#include "tandem/kernels/cuda/staged_rows.h"

namespace tandem::kernels::cuda {
namespace {

constexpr std::size_t kStagingBytes = std::size_t{32} << 20;

struct PackArguments {
  const std::uint8_t* rows;  // staged_rows.h
  std::size_t row_bytes;
  int num_rows, cols, superblocks;
  int first_row;  // of the matrix, a multiple of kTileRows
  std::uint8_t* bricks;
  int* out_of_range;  // set where scales are larger than a brick of the kind can hold
};

__device__ std::uint8_t* brick_of(const PackArguments& p, int row, int sb, int bytes) {
  const std::size_t unit = static_cast<std::size_t>(row / kTileRows) * p.superblocks + sb;
  return p.bricks + (unit * 2 + row % kTileRows / kBrickRows) * bytes;
}
__device__ void or_bits(std::uint8_t* brick, BitsAt at, int code) {
  const auto value = static_cast<std::uint32_t>(code);
  atomicOr(reinterpret_cast<std::uint32_t*>(brick) + at.word,
           __funnelshift_l(value, value, at.first));
}
/// value * factor as fp16; says so where it leaves the range.
__device__ half scaled(float value, float factor, int* out_of_range) {
  const float v = value * factor;
  if (fabsf(v) > 65504.0f && fabsf(value) <= 65504.0f) *out_of_range = 1;
  return __float2half_rn(v);
}

// One block of 256 threads a (row, superblock).
__global__ void pack_q4k(PackArguments p) {
  const int row = p.first_row + blockIdx.x, sb = blockIdx.y, k = threadIdx.x;
  const std::uint8_t* block = p.rows + blockIdx.x * p.row_bytes + sb * 144;
  std::uint8_t* brick = brick_of(p, row, sb, brick_bytes(BrickKind::kQ4K));
  const int r = row % kBrickRows;
  or_bits(brick, q4k_at(fragment_slot(r, k)),
          block[16 + k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15);
  if (k < 8) {
    const std::uint8_t* s = block + 4;
    const int g = k;
    std::uint8_t* to = brick + 8192 + scale_word_at(r, g / 2) + g % 2;
    const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
    const int min = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | (s[g] >> 6) << 4;
    to[0] = static_cast<std::uint8_t>(4 * scale);
    to[2] = static_cast<std::uint8_t>(4 * min);
  }
  if (k == 0) {
    half* to = reinterpret_cast<half*>(brick + 9216) + 2 * row_at(r);
    to[0] = scaled(half_at(block), 0x1p11f, p.out_of_range);
    to[1] = scaled(half_at(block + 2), -0x1p17f, p.out_of_range);
    // The kernels' largest factors: 1024 d, and 16 times the scale of a group of 63.
    scaled(half_at(block) * 63.0f, 0x1p17f, p.out_of_range);
  }
}

__global__ void pack_q6k(PackArguments p) {
  const int row = p.first_row + blockIdx.x, sb = blockIdx.y, k = threadIdx.x;
  const std::uint8_t* block = p.rows + blockIdx.x * p.row_bytes + sb * 210;
  std::uint8_t* brick = brick_of(p, row, sb, brick_bytes(BrickKind::kQ6K));
  const int part = k % 128 / 32, l = k % 32, n = k / 128;
  const int r = row % kBrickRows;
  const Q6KAt at = q6k_at(fragment_slot(r, k));
  or_bits(brick, at.low, block[64 * n + l + part % 2 * 32] >> (part / 2 * 4) & 15);
  or_bits(brick, at.high, block[128 + 32 * n + l] >> (2 * part) & 3);
  if (k < 16) {
    const auto scale = static_cast<std::int8_t>(block[192 + k]);
    brick[12288 + scale_word_at(r, k / 4) + k % 4] = static_cast<std::uint8_t>(scale + 128);
    const half d = scaled(half_at(block + 208), 0x1p15f, p.out_of_range);
    scaled(half_at(block + 208) * static_cast<float>(scale), 0x1p15f, p.out_of_range);
    if (k == 0) reinterpret_cast<half*>(brick + 13312)[row_at(r)] = d;
  }
}

__global__ void pack_q8(PackArguments p, ByteSource source, int block_bytes) {
  const int row = p.first_row + blockIdx.x, sb = blockIdx.y, k = threadIdx.x, r = row % kBrickRows;
  std::uint8_t* brick = brick_of(p, row, sb, brick_bytes(BrickKind::kQ8));
  const int column = sb * kBrickCols + k;
  const std::uint8_t* block = p.rows + blockIdx.x * p.row_bytes + column / 32 * block_bytes;
  const bool inside = column < p.cols;
  brick[byte_at(fragment_slot(r, k))] =
      static_cast<std::uint8_t>((inside ? block_code(source, block, k % 32) : 0) + 128);
  if (k % 32 < 2) {
    brick[16384 + scale_word_at(r, k / 64) + k / 32 % 2 * 2 + k % 32] = inside ? block[k % 32] : 0;
  }
}

__global__ void pack_f8(PackArguments p) {
  const int row = p.first_row + blockIdx.x, sb = blockIdx.y, k = threadIdx.x, r = row % kBrickRows;
  std::uint8_t* brick = brick_of(p, row, sb, brick_bytes(BrickKind::kF8));
  const std::uint8_t* factors = p.rows + blockIdx.x * p.row_bytes;
  const std::uint8_t* codes = factors + (p.cols + 127) / 128 * 2;
  const int column = sb * kBrickCols + k;
  const bool inside = column < p.cols;
  brick[e4m3_at(fragment_slot(r, k))] = inside ? codes[column] : 0;
  if (k % 128 < 2) {
    const bool has_factor = column / 128 * 128 < p.cols;
    brick[16384 + 4 * row_at(r) + k / 128 * 2 + k % 2] =
        has_factor ? factors[column / 128 * 2 + k % 2] : 0;
  }
}

__global__ void pack_fp4(PackArguments p) {
  const int row = p.first_row + blockIdx.x, sb = blockIdx.y, k = threadIdx.x, r = row % kBrickRows;
  std::uint8_t* brick = brick_of(p, row, sb, brick_bytes(BrickKind::kFp4));
  const std::uint8_t* pairs = p.rows + blockIdx.x * p.row_bytes;
  const std::uint8_t* scales = pairs + p.cols / 2;
  const int column = sb * kBrickCols + k;
  if (column >= p.cols) return;
  or_bits(brick, fp4_at(fragment_slot(r, k)), pairs[column / 2] >> (column % 2 * 4) & 15);
  if (k % 16 == 0) brick[8192 + scale_word_at(r, k / 64) + k / 16 % 4] = scales[column / 16];
}

template <typename T>
__device__ half as_half(T value) {
  return value;
}
template <>
__device__ half as_half(float value) {
  return __float2half_rn(value);
}
template <>
__device__ half as_half(std::uint16_t bf16) {
  return __float2half_rn(__uint_as_float(static_cast<unsigned int>(bf16) << 16));
}

template <typename T>
__global__ void pack_f16(PackArguments p) {
  const int row = p.first_row + blockIdx.x, sb = blockIdx.y, k = threadIdx.x;
  const int column = sb * kBrickCols + k;
  if (column >= p.cols) return;
  std::uint8_t* brick = brick_of(p, row, sb, brick_bytes(BrickKind::kF16));
  *reinterpret_cast<half*>(brick + strip_at(row % kBrickRows, 2 * k)) =
      as_half(reinterpret_cast<const T*>(p.rows + blockIdx.x * p.row_bytes)[column]);
}

__global__ void pack_e4m3(PackArguments p) {
  const int row = p.first_row + blockIdx.x, sb = blockIdx.y, k = threadIdx.x;
  const int column = sb * kBrickCols + k;
  if (column >= p.cols) return;
  std::uint8_t* brick = brick_of(p, row, sb, brick_bytes(BrickKind::kE4m3));
  brick[strip_at(row % kBrickRows, k)] = p.rows[blockIdx.x * p.row_bytes + column];
}

__global__ void gather_kernel(MatrixView table, const std::int32_t* tokens, int stride, int cols,
                              float scale, float* out) {
  let_next_start();
  wait_for_previous();
  const int row = tokens[blockIdx.x * stride];
  const float row_scale = table.row_scales == nullptr ? 1.0f : table.row_scales[row];
  const int bytes = brick_bytes(table.kind),
            superblocks = (table.cols + kBrickCols - 1) / kBrickCols;
  for (int c = threadIdx.x + blockIdx.y * blockDim.x; c < cols; c += blockDim.x * gridDim.y) {
    const std::size_t unit =
        static_cast<std::size_t>(row / kTileRows) * superblocks + c / kBrickCols;
    const std::uint8_t* brick = table.bricks + (unit * 2 + row % kTileRows / kBrickRows) * bytes;
    out[static_cast<std::size_t>(blockIdx.x) * cols + c] =
        brick_value(table.kind, brick, row % kBrickRows, c % kBrickCols) * row_scale * scale;
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
    case BrickKind::kF8:
      pack_f8<<<grid, 256>>>(p);
      break;
    case BrickKind::kFp4:
      pack_fp4<<<grid, 256>>>(p);
      break;
    case BrickKind::kE4m3:
      pack_e4m3<<<grid, 256>>>(p);
      break;
    case BrickKind::kF16:
      if (dtype == core::DType::kF32) {
        pack_f16<float><<<grid, 256>>>(p);
      } else if (dtype == core::DType::kBF16) {
        pack_f16<std::uint16_t><<<grid, 256>>>(p);
      } else {
        pack_f16<half><<<grid, 256>>>(p);
      }
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

std::size_t packed_bytes(BrickKind kind, std::int64_t rows, std::int64_t cols) {
  const MatrixView m = {nullptr, kind, static_cast<int>(rows), static_cast<int>(cols)};
  return static_cast<std::size_t>(m.tiles()) * m.superblocks() * 2 * brick_bytes(kind);
}

core::Result<PackedMatrix> pack_bricks(const WeightView& weight, BrickKind kind,
                                       WeightMemory& memory, PackScratch& scratch) {
  StagedRows staged(weight, kind);
  PackedMatrix out;
  out.view = {nullptr, kind, static_cast<int>(weight.rows()), static_cast<int>(weight.cols())};
  out.view.input = kind == BrickKind::kE4m3 ? InputForm::kE4m3Codes : input_form(weight);
  TANDEM_ASSIGN(out.bricks, memory.allocate(packed_bytes(kind, weight.rows(), weight.cols())));
  out.view.bricks = out.bricks.as<std::uint8_t>();
  std::vector<float> scales = staged.row_scales();
  if (!scales.empty()) {
    scales.resize(static_cast<std::size_t>(out.view.tiles()) * kTileRows);
    TANDEM_ASSIGN(out.row_scales, memory.copy_of(scales));
    out.view.row_scales = out.row_scales.as<float>();
  }
  PackArguments p = {};
  p.cols = out.view.cols;
  p.superblocks = out.view.superblocks();
  p.row_bytes = staged.row_bytes();
  p.bricks = out.bricks.as<std::uint8_t>();
  const std::int64_t tiles = static_cast<std::int64_t>(kStagingBytes / p.row_bytes) / kTileRows;
  const std::int64_t chunk = std::max<std::int64_t>(1, tiles) * kTileRows;
  const auto staged_bytes =
      p.row_bytes * static_cast<std::size_t>(std::min<std::int64_t>(chunk, weight.rows()));
  if (scratch.rows.size() < staged_bytes) {
    scratch.rows = DeviceBuffer();
    TANDEM_ASSIGN(scratch.rows, DeviceBuffer::allocate(staged_bytes));
  }
  if (scratch.out_of_range.size() == 0) {
    TANDEM_ASSIGN(scratch.out_of_range, DeviceBuffer::allocate(sizeof(int)));
  }
  p.rows = scratch.rows.as<std::uint8_t>();
  p.out_of_range = scratch.out_of_range.as<int>();
  for (std::int64_t first = 0; first < weight.rows(); first += chunk) {
    p.first_row = static_cast<int>(first);
    p.num_rows = static_cast<int>(std::min<std::int64_t>(chunk, weight.rows() - first));
    TANDEM_CUDA(cudaMemcpy(scratch.rows.as<void>(), staged.rows(first, p.num_rows),
                           p.row_bytes * p.num_rows, cudaMemcpyHostToDevice));
    launch_pack(p, staged.dtype(), kind);
    TANDEM_CUDA(cudaGetLastError());
  }
  int is_out_of_range = 0;
  TANDEM_CUDA(cudaMemcpy(&is_out_of_range, p.out_of_range, sizeof(int), cudaMemcpyDeviceToHost));
  if (is_out_of_range != 0) {
    scratch.out_of_range = DeviceBuffer();
    out = {};  // before its larger form takes memory
    return pack_bricks(weight, BrickKind::kF16, memory, scratch);
  }
  return core::Result<PackedMatrix>(std::move(out));
}

void gather_rows(const MatrixView& table, const std::int32_t* tokens, int stride, int num_rows,
                 int cols, float scale, float* out, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(num_rows), static_cast<unsigned>((cols + 1023) / 1024));
  launch(gather_kernel, grid, 256, 0, stream, table, tokens, stride, cols, scale, out);
}

}  // namespace tandem::kernels::cuda
