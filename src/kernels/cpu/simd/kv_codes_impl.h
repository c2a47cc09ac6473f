#pragma once

#include <cstddef>
#include <cstdint>

#include "tandem/kernels/cpu/kv_layout.h"
#include "tandem/kernels/cpu/panel.h"

namespace tandem::kernels::cpu {

/// Codes of queries, keys and values; the cache's layouts are in kv_layout.h.
template <typename L>
struct KvCodes {
  using F32 = typename L::F32;

  static float encode_query(const float* x, int n, std::int16_t* pair, int stride) {
    const Scale scale = scale_by_length(x, n);
    store_pairs(x, n, scale.inverse, pair, stride);
    return scale.value;
  }

  static void store_key_int16(const float* x, int n, std::byte* page, int token) {
    const Scale scale = scale_by_length(x, n);
    store_scale(scale, n, sizeof(std::int16_t), page, token);
    auto* first = reinterpret_cast<std::int16_t*>(page) + 2 * token;
    store_pairs(x, n, scale.inverse, first, 2 * kPageTokens);
  }

  static void store_value_int16(const float* x, int n, std::byte* page, int token) {
    const Scale scale = scale_by_largest(x, n, kLargestValue);
    store_scale(scale, n, sizeof(std::int16_t), page, token);
    std::int16_t codes[16];
    for (int chunk = 0; chunk < n; chunk += kValueChunk) {
      const int width = n - chunk < kValueChunk ? n - chunk : kValueChunk;
      auto* out = reinterpret_cast<std::int16_t*>(page) + chunk * kPageTokens;
      out += token / 2 * 2 * width + token % 2;
      for (int i = 0; i < width; i += 16) {
        codes_of(x + chunk + i, scale.inverse, codes);
        for (int j = 0; j < 16; ++j, out += 2) *out = codes[j];
      }
    }
  }

  static void store_key_int8(const float* x, int n, std::byte* page, int token) {
    const Scale scale = scale_by_largest(x, n, kLargestInt8);
    store_scale(scale, n, 1, page, token);
    std::byte* lane = page + token / kPanelRows * kPanelRows * n + token % kPanelRows * 4;
    std::uint8_t codes[16];
    for (int i = 0; i < n; i += 16) {
      bytes_of(x + i, scale.inverse, codes);
      for (int j = 0; j < 16; j += 4, lane += kVectorBytes) __builtin_memcpy(lane, codes + j, 4);
    }
  }

  static void store_value_int8(const float* x, int n, std::byte* page, int token) {
    const Scale scale = scale_by_largest(x, n, kLargestInt8);
    store_scale(scale, n, 1, page, token);
    std::byte* column = page + token / 4 * kVectorBytes + token % 4;
    std::uint8_t codes[16];
    for (int i = 0; i < n; i += 16, column += 16 * kPageTokens) {
      bytes_of(x + i, scale.inverse, codes);
      for (int j = 0; j < 16; ++j) __builtin_memcpy(column + 4 * j, codes + j, 1);
    }
  }

 private:
  struct Scale {
    float value = 0.0F;    ///< what codes are multiplied with
    float inverse = 0.0F;  ///< 0: so are all codes
  };

  static float largest_of(const float* x, int n) {
    const F32 zero = L::set1(0.0F);
    F32 top = zero;
    for (int i = 0; i < n; i += 16) {
      const F32 v = L::load(x + i);
      top = L::max(L::max(v, L::sub(zero, v)), top);
    }
    return L::max_of(top);
  }

  /// The largest magnitude of x, which is finite, gets the code `largest_code`.
  static Scale scale_by_largest(const float* x, int n, float largest_code) {
    const float largest = largest_of(x, n);
    if (largest < kSmallestMagnitude) return {};
    return {largest / largest_code, largest_code / largest};
  }

  /// As scale_by_largest, unless the codes would be longer than kLongestCodes; NaN if some value is
  /// no finite number.
  static Scale scale_by_length(const float* x, int n) {
    const float largest = largest_of(x, n);
    // Relative to the largest value no square leaves the range of floats, and NaN and infinities
    // stay what they are.
    const bool is_zero = largest < kSmallestMagnitude;
    const F32 factor = L::set1(is_zero ? 0.0F : 1.0F / largest);
    F32 squares = L::set1(0.0F);
    for (int i = 0; i < n; i += 16) {
      const F32 y = L::mul(L::load(x + i), factor);
      squares = L::fma(y, y, squares);
    }
    const float length = __builtin_sqrtf(L::sum(squares));
    if (!(length < __builtin_inff())) return {__builtin_nanf(""), 0.0F};
    if (is_zero) return {};
    const float by_length = length / kLongestCodes;
    const float by_largest = 1.0F / kLargestCode;
    const float unit = by_length > by_largest ? by_length : by_largest;
    return {largest * unit, 1.0F / unit / largest};
  }

  /// Stores a token's scale behind a page's codes of `code_bytes` each.
  static void store_scale(const Scale& scale, int n, std::size_t code_bytes, std::byte* page,
                          int token) {
    const std::size_t codes = static_cast<std::size_t>(kPageTokens * n) * code_bytes;
    __builtin_memcpy(page + codes + static_cast<std::size_t>(token) * kScaleBytes, &scale.value,
                     sizeof scale.value);
  }

  /// The codes of x[16].
  static void codes_of(const float* x, float inverse, std::int16_t* codes) {
    L::store_codes(codes, L::mul(L::load(x), L::set1(inverse)));
  }
  static void bytes_of(const float* x, float inverse, std::uint8_t* bytes) {
    std::int16_t codes[16];
    codes_of(x, inverse, codes);
    for (int i = 0; i < 16; ++i) bytes[i] = static_cast<std::uint8_t>(codes[i] + kInt8Offset);
  }

  static void store_pairs(const float* x, int n, float inverse, std::int16_t* pair, int stride) {
    std::int16_t codes[16] = {};
    for (int i = 0; i < n; i += 16) {
      if (inverse != 0.0F) codes_of(x + i, inverse, codes);
      for (int j = 0; j < 16; j += 2, pair += stride) {
        __builtin_memcpy(pair, codes + j, 2 * sizeof *pair);
      }
    }
  }
};

}  // namespace tandem::kernels::cpu
