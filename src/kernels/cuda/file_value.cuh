#pragma once

// Single elements of the blocks of a file, for tables that stay in host memory. Formulas and order
// of operations: formats/dequantize.cc.

#include "tandem/core/dtype.h"
#include "tandem/kernels/cuda/brick_element.cuh"

namespace tandem::kernels::cuda {

/// Types of table rows that device code reads as they lie in a file.
enum class FileForm : std::int32_t {
  kNone, kF32, kF16, kBF16, kQ8_0, kQ5_0, kQ4_0, kIQ4_NL, kQ4_K, kQ5_K, kQ6_K
};
struct FileBlock {
  FileForm form;
  std::int32_t elements, bytes;
};

inline FileForm file_form(core::DType dtype) {
  switch (dtype) {
    case core::DType::kF32:
      return FileForm::kF32;
    case core::DType::kF16:
      return FileForm::kF16;
    case core::DType::kBF16:
      return FileForm::kBF16;
    case core::DType::kQ8_0:
      return FileForm::kQ8_0;
    case core::DType::kQ5_0:
      return FileForm::kQ5_0;
    case core::DType::kQ4_0:
      return FileForm::kQ4_0;
    case core::DType::kIQ4_NL:
      return FileForm::kIQ4_NL;
    case core::DType::kQ4_K:
      return FileForm::kQ4_K;
    case core::DType::kQ5_K:
      return FileForm::kQ5_K;
    case core::DType::kQ6_K:
      return FileForm::kQ6_K;
    default:
      return FileForm::kNone;
  }
}

/// Q4_K, and with the fifth bits at b + 16 Q5_K.
__device__ inline float super_block_value(const std::uint8_t* b, const std::uint8_t* codes,
                                          bool has_fifth, int i) {
  const int g = i / 32, l = i % 32;
  const std::uint8_t* s = b + 4;
  const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
  const int min = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | (s[g] >> 6) << 4;
  int code = codes[32 * (g / 2) + l] >> (g % 2 * 4) & 15;
  if (has_fifth) code |= (b[16 + l] >> g & 1) << 4;
  return half_at(b) * static_cast<float>(scale) * static_cast<float>(code) -
         half_at(b + 2) * static_cast<float>(min);
}

__device__ inline float q6k_value(const std::uint8_t* b, int i) {
  const int n = i / 128, part = i % 128 / 32, l = i % 32;
  const int low = b[64 * n + l + part % 2 * 32] >> (part / 2 * 4) & 15;
  const int high = b[128 + 32 * n + l] >> (2 * part) & 3;
  const auto scale = static_cast<std::int8_t>(b[192 + i / 16]);
  return half_at(b + 208) * static_cast<float>(scale) * static_cast<float>((low | high << 4) - 32);
}

/// Element i of the block at b.
__device__ inline float file_value(FileForm form, const std::uint8_t* b, int i) {
  const auto small_block = [&](ByteSource source) {
    return half_at(b) * static_cast<float>(block_code(source, b, i));
  };
  switch (form) {
    case FileForm::kNone:
      break;
    case FileForm::kF32:
      return __uint_as_float(b[0] | b[1] << 8 | b[2] << 16 | static_cast<unsigned int>(b[3]) << 24);
    case FileForm::kF16:
      return half_at(b);
    case FileForm::kBF16:
      return __uint_as_float(b[0] << 16 | static_cast<unsigned int>(b[1]) << 24);
    case FileForm::kQ8_0:
      return small_block(ByteSource::kQ8_0);
    case FileForm::kQ5_0:
      return small_block(ByteSource::kQ5_0);
    case FileForm::kQ4_0:
      return small_block(ByteSource::kQ4_0);
    case FileForm::kIQ4_NL:
      return small_block(ByteSource::kIQ4_NL);
    case FileForm::kQ4_K:
      return super_block_value(b, b + 16, false, i);
    case FileForm::kQ5_K:
      return super_block_value(b, b + 48, true, i);
    case FileForm::kQ6_K:
      return q6k_value(b, i);
  }
  return 0.0f;
}

}  // namespace tandem::kernels::cuda
