#include "tandem/formats/dequantize.h"

#include <algorithm>
#include <array>
#include <bit>

#include "tandem/core/check.h"
#include "tandem/core/half.h"
#include "tandem/formats/little_endian.h"

// One function a block type: `decode_X(block, y)` writes the block's elements to y. Products are
// taken from left to right as the formulas of spec/formats.md section 3 are written, so that every
// value has the bits that the format's own tools give.

namespace tandem::formats {
namespace {

using core::DType;
using Bytes = const std::uint8_t*;

constexpr std::array<float, 16> kIq4Values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                              1,    13,   25,  38,  53,  69,  89,  113};
/// E2M1 values times two, by code.
constexpr std::array<float, 16> kE2m1Doubled = {0, 1,  2,  3,  4,  6,  8,  12,
                                                0, -1, -2, -3, -4, -6, -8, -12};

template <typename T>
T load_at(Bytes p) {
  return load<T>(reinterpret_cast<const std::byte*>(p));
}
float f16_at(Bytes p) {
  return core::f16_to_f32(load_at<std::uint16_t>(p));
}
float as_float(int q) {
  return static_cast<float>(q);
}
int lo(std::uint8_t b) {
  return b & 15;
}
int hi(std::uint8_t b) {
  return b >> 4;
}
int as_int8(std::uint8_t b) {
  return std::bit_cast<std::int8_t>(b);
}

void decode_f32(Bytes b, float* y) {
  *y = load_at<float>(b);
}
void decode_f16(Bytes b, float* y) {
  *y = f16_at(b);
}
void decode_bf16(Bytes b, float* y) {
  *y = core::bf16_to_f32(load_at<std::uint16_t>(b));
}

void decode_q4_0(Bytes b, float* y) {
  const float d = f16_at(b);
  for (int j = 0; j < 16; ++j) {
    y[j] = as_float(lo(b[2 + j]) - 8) * d;
    y[j + 16] = as_float(hi(b[2 + j]) - 8) * d;
  }
}

void decode_q4_1(Bytes b, float* y) {
  const float d = f16_at(b);
  const float m = f16_at(b + 2);
  for (int j = 0; j < 16; ++j) {
    y[j] = as_float(lo(b[4 + j])) * d + m;
    y[j + 16] = as_float(hi(b[4 + j])) * d + m;
  }
}

/// Element i (0..31) of a block of 5-bit values: nibbles qs[16] and fifth bits qh.
int five_bits(Bytes qs, std::uint32_t qh, int i) {
  const int nibble = i < 16 ? lo(qs[i]) : hi(qs[i - 16]);
  return nibble | static_cast<int>((qh >> i & 1u) << 4);
}

void decode_q5_0(Bytes b, float* y) {
  const float d = f16_at(b);
  const std::uint32_t qh = load_at<std::uint32_t>(b + 2);
  for (int i = 0; i < 32; ++i) y[i] = as_float(five_bits(b + 6, qh, i) - 16) * d;
}

void decode_q5_1(Bytes b, float* y) {
  const float d = f16_at(b);
  const float m = f16_at(b + 2);
  const std::uint32_t qh = load_at<std::uint32_t>(b + 4);
  for (int i = 0; i < 32; ++i) y[i] = as_float(five_bits(b + 8, qh, i)) * d + m;
}

void decode_q8_0(Bytes b, float* y) {
  const float d = f16_at(b);
  for (int i = 0; i < 32; ++i) y[i] = as_float(as_int8(b[2 + i])) * d;
}

/// scales[0..15] (scale low nibble, min high nibble) qs[16..79] d[80] dmin[82]. Byte 32n + l of qs
/// holds elements 128n + 32j + l in bits 2j; groups of 16 share a scale.
void decode_q2_k(Bytes b, float* y) {
  const float d = f16_at(b + 80);
  const float dmin = f16_at(b + 82);
  for (int i = 0; i < 256; ++i) {
    const int n = i / 128;
    const int j = i % 128 / 32;
    const std::uint8_t scale = b[i / 16];
    const int q = b[16 + 32 * n + i % 32] >> (2 * j) & 3;
    y[i] = d * as_float(lo(scale)) * as_float(q) - dmin * as_float(hi(scale));
  }
}

/// hmask[0..31] qs[32..95] scales[96..107] d[108]. Low two bits lie as in Q2_K; the third bit of
/// element 32k + l is bit k of hmask[l], and where it is clear 4 is subtracted. Scale g of 16 has
/// its low nibble in byte g % 8 and its upper two bits in byte 8 + g % 4, and is biased by 32.
void decode_q3_k(Bytes b, float* y) {
  const float d = f16_at(b + 108);
  Bytes scales = b + 96;
  for (int i = 0; i < 256; ++i) {
    const int g = i / 16;
    const int low = g < 8 ? lo(scales[g]) : hi(scales[g - 8]);
    const int high = scales[8 + g % 4] >> (2 * (g / 4)) & 3;
    const int scale = (low | high << 4) - 32;
    const int q = b[32 + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3;
    const int third = b[i % 32] >> (i / 32) & 1;
    y[i] = d * as_float(scale) * as_float(q - (third != 0 ? 0 : 4));
  }
}

struct ScaleMin {
  float scale, min;
};

/// Scale and minimum of group g = 0..7 from the 12 packed bytes of Q4_K and Q5_K.
ScaleMin unpack_scale_min(Bytes s, int g) {
  if (g < 4) return {as_float(s[g] & 63), as_float(s[g + 4] & 63)};
  return {as_float(lo(s[g + 4]) | s[g - 4] >> 6 << 4), as_float(hi(s[g + 4]) | s[g] >> 6 << 4)};
}

void decode_q4_k(Bytes b, float* y) {
  const float d = f16_at(b);
  const float dmin = f16_at(b + 2);
  for (int g = 0; g < 8; ++g) {
    const ScaleMin s = unpack_scale_min(b + 4, g);
    Bytes qs = b + 16 + 32 * (g / 2);
    for (int l = 0; l < 32; ++l) {
      const int q = g % 2 == 0 ? lo(qs[l]) : hi(qs[l]);
      y[32 * g + l] = d * s.scale * as_float(q) - dmin * s.min;
    }
  }
}

void decode_q5_k(Bytes b, float* y) {
  const float d = f16_at(b);
  const float dmin = f16_at(b + 2);
  Bytes qh = b + 16;
  for (int g = 0; g < 8; ++g) {
    const ScaleMin s = unpack_scale_min(b + 4, g);
    Bytes qs = b + 48 + 32 * (g / 2);
    for (int l = 0; l < 32; ++l) {
      const int nibble = g % 2 == 0 ? lo(qs[l]) : hi(qs[l]);
      const int q = nibble | (qh[l] >> g & 1) << 4;
      y[32 * g + l] = d * s.scale * as_float(q) - dmin * s.min;
    }
  }
}

void decode_q6_k(Bytes b, float* y) {
  const float d = f16_at(b + 208);
  for (int n = 0; n < 2; ++n) {
    Bytes ql = b + 64 * n;
    Bytes qh = b + 128 + 32 * n;
    Bytes sc = b + 192 + 8 * n;
    for (int e = 0; e < 128; ++e) {
      const int quarter = e / 32;
      const int l = e % 32;
      const std::uint8_t byte = ql[l + 32 * (quarter % 2)];
      const int low = quarter < 2 ? lo(byte) : hi(byte);
      const int q = (low | (qh[l] >> (2 * quarter) & 3) << 4) - 32;
      y[128 * n + e] = d * as_float(as_int8(sc[e / 16])) * as_float(q);
    }
  }
}

void decode_iq4_nl(Bytes b, float* y) {
  const float d = f16_at(b);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * kIq4Values[static_cast<std::size_t>(lo(b[2 + j]))];
    y[j + 16] = d * kIq4Values[static_cast<std::size_t>(hi(b[2 + j]))];
  }
}

/// d[0] scales_h[2..3] (u16, two bits a group) scales_l[4..7] (a nibble a group) qs[8..135]: eight
/// groups of 32, each laid out as in IQ4_NL, with a 6-bit scale biased by 32.
void decode_iq4_xs(Bytes b, float* y) {
  const float d = f16_at(b);
  const int scales_h = load_at<std::uint16_t>(b + 2);
  for (int g = 0; g < 8; ++g) {
    const int low = g % 2 == 0 ? lo(b[4 + g / 2]) : hi(b[4 + g / 2]);
    const float scale = d * as_float((low | (scales_h >> (2 * g) & 3) << 4) - 32);
    Bytes qs = b + 8 + 16 * g;
    for (int j = 0; j < 16; ++j) {
      y[32 * g + j] = scale * kIq4Values[static_cast<std::size_t>(lo(qs[j]))];
      y[32 * g + j + 16] = scale * kIq4Values[static_cast<std::size_t>(hi(qs[j]))];
    }
  }
}

/// Half of the E8M0 value 2^(e - 127), the doubled E2M1 table's other half; e < 2 is subnormal.
float e8m0_half(std::uint8_t e) {
  const std::uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<std::uint32_t>(e - 1) << 23;
  return std::bit_cast<float>(bits);
}

void decode_mxfp4(Bytes b, float* y) {
  const float scale = e8m0_half(b[0]);
  for (int j = 0; j < 16; ++j) {
    y[j] = kE2m1Doubled[static_cast<std::size_t>(lo(b[1 + j]))] * scale;
    y[j + 16] = kE2m1Doubled[static_cast<std::size_t>(hi(b[1 + j]))] * scale;
  }
}

void decode_f8_e4m3(Bytes b, float* y) {
  *y = e4m3_to_f32(*b);
}

/// Unsigned E4M3; what is not a number gives 0.
float ue4m3(std::uint8_t code) {
  const std::uint8_t magnitude = code & 0x7f;
  return magnitude == 0x7f ? 0.0F : e4m3_to_f32(magnitude);
}

void decode_nvfp4(Bytes b, float* y) {
  for (int s = 0; s < 4; ++s) {
    const float scale = ue4m3(b[s]) / 2.0F;
    Bytes qs = b + 4 + 8 * s;
    for (int j = 0; j < 8; ++j) {
      y[16 * s + j] = kE2m1Doubled[static_cast<std::size_t>(lo(qs[j]))] * scale;
      y[16 * s + 8 + j] = kE2m1Doubled[static_cast<std::size_t>(hi(qs[j]))] * scale;
    }
  }
}

using BlockDecoder = void (*)(Bytes block, float* y);

/// Null for types without float values here.
BlockDecoder block_decoder(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return decode_f32;
    case DType::kF16:
      return decode_f16;
    case DType::kBF16:
      return decode_bf16;
    case DType::kF8E4M3:
      return decode_f8_e4m3;
    case DType::kQ4_0:
      return decode_q4_0;
    case DType::kQ4_1:
      return decode_q4_1;
    case DType::kQ5_0:
      return decode_q5_0;
    case DType::kQ5_1:
      return decode_q5_1;
    case DType::kQ8_0:
      return decode_q8_0;
    case DType::kQ2_K:
      return decode_q2_k;
    case DType::kQ3_K:
      return decode_q3_k;
    case DType::kQ4_K:
      return decode_q4_k;
    case DType::kQ5_K:
      return decode_q5_k;
    case DType::kQ6_K:
      return decode_q6_k;
    case DType::kIQ4_NL:
      return decode_iq4_nl;
    case DType::kIQ4_XS:
      return decode_iq4_xs;
    case DType::kMXFP4:
      return decode_mxfp4;
    case DType::kNVFP4:
      return decode_nvfp4;
    default:
      return nullptr;
  }
}

}  // namespace

bool can_dequantize(DType dtype) {
  return block_decoder(dtype) != nullptr;
}

void dequantize_row(DType dtype, const std::byte* src, std::int64_t elements, float* dst) {
  const BlockDecoder decode = block_decoder(dtype);
  TANDEM_CHECK(decode != nullptr, "the type has no float values");
  const core::DTypeTraits& type = core::traits(dtype);
  TANDEM_CHECK(elements % type.block_elements == 0, "a row must hold whole blocks");
  auto block = reinterpret_cast<Bytes>(src);
  for (std::int64_t i = 0; i < elements; i += type.block_elements, block += type.block_bytes) {
    decode(block, dst + i);
  }
}

void decode_e2m1_pairs(const std::byte* src, std::int64_t elements, float* dst) {
  TANDEM_CHECK(elements % 2 == 0, "two codes a byte");
  for (std::int64_t i = 0; i < elements; i += 2) {
    const auto byte = std::to_integer<std::uint8_t>(src[i / 2]);
    dst[i] = kE2m1Doubled[static_cast<std::size_t>(lo(byte))] * 0.5F;
    dst[i + 1] = kE2m1Doubled[static_cast<std::size_t>(hi(byte))] * 0.5F;
  }
}

float e4m3_to_f32(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7fu;
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  // Moved to the place of a float's bits the exponent's bias is 7, not 127.
  const float value = std::bit_cast<float>(magnitude << 20) * 0x1p120F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

std::uint8_t f32_to_e4m3(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint8_t>(bits >> 24 & 0x80u);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  if (!(magnitude <= 464.0F)) return sign | 0x7f;
  // Adding a power of two whose last place is the result's last place rounds to nearest even.
  const std::uint32_t exponent = std::max(bits >> 23 & 0xffu, 121u);  // 2^-6: the smallest normal
  const float rounder = std::bit_cast<float>((exponent + 20) << 23);
  const float rounded = (magnitude + rounder) - rounder;
  const std::uint32_t code = std::bit_cast<std::uint32_t>(rounded * 0x1p-120F) >> 20;
  return static_cast<std::uint8_t>(sign | code);
}

}  // namespace tandem::formats
