#include "tandem/formats/encode.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tandem/core/check.h"
#include "tandem/core/half.h"
#include "tandem/formats/dequantize.h"

namespace tandem::formats {
namespace {

using core::DType;

constexpr float kMaxE4m3 = 448.0F;
constexpr std::size_t kQ8Block = 32;

float largest_magnitude(std::span<const float> values) {
  float largest = 0.0F;
  for (const float x : values) largest = std::max(largest, std::abs(x));
  return largest;
}

void encode_q8_0_block(std::span<const float> src, std::byte* dst) {
  const float scale = largest_magnitude(src) / 127.0F;
  const float inverse = scale > 0.0F ? 1.0F / scale : 0.0F;
  const std::uint16_t half = core::f32_to_f16(scale);
  std::memcpy(dst, &half, sizeof half);
  for (std::size_t i = 0; i < src.size(); ++i) {
    dst[sizeof half + i] = static_cast<std::byte>(static_cast<int>(std::round(src[i] * inverse)));
  }
}

template <typename Encode>
void encode_halves(std::span<const float> src, std::byte* dst, Encode encode) {
  for (std::size_t i = 0; i < src.size(); ++i) {
    const std::uint16_t half = encode(src[i]);
    std::memcpy(dst + i * sizeof half, &half, sizeof half);
  }
}

}  // namespace

void encode_row(DType dtype, std::span<const float> src, std::byte* dst) {
  if (dtype == DType::kF32) {
    std::memcpy(dst, src.data(), src.size_bytes());
  } else if (dtype == DType::kF16) {
    encode_halves(src, dst, core::f32_to_f16);
  } else if (dtype == DType::kBF16) {
    encode_halves(src, dst, core::f32_to_bf16);
  } else {
    TANDEM_CHECK(dtype == DType::kQ8_0 && src.size() % kQ8Block == 0,
                 "rows are written as F32, F16, BF16 or Q8_0 in whole blocks");
    for (std::size_t i = 0; i < src.size(); i += kQ8Block) {
      encode_q8_0_block(src.subspan(i, kQ8Block), dst);
      dst += core::row_bytes(dtype, kQ8Block);
    }
  }
}

float encode_e4m3_row(std::span<const float> src, std::byte* codes) {
  const float wished = largest_magnitude(src) / kMaxE4m3;
  const float rounded = core::bf16_to_f32(core::f32_to_bf16(wished));
  const float scale = rounded > 0.0F ? rounded : 1.0F;
  for (std::size_t i = 0; i < src.size(); ++i) {
    const float code = std::clamp(src[i] / scale, -kMaxE4m3, kMaxE4m3);
    codes[i] = static_cast<std::byte>(f32_to_e4m3(code));
  }
  return scale;
}

}  // namespace tandem::formats
