#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "tandem/core/dtype.h"
#include "tandem/kernels/cpu/simd/lanes_avx512.h"

namespace tandem::kernels::cpu {

/// Integer side of the matrix products in AVX-512 VNNI: one register holds a vector of a panel (64
/// bytes: four columns of 16 rows) or 16 int32. The functions are those that the formats
/// and groups_impl.h ask for.
struct Avx512Codes : Avx512Lanes {
  using Bytes = __m512i;
  // A tile of 4 x 2 sums and as many chains leaves half of the registers to what is decoded.
  static constexpr int kRows = 4;
  static constexpr int kPanels = 2;
  static constexpr bool kUnsignedCodes = true;  // vpdpbusd: u8 codes times s8 activations
  static constexpr int kScratchColumns = 1024;  // decoded at once: 40 KiB
  /// Registers for sums and chains where groups that share vectors are summed side by side.
  static constexpr int kSumRegisters = 30;
  /// Up to so many rows take their codes from the packed panels.
  static constexpr int direct_rows(core::DType dtype) {
    using enum core::DType;
    if (dtype == kQ8_0) return 1 << 30;  // stored decoded
    if (dtype == kQ6_K) return 12;       // much to decode
    const bool nibbles = dtype == kQ4_0 || dtype == kQ4_K || dtype == kNVFP4 || dtype == kMXFP4;
    return nibbles || dtype == kQ5_0 || dtype == kQ5_K ? 16 : 0;
  }
  static constexpr int code_max(int) { return 255; }  // makes no difference here
  /// Steps of products that 16-bit sums can take; 0: products go to 32 bits at once.
  static constexpr int steps_in_16_bits(int) { return 0; }

  static Bytes load_bytes(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
  static void store_bytes(std::uint8_t* p, Bytes a) { _mm512_storeu_si512(p, a); }
  /// (byte >> kShift) & kMask of every byte; negative shifts go left.
  template <int kShift, int kMask>
  static Bytes bits(Bytes a) {
    if constexpr (kShift > 0) a = _mm512_srli_epi16(a, kShift);
    if constexpr (kShift < 0) a = _mm512_slli_epi16(a, -kShift);
    return _mm512_and_si512(a, _mm512_set1_epi8(static_cast<char>(kMask)));
  }
  /// Bits that enter a byte from its neighbour are to be masked by bits().
  static Bytes shift_bytes_right(Bytes a, int n) {
    return _mm512_srl_epi16(a, _mm_cvtsi32_si128(n));
  }
  static Bytes shift_words_right(Bytes a, int n) {
    return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n));
  }
  static Bytes either(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
  static Bytes flip_top_bit(Bytes a) { return _mm512_xor_si512(a, _mm512_set1_epi8(-128)); }
  /// table[byte], bytes below 16.
  static Bytes lookup(const std::uint8_t* table, Bytes index) {
    const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), index);
  }

  static I32 set1_i32(std::int32_t x) { return words(_mm512_set1_epi32(x)); }
  template <int kShift>
  static I32 shift_left(I32 a) {
    return words(_mm512_slli_epi32(bits_of(a), kShift));
  }
  static I32 add_i32(I32 a, I32 b) { return a + b; }
  /// Byte kIndex of each word, unsigned or signed.
  template <int kIndex>
  static I32 byte_of_words(Bytes a) {
    if constexpr (kIndex > 0) a = _mm512_srli_epi32(a, 8 * kIndex);
    if constexpr (kIndex < 3) a = _mm512_and_si512(a, _mm512_set1_epi32(255));
    return words(a);
  }
  template <int kIndex>
  static I32 signed_byte_of_words(Bytes a) {
    if constexpr (kIndex < 3) a = _mm512_slli_epi32(a, 24 - 8 * kIndex);
    return words(_mm512_srai_epi32(a, 24));
  }
  /// The f16 in the low or high half of each word.
  static F32 f16_low(Bytes words) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)); }
  static F32 f16_high(Bytes words) { return f16_low(_mm512_srli_epi32(words, 16)); }
  static F32 load_bf16(const std::uint16_t* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }

  /// E4M3 codes divided by 256: their bits, moved, are those of an f16.
  static F32 load_e4m3(const std::uint8_t* p) {
    // Sign extension puts the sign into the bits that the shift moves to the top.
    const __m256i code = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i mask = _mm256_set1_epi16(static_cast<short>(0xbf80));
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(code, 7), mask));
  }
  /// Byte H of each half word, an unsigned E4M3 code, divided by 256.
  template <int H>
  static F32 load_e4m3_byte(const std::uint16_t* p) {
    __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (H == 1) code = _mm256_srli_epi16(code, 8);
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x7f)), 7));
  }
  /// 2^floor(log2 |x|); 0 of zeros and subnormals.
  static F32 power_of(F32 x) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7f800000)));
  }

  using Quad = __m512i;
  /// Four activations, for every lane.
  static Quad broadcast_quad(const std::int8_t* p) {
    std::int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
  }
  template <int kCodeMax>
  static I32 dot(I32 acc, Bytes codes, Quad a) {
    return words(_mm512_dpbusd_epi32(bits_of(acc), codes, a));
  }

  // ---- quantization of activations, 16 at a time

  /// Running maximum of the magnitudes' bits.
  static I32 max_magnitude(I32 max, const float* x) {
    const __m512i bits = _mm512_loadu_si512(x);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    return words(_mm512_max_epu32(bits_of(max), magnitude));
  }
  static std::uint32_t largest(I32 a) { return _mm512_reduce_max_epu32(bits_of(a)); }
  /// codes = x * inverse, to nearest even; returns the sum of the codes.
  static std::int32_t quantize16(const float* x, float inverse, std::int8_t* codes) {
    const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(load(x), set1(inverse)));
    const __m128i bytes = _mm512_cvtepi32_epi8(q);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), bytes);
    const __m128i quads = _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(1), bytes);
    const __m128i pairs = _mm_add_epi32(quads, _mm_shuffle_epi32(quads, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_shuffle_epi32(pairs, 0xb1)));
  }
};

}  // namespace tandem::kernels::cpu
