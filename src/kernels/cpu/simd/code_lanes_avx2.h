#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "tandem/core/dtype.h"
#include "tandem/kernels/cpu/simd/lanes_avx2.h"

namespace tandem::kernels::cpu {

/// Integer side of the matrix products in AVX2: a vector of a panel in two registers. Products of
/// codes and activations add up in 16 bits first; no sum can leave them: a pair is at most
/// 2 * code * 127, and 8-bit codes are taken by magnitude (<= 128) with the activation's sign
/// turned.
struct Avx2Codes : Avx2Lanes {
  using Bytes = I32;  // rows 0-7, 8-15
  static constexpr int kRows = 4;
  static constexpr int kPanels = 1;
  static constexpr bool kUnsignedCodes = false;
  static constexpr int kScratchColumns = 512;
  /// Groups that share vectors are not summed side by side: products gather in 16 bits first.
  static constexpr int kSumRegisters = 0;
  /// Up to so many rows take their codes from the packed panels.
  static constexpr int direct_rows(core::DType dtype) {
    using enum core::DType;
    return dtype == kQ4_K || dtype == kQ6_K || dtype == kQ5_0 || dtype == kQ8_0 ? 1 : 0;
  }
  static constexpr int code_max(int code) { return code < 15 ? 15 : code; }
  static constexpr int steps_in_16_bits(int code) {
    return code == 255 ? 1 : 32767 / (2 * 127 * code);
  }

  static Bytes load_bytes(const std::uint8_t* p) {
    const auto* v = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
  }
  static void store_bytes(std::uint8_t* p, Bytes a) {
    auto* v = reinterpret_cast<__m256i*>(p);
    _mm256_storeu_si256(v, a.lo);
    _mm256_storeu_si256(v + 1, a.hi);
  }
  template <int kShift, int kMask>
  static Bytes bits(Bytes a) {
    const __m256i mask = _mm256_set1_epi8(static_cast<char>(kMask));
    if constexpr (kShift > 0) {
      a = {_mm256_srli_epi16(a.lo, kShift), _mm256_srli_epi16(a.hi, kShift)};
    } else if constexpr (kShift < 0) {
      a = {_mm256_slli_epi16(a.lo, -kShift), _mm256_slli_epi16(a.hi, -kShift)};
    }
    return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
  }
  static Bytes shift_bytes_right(Bytes a, int n) {
    const __m128i count = _mm_cvtsi32_si128(n);
    return {_mm256_srl_epi16(a.lo, count), _mm256_srl_epi16(a.hi, count)};
  }
  static Bytes shift_words_right(Bytes a, int n) {
    const __m128i count = _mm_cvtsi32_si128(n);
    return {_mm256_srl_epi32(a.lo, count), _mm256_srl_epi32(a.hi, count)};
  }
  static Bytes either(Bytes a, Bytes b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
  }
  static Bytes flip_top_bit(Bytes a) {
    const __m256i top = _mm256_set1_epi8(-128);
    return {_mm256_xor_si256(a.lo, top), _mm256_xor_si256(a.hi, top)};
  }
  static Bytes lookup(const std::uint8_t* table, Bytes index) {
    const __m256i t =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm256_shuffle_epi8(t, index.lo), _mm256_shuffle_epi8(t, index.hi)};
  }

  static I32 set1_i32(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  template <int kShift>
  static I32 shift_left(I32 a) {
    return {_mm256_slli_epi32(a.lo, kShift), _mm256_slli_epi32(a.hi, kShift)};
  }
  static I32 add_i32(I32 a, I32 b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
  }
  template <int kIndex>
  static I32 byte_of_words(Bytes words) {
    const __m256i mask = _mm256_set1_epi32(255);
    return {_mm256_and_si256(_mm256_srli_epi32(words.lo, 8 * kIndex), mask),
            _mm256_and_si256(_mm256_srli_epi32(words.hi, 8 * kIndex), mask)};
  }
  template <int kIndex>
  static I32 signed_byte_of_words(Bytes words) {
    return {_mm256_srai_epi32(_mm256_slli_epi32(words.lo, 24 - 8 * kIndex), 24),
            _mm256_srai_epi32(_mm256_slli_epi32(words.hi, 24 - 8 * kIndex), 24)};
  }
  static F32 f16_low(Bytes words) { return {half_words(words.lo), half_words(words.hi)}; }
  static F32 f16_high(Bytes words) { return f16_low(shift_words_right(words, 16)); }
  static F32 load_bf16(const std::uint16_t* p) {
    const auto* v = reinterpret_cast<const __m128i*>(p);
    const auto widen = [](__m128i half) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    };
    return {widen(_mm_loadu_si128(v)), widen(_mm_loadu_si128(v + 1))};
  }

  static F32 load_e4m3(const std::uint8_t* p) {
    const __m256i code = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i mask = _mm256_set1_epi16(static_cast<short>(0xbf80));
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(code, 7), mask);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
  }
  template <int H>
  static F32 load_e4m3_byte(const std::uint16_t* p) {
    __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (H == 1) code = _mm256_srli_epi16(code, 8);
    const __m256i half = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x7f)), 7);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
  }
  static F32 power_of(F32 x) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));
    return {_mm256_and_ps(x.lo, mask), _mm256_and_ps(x.hi, mask)};
  }

  using Quad = __m256i;
  static Quad broadcast_quad(const std::int8_t* p) {
    std::int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return _mm256_set1_epi32(word);
  }
  struct SignedCodes {
    Bytes magnitude, value;
  };
  /// Codes in the form that products() takes.
  template <int kCodeMax>
  static auto prepare(Bytes codes) {
    if constexpr (kCodeMax == 255) {
      return SignedCodes{{_mm256_abs_epi8(codes.lo), _mm256_abs_epi8(codes.hi)}, codes};
    } else {
      return codes;
    }
  }
  /// Sums of two products of each lane's four, in 16 bits.
  static I16 products(Bytes codes, Quad a) {
    return {_mm256_maddubs_epi16(codes.lo, a), _mm256_maddubs_epi16(codes.hi, a)};
  }
  static I16 products(const SignedCodes& codes, Quad a) {
    return {_mm256_maddubs_epi16(codes.magnitude.lo, _mm256_sign_epi8(a, codes.value.lo)),
            _mm256_maddubs_epi16(codes.magnitude.hi, _mm256_sign_epi8(a, codes.value.hi))};
  }
  static I16 add_i16(I16 a, I16 b) {
    return {_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)};
  }
  static I32 widen_add(I32 acc, I16 a) {
    const __m256i ones = _mm256_set1_epi16(1);
    return add_i32(acc, {_mm256_madd_epi16(a.lo, ones), _mm256_madd_epi16(a.hi, ones)});
  }

  // ---- quantization of activations, 16 at a time

  static I32 max_magnitude(I32 max, const float* x) {
    const auto* v = reinterpret_cast<const __m256i*>(x);
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    return {_mm256_max_epu32(max.lo, _mm256_and_si256(_mm256_loadu_si256(v), mask)),
            _mm256_max_epu32(max.hi, _mm256_and_si256(_mm256_loadu_si256(v + 1), mask))};
  }
  static std::uint32_t largest(I32 a) {
    const __m256i b = _mm256_max_epu32(a.lo, a.hi);
    __m128i c = _mm_max_epu32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    c = _mm_max_epu32(c, _mm_shuffle_epi32(c, 0x4e));
    c = _mm_max_epu32(c, _mm_shuffle_epi32(c, 0xb1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(c));
  }
  static std::int32_t quantize16(const float* x, float inverse, std::int8_t* codes) {
    const F32 scaled = mul(load(x), set1(inverse));
    // Packing works within halves of a register; the permutation puts the words in order.
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(_mm256_cvtps_epi32(scaled.lo), _mm256_cvtps_epi32(scaled.hi)), 0xd8);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(codes),
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    const __m256i pairs = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
  }

 private:
  /// The f16 in the low half of each word.
  static __m256 half_words(__m256i words) {
    const __m256i low = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0xd8);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
  }
};

}  // namespace tandem::kernels::cpu
