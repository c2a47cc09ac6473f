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

/// The codes of x[16], to nearest even: adding and taking away 1.5 * 2^23 drops the digits behind
/// the point, in whole vectors where lrintf would be 16 calls.
void codes_of(const float* x, float inverse, std::uint8_t (&codes)[kPanelRows]) {
  constexpr float kRounder = 0x1.8p23F;
  for (int i = 0; i < kPanelRows; ++i) {
    const float rounded = (x[i] * inverse + kRounder) - kRounder;
    codes[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(rounded) + kCodeOffset);
  }
}

}  // namespace

void store_key_int8(const float* x, int n, std::uint8_t* page, int token) {
  const float inverse = store_scale(x, n, page, token);
  std::uint8_t* lane = page + token / kPanelRows * kPanelRows * n + token % kPanelRows * 4;
  std::uint8_t codes[kPanelRows];
  for (int i = 0; i < n; i += kPanelRows) {
    codes_of(x + i, inverse, codes);
    for (int j = 0; j < kPanelRows; j += 4, lane += kVectorBytes) {
      std::memcpy(lane, codes + j, 4);
    }
  }
}

void store_value_int8(const float* x, int n, std::uint8_t* page, int token) {
  const float inverse = store_scale(x, n, page, token);
  std::uint8_t* column = page + token / 4 * kVectorBytes + token % 4;
  std::uint8_t codes[kPanelRows];
  for (int i = 0; i < n; i += kPanelRows, column += kPanelRows * kPageTokens) {
    codes_of(x + i, inverse, codes);
    for (int j = 0; j < kPanelRows; ++j) column[4 * j] = codes[j];
  }
}

}  // namespace tandem::kernels::cpu
