#include "tandem/kernels/reference/reference_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "tandem/core/check.h"
#include "tandem/formats/dequantize.h"

namespace tandem::kernels::reference {
namespace {

PageId page_of(const HeadCache& cache, Position position) {
  const auto index = static_cast<std::size_t>(position / cache.kv->layout().page_tokens);
  TANDEM_CHECK(cache.pages[index] != kNoPage, "no page at this position");
  return cache.pages[index];
}

std::span<float> row_of_tile(float* tile, const HeadCache& cache, Position position) {
  const std::ptrdiff_t row = position % cache.kv->layout().page_tokens;
  return {tile + row * cache.head_size, static_cast<std::size_t>(cache.head_size)};
}

}  // namespace

float dot(std::span<const float> a, std::span<const float> b) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> sums = {};
  std::size_t i = 0;
  for (; i + kLanes <= a.size(); i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (std::size_t j = 0; i + j < a.size(); ++j) sums[j] += a[i + j] * b[i + j];
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

void linear(MatrixView w, const float* x, int num_rows, float* out) {
  constexpr int kRowBlock = 32;  // rows that share one pass over the weights
  const MatrixView input{x, num_rows, w.cols};
  for (int begin = 0; begin < num_rows; begin += kRowBlock) {
    const int end = std::min(begin + kRowBlock, num_rows);
    for (int n = 0; n < w.rows; ++n) {
      for (int r = begin; r < end; ++r) {
        out[static_cast<std::ptrdiff_t>(r) * w.rows + n] = dot(w.row(n), input.row(r));
      }
    }
  }
}

float round_to_e4m3(std::span<const float> x, std::span<float> codes) {
  constexpr float kLargest = 448.0F;
  constexpr float kSmallestScale = 1.0F / (448.0F * 512.0F);
  float largest = 0.0F;
  for (const float value : x) {
    if (!(std::fabs(value) <= largest)) largest = std::fabs(value);
  }
  const float scale = std::max(largest / kLargest, kSmallestScale);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float code = std::clamp(x[i] / scale, -kLargest, kLargest);
    codes[i] = formats::e4m3_to_f32(formats::f32_to_e4m3(code));
  }
  return scale;
}

void rms_normalize(std::span<float> x, std::span<const float> weight, float eps) {
  const float mean_square = dot(x, x) / static_cast<float>(x.size());
  const float scale = 1.0F / std::sqrt(mean_square + eps);
  for (float& value : x) value *= scale;
  for (std::size_t i = 0; i < weight.size(); ++i) x[i] *= weight[i];
}

void rotate(std::span<float> x, std::span<const float> frequencies, Position position) {
  const std::size_t half = x.size() / 2;
  for (std::size_t i = 0; i < half; ++i) {
    if (frequencies[i] == 0.0F) continue;
    const float angle = static_cast<float>(position) * frequencies[i];
    const float c = std::cos(angle);
    const float s = std::sin(angle);
    const float low = x[i];
    const float high = x[i + half];
    x[i] = low * c - high * s;
    x[i + half] = high * c + low * s;
  }
}

float gelu_tanh(float x) {
  constexpr float kSqrt2OverPi = 0.79788456F;
  return 0.5F * x * (1.0F + std::tanh(kSqrt2OverPi * (x + 0.044715F * x * x * x)));
}

void softmax(std::span<float> x) {
  const float max = *std::max_element(x.begin(), x.end());
  float total = 0.0F;
  for (float& value : x) {
    value = std::exp(value - max);
    total += value;
  }
  for (float& value : x) value /= total;
}

std::vector<int> largest(std::span<const float> x, int n) {
  std::vector<int> chosen;
  std::vector<bool> is_taken(x.size());
  while (static_cast<int>(chosen.size()) < n) {
    std::size_t best = x.size();
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (!is_taken[i] && (best == x.size() || x[i] > x[best])) best = i;
    }
    is_taken[best] = true;
    chosen.push_back(static_cast<int>(best));
  }
  return chosen;
}

void softcap(std::span<float> x, float cap) {
  for (float& value : x) value = cap * std::tanh(value / cap);
}

std::span<float> HeadCache::key(Position position) const {
  return row_of_tile(kv->keys<float>(kv_layer, page_of(*this, position), kv_head), *this, position);
}

std::span<float> HeadCache::value(Position position) const {
  return row_of_tile(kv->values<float>(kv_layer, page_of(*this, position), kv_head), *this,
                     position);
}

void attend(std::span<const float> q, const HeadCache& cache, Position begin, Position end,
            std::vector<float>& scores, std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0F);
  scores.clear();
  float max = -std::numeric_limits<float>::infinity();
  for (Position j = begin; j < end; ++j) {
    scores.push_back(dot(q, cache.key(j)));
    max = std::max(max, scores.back());
  }
  float total = 0.0F;
  for (float& score : scores) {
    score = std::exp(score - max);
    total += score;
  }
  for (Position j = begin; j < end; ++j) {
    const float p = scores[static_cast<std::size_t>(j - begin)] / total;
    const std::span<const float> v = cache.value(j);
    for (std::size_t d = 0; d < out.size(); ++d) out[d] += p * v[d];
  }
}

void round_to_int8(std::span<float> x) {
  float largest = 0.0F;
  for (const float value : x) largest = std::max(largest, std::abs(value));
  if (largest == 0.0F) return;
  const float scale = largest / 127.0F;
  for (float& value : x) value = std::nearbyint(value / scale) * scale;
}

bool all_finite(std::span<const float> x) {
  return std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); });
}

}  // namespace tandem::kernels::reference
