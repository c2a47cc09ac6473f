#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tandem::kernels::cpu {

/// Sixteen f32 lanes in two AVX2 registers; see lanes_scalar.h for the meaning of each function.
struct Avx2Lanes {
  static constexpr int kSums = 6;  ///< that attention keeps in registers
  struct F32 {
    __m256 lo, hi;  // lanes 0-7, 8-15
  };
  struct I32 {
    __m256i lo, hi;
  };
  using I16 = I32;

  static F32 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static F32 load_part(const float* p, int n) {
    alignas(32) float lanes[16] = {};
    for (int i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
  }
  static void store(float* p, F32 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
  }
  static void store_part(float* p, int n, F32 a) {
    alignas(32) float lanes[16];
    store(lanes, a);
    for (int i = 0; i < n; ++i) p[i] = lanes[i];
  }
  static F32 load_f16(const std::uint16_t* p) {
    const auto* h = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
  }

  static I32 zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static I32 load_i32(const void* p) {
    const auto* v = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
  }
  static void store_i32(void* p, I32 a) {
    auto* v = static_cast<__m256i*>(p);
    _mm256_storeu_si256(v, a.lo);
    _mm256_storeu_si256(v + 1, a.hi);
  }
  static F32 to_f32(I32 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
  static I16 load_i16(const std::int16_t* p) { return load_i32(p); }
  static I16 broadcast_pair(const std::int16_t* p) {
    std::int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return {_mm256_set1_epi32(pair), _mm256_set1_epi32(pair)};
  }
  static I32 dot_pairs(I32 acc, I16 a, I16 b) {
    return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(a.lo, b.lo)),
            _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a.hi, b.hi))};
  }
  static void store_codes(std::int16_t* p, F32 a) {
    // Packing works within halves of a register; the permutation puts the codes in order.
    const __m256i codes = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), codes);
  }

  static F32 add(F32 a, F32 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static F32 sub(F32 a, F32 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  static F32 mul(F32 a, F32 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static F32 div(F32 a, F32 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  static F32 fma(F32 a, F32 b, F32 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static F32 fnma(F32 a, F32 b, F32 c) {
    return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
  }
  static F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  static F32 round(F32 a) {
    return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
  }
  static F32 pow2(F32 n) { return {pow2_half(n.lo), pow2_half(n.hi)}; }

  static float sum(F32 a) {
    const __m256 b = _mm256_add_ps(a.lo, a.hi);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    c = _mm_add_ss(c, _mm_movehdup_ps(c));
    return _mm_cvtss_f32(c);
  }
  static float first_lane(F32 a) { return _mm256_cvtss_f32(a.lo); }
  static float max_of(F32 a) {
    const __m256 b = _mm256_max_ps(a.lo, a.hi);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    c = _mm_max_ss(c, _mm_movehdup_ps(c));
    return _mm_cvtss_f32(c);
  }

 private:
  static __m256 pow2_half(__m256 n) {
    const __m256i bits = _mm256_castps_si256(_mm256_add_ps(n, _mm256_set1_ps(12582912.0F)));
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(127)), 23));
  }
};

}  // namespace tandem::kernels::cpu
