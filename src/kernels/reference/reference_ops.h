#pragma once

#include <span>
#include <vector>

#include "tandem/core/units.h"
#include "tandem/kernels/host_kv.h"

/// The mathematics of the forward pass in plain f32, one row at a time. Thread: any.
namespace tandem::kernels::reference {

/// A row-major f32 matrix [rows, cols], not owned.
struct MatrixView {
  const float* data = nullptr;
  int rows = 0;
  int cols = 0;

  std::span<const float> row(int r) const {
    return {data + static_cast<std::ptrdiff_t>(r) * cols, static_cast<std::size_t>(cols)};
  }
};

/// Sum of a[i] * b[i]. The order is fixed: 16 partial sums, s[j] over i = j mod 16 ascending, then
/// s[j] += s[j + 8], + 4, + 2, + 1. (A single running sum could not be vectorized.)
float dot(std::span<const float> a, std::span<const float> b);

/// out[r, n] = w.row(n) . x[r]. x: [num_rows, w.cols], out: [num_rows, w.rows].
void linear(MatrixView w, const float* x, int num_rows, float* out);

/// Rounds x to e4m3 with one dynamic scale s = max(max|x| / 448, 1 / (448 * 512)): codes[i] = the
/// e4m3 value nearest to x[i] / s. Returns s. A value that is not finite makes s so.
/// spec/formats.md section 6.
float round_to_e4m3(std::span<const float> x, std::span<float> codes);

/// x = x / sqrt(mean(x^2) + eps) * weight; an empty weight is all ones. spec/model.md section 2.
void rms_normalize(std::span<float> x, std::span<const float> weight, float eps);

/// Rotates the pairs (x[i], x[i + D/2]) by the angle position * frequencies[i], computed in f32 as
/// the reference implementation does. x: [D], frequencies: [D/2]. spec/model.md section 5.2.
void rotate(std::span<float> x, std::span<const float> frequencies, Position position);

/// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). spec/model.md section 7.
float gelu_tanh(float x);

/// x = exp(x - max x) / (sum of these).
void softmax(std::span<float> x);

/// Indices of the n largest values, largest first, the lower index first on ties. n in [0, size].
std::vector<int> largest(std::span<const float> x, int n);

/// x = cap * tanh(x / cap).
void softcap(std::span<float> x, float cap);

/// K and V of one KV head of one sequence, f32 tiles [page_tokens, D].
struct HeadCache {
  const HostKv* kv = nullptr;
  int kv_layer = 0;
  int kv_head = 0;
  std::span<const PageId> pages;
  int head_size = 0;

  std::span<float> key(Position position) const;
  std::span<float> value(Position position) const;
};

/// out = sum over keys j in [begin, end) of softmax_j(q . k_j) v_j, scale 1, ascending j; zeros if
/// there is no key. q, out: [D]. scores: scratch.
void attend(std::span<const float> q, const HeadCache& cache, Position begin, Position end,
            std::vector<float>& scores, std::span<float> out);

/// What an int8 cache keeps of x: code * s with s = max |x| / 127 and codes to nearest even.
void round_to_int8(std::span<float> x);

/// True if no value is infinite or NaN.
bool all_finite(std::span<const float> x);

}  // namespace tandem::kernels::reference
