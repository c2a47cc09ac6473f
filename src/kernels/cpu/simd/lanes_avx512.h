#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tandem::kernels::cpu {

/// Sixteen f32 lanes in one AVX-512 register; see lanes_scalar.h for the meaning of each function.
struct Avx512Lanes {
  static constexpr int kSums = 24;  ///< that attention keeps in registers
  using F32 = __m512;
  /// Of the element type that the dot products take: gcc keeps an accumulator of another type in
  /// two registers and moves it to and fro.
  typedef std::int32_t I32 __attribute__((vector_size(64)));
  using I16 = __m512i;
  static I32 words(__m512i a) { return (I32)a; }
  static __m512i bits_of(I32 a) { return (__m512i)a; }

  static __mmask16 first(int n) { return static_cast<__mmask16>((1U << n) - 1U); }

  static F32 set1(float x) { return _mm512_set1_ps(x); }
  static F32 load(const float* p) { return _mm512_loadu_ps(p); }
  static F32 load_part(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store(float* p, F32 a) { _mm512_storeu_ps(p, a); }
  static void store_part(float* p, int n, F32 a) { _mm512_mask_storeu_ps(p, first(n), a); }
  static F32 load_f16(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }

  static I32 zero() { return words(_mm512_setzero_si512()); }
  static I32 load_i32(const void* p) { return words(_mm512_loadu_si512(p)); }
  static void store_i32(void* p, I32 a) { _mm512_storeu_si512(p, bits_of(a)); }
  static F32 to_f32(I32 a) { return _mm512_cvtepi32_ps(bits_of(a)); }
  static I16 load_i16(const std::int16_t* p) { return _mm512_loadu_si512(p); }
  static I16 broadcast_pair(const std::int16_t* p) {
    std::int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
  }
  static I32 dot_pairs(I32 acc, I16 a, I16 b) {
    return words(_mm512_dpwssd_epi32(bits_of(acc), a, b));
  }
  static void store_codes(std::int16_t* p, F32 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a)));
  }

  static F32 add(F32 a, F32 b) { return _mm512_add_ps(a, b); }
  static F32 sub(F32 a, F32 b) { return _mm512_sub_ps(a, b); }
  static F32 mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }
  static F32 div(F32 a, F32 b) { return _mm512_div_ps(a, b); }
  static F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
  static F32 fnma(F32 a, F32 b, F32 c) { return _mm512_fnmadd_ps(a, b, c); }
  static F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
  static F32 min(F32 a, F32 b) { return _mm512_min_ps(a, b); }
  static F32 round(F32 a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
  }
  static F32 pow2(F32 n) {
    const __m512i bits = _mm512_castps_si512(_mm512_add_ps(n, _mm512_set1_ps(12582912.0F)));
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(127)), 23));
  }

  static float sum(F32 a) {
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
    const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), high);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    c = _mm_add_ss(c, _mm_movehdup_ps(c));
    return _mm_cvtss_f32(c);
  }
  static float first_lane(F32 a) { return _mm512_cvtss_f32(a); }
  static float max_of(F32 a) {
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
    const __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), high);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    c = _mm_max_ss(c, _mm_movehdup_ps(c));
    return _mm_cvtss_f32(c);
  }
};

}  // namespace tandem::kernels::cpu
