#include "tandem/kernels/cpu/kv_int8.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "tandem/kernels/cpu/kv_layout.h"
#include "tandem/kernels/cpu/panel.h"

namespace tandem::kernels::cpu {
namespace {

/// Stores the scale of x[n] for `token` behind the page's codes; returns its reciprocal.
float store_scale(const float* x, int n, std::uint8_t* page, int token) {
  float largest = 0.0F;
  for (int i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  const bool is_zero = largest < kSmallestMagnitude;
  const float scale = is_zero ? 0.0F : largest / kLargestCode;
  std::memcpy(page + static_cast<std::ptrdiff_t>(kPageTokens) * n + token * kScaleBytes, &scale,
              sizeof scale);
  return is_zero ? 0.0F : kLargestCode / largest;
}

std::uint8_t code_of(float x, float inverse) {
  return static_cast<std::uint8_t>(std::lrintf(x * inverse) + kCodeOffset);
}

}  // namespace

void store_key_int8(const float* x, int n, std::uint8_t* page, int token) {
  const float inverse = store_scale(x, n, page, token);
  std::uint8_t* lane = page + token / kPanelRows * kPanelRows * n + token % kPanelRows * 4;
  for (int i = 0; i < n; i += 4, lane += kVectorBytes) {
    for (int j = 0; j < 4; ++j) lane[j] = code_of(x[i + j], inverse);
  }
}

void store_value_int8(const float* x, int n, std::uint8_t* page, int token) {
  const float inverse = store_scale(x, n, page, token);
  std::uint8_t* column = page + token / 4 * kVectorBytes + token % 4;
  for (int i = 0; i < n; i += kPanelRows, column += kPanelRows * kPageTokens) {
    for (int j = 0; j < kPanelRows; ++j) column[4 * j] = code_of(x[i + j], inverse);
  }
}

}  // namespace tandem::kernels::cpu
