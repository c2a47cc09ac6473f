#include "tandem/kernels/cpu/code_block.h"

#include <cstring>

#include "tandem/core/check.h"
#include "tandem/core/half.h"
#include "tandem/kernels/cpu/fp4.h"

// Written apart from formats/dequantize.cc on purpose: that one gives floats and is the oracle of
// values, this one gives integers and is the oracle of the exact arithmetic. Tests hold them equal.

namespace tandem::kernels::cpu {
namespace {

using core::DType;

constexpr std::array<std::int16_t, 16> kIq4Values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                     1,    13,   25,  38,  53,  69,  89,  113};

class Reader {
 public:
  explicit Reader(const std::byte* block) : block_(block) {}
  int u8(int offset) const { return std::to_integer<int>(block_[offset]); }
  int i8(int offset) const { return static_cast<std::int8_t>(u8(offset)); }
  int low(int offset) const { return u8(offset) & 15; }
  int high(int offset) const { return u8(offset) >> 4; }
  int bit(int offset, int index) const { return u8(offset + index / 8) >> (index % 8) & 1; }
  float f16(int offset) const {
    std::uint16_t h = 0;
    std::memcpy(&h, block_ + offset, sizeof h);
    return core::f16_to_f32(h);
  }
  /// The f16 at `offset` times an integer of a byte, which is exact.
  float scaled(int offset, int factor) const { return f16(offset) * static_cast<float>(factor); }

 private:
  const std::byte* block_;
};

void set_code(CodeBlock& out, int k, int value) {
  out.codes[static_cast<std::size_t>(k)] = static_cast<std::int16_t>(value);
}

void set_scale(CodeBlock& out, int group16, float scale, float min = 0.0F) {
  out.scales[static_cast<std::size_t>(group16)] = scale;
  out.mins[static_cast<std::size_t>(group16)] = min;
}

/// Nibble of element k of a 32-block whose low nibbles are elements 0..15.
int nibble32(const Reader& r, int qs, int k) {
  return k < 16 ? r.low(qs + k) : r.high(qs + k - 16);
}

void read_block32(DType dtype, const Reader& r, CodeBlock& out) {
  out.has_mins = dtype == DType::kQ4_1 || dtype == DType::kQ5_1;
  for (int i = 0; i < 2; ++i) set_scale(out, i, r.f16(0), out.has_mins ? -r.f16(2) : 0.0F);
  for (int k = 0; k < 32; ++k) {
    int q = 0;
    switch (dtype) {
      case DType::kQ4_0:
        q = nibble32(r, 2, k) - 8;
        break;
      case DType::kQ4_1:
        q = nibble32(r, 4, k);
        break;
      case DType::kQ5_0:
        q = (nibble32(r, 6, k) | r.bit(2, k) << 4) - 16;
        break;
      case DType::kQ5_1:
        q = nibble32(r, 8, k) | r.bit(4, k) << 4;
        break;
      case DType::kQ8_0:
        q = r.i8(2 + k);
        break;
      default:
        q = kIq4Values[static_cast<std::size_t>(nibble32(r, 2, k))];
        break;  // IQ4_NL
    }
    set_code(out, k, q);
  }
}

void read_q2_k(const Reader& r, CodeBlock& out) {
  out.has_mins = true;
  out.has_half_scales = true;
  for (int i = 0; i < 16; ++i) set_scale(out, i, r.scaled(80, r.low(i)), r.scaled(82, r.high(i)));
  for (int k = 0; k < 256; ++k) {
    set_code(out, k, r.u8(16 + 32 * (k / 128) + k % 32) >> (2 * (k % 128 / 32)) & 3);
  }
}

void read_q3_k(const Reader& r, CodeBlock& out) {
  out.has_half_scales = true;
  for (int i = 0; i < 16; ++i) {
    const int low = i < 8 ? r.low(96 + i) : r.high(96 + i - 8);
    const int high = r.u8(104 + i % 4) >> (2 * (i / 4)) & 3;
    set_scale(out, i, r.scaled(108, (low | high << 4) - 32));
  }
  for (int k = 0; k < 256; ++k) {
    const int low = r.u8(32 + 32 * (k / 128) + k % 32) >> (2 * (k % 128 / 32)) & 3;
    set_code(out, k, (low | (r.u8(k % 32) >> (k / 32) & 1) << 2) - 4);
  }
}

/// Q4_K (qs at 16) and Q5_K (qh at 16, qs at 48).
void read_q45_k(DType dtype, const Reader& r, CodeBlock& out) {
  const bool five = dtype == DType::kQ5_K;
  const int qs = five ? 48 : 16;
  out.has_mins = true;
  for (int g = 0; g < 8; ++g) {
    const int s = 4 + g;
    const int scale = g < 4 ? r.u8(s) & 63 : r.low(s + 4) | r.u8(s - 4) >> 6 << 4;
    const int min = g < 4 ? r.u8(s + 4) & 63 : r.high(s + 4) | r.u8(s) >> 6 << 4;
    for (int i = 2 * g; i < 2 * g + 2; ++i) {
      set_scale(out, i, r.scaled(0, scale), r.scaled(2, min));
    }
    for (int l = 0; l < 32; ++l) {
      const int byte = qs + 32 * (g / 2) + l;
      const int nibble = g % 2 == 0 ? r.low(byte) : r.high(byte);
      set_code(out, 32 * g + l, nibble | (five ? r.u8(16 + l) >> g & 1 : 0) << 4);
    }
  }
}

void read_q6_k(const Reader& r, CodeBlock& out) {
  out.has_half_scales = true;
  for (int i = 0; i < 16; ++i) set_scale(out, i, r.scaled(208, r.i8(192 + i)));
  for (int k = 0; k < 256; ++k) {
    const int half = k / 128;
    const int quarter = k % 128 / 32;
    const int byte = 64 * half + 32 * (quarter % 2) + k % 32;
    const int low = quarter < 2 ? r.low(byte) : r.high(byte);
    const int high = r.u8(128 + 32 * half + k % 32) >> (2 * quarter) & 3;
    set_code(out, k, (low | high << 4) - 32);
  }
}

void read_iq4_xs(const Reader& r, CodeBlock& out) {
  for (int g = 0; g < 8; ++g) {
    const int low = g % 2 == 0 ? r.low(4 + g / 2) : r.high(4 + g / 2);
    const int high = r.u8(2 + g / 4) >> (2 * (g % 4)) & 3;
    const int scale = (low | high << 4) - 32;
    for (int i = 2 * g; i < 2 * g + 2; ++i) set_scale(out, i, r.scaled(0, scale));
    for (int l = 0; l < 32; ++l) {
      set_code(out, 32 * g + l, kIq4Values[static_cast<std::size_t>(nibble32(r, 8 + 16 * g, l))]);
    }
  }
}

void read_fp4(DType dtype, const std::byte* bytes, CodeBlock& out) {
  Fp4Block block;
  std::memcpy(block.data(), bytes, block.size());
  for (int k = 0; k < 32; ++k) set_code(out, k, fp4_code(block, k));
  out.has_half_scales = dtype == DType::kNVFP4;
  for (int i = 0; i < 2; ++i) set_scale(out, i, fp4_half_scale(dtype, block, 16 * i));
}

}  // namespace

CodeBlock read_code_block(DType dtype, const std::byte* block) {
  CodeBlock out;
  const Reader r(block);
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ8_0:
    case DType::kIQ4_NL:
      read_block32(dtype, r, out);
      break;
    case DType::kQ2_K:
      read_q2_k(r, out);
      break;
    case DType::kQ3_K:
      read_q3_k(r, out);
      break;
    case DType::kQ4_K:
    case DType::kQ5_K:
      read_q45_k(dtype, r, out);
      break;
    case DType::kQ6_K:
      read_q6_k(r, out);
      break;
    case DType::kIQ4_XS:
      read_iq4_xs(r, out);
      break;
    case DType::kNVFP4:
    case DType::kMXFP4:
      read_fp4(dtype, block, out);
      break;
    default:
      TANDEM_CHECK(false, "not a block-quantized type with panels");
  }
  return out;
}

}  // namespace tandem::kernels::cpu
