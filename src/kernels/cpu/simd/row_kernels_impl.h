#pragma once

#include "tandem/kernels/cpu/simd/attention_impl.h"
#include "tandem/kernels/cpu/simd/attention_int16_impl.h"
#include "tandem/kernels/cpu/simd/kv_codes_impl.h"
#include "tandem/kernels/cpu/simd/math.h"
#include "tandem/kernels/cpu/simd/row_kernels.h"

namespace tandem::kernels::cpu {

/// RowKernels over the sixteen lanes `L`. Everything is a template, so that no code compiled for
/// one instruction set can stand in for another's at link time.
template <typename L>
struct RowKernelsOf {
  using F32 = typename L::F32;
  using M = Math<L>;

  /// Calls f(offset, count) for every vector of [0, n); count is 16 except at the end.
  template <typename F>
  static void for_each_vector(int n, F f) {
    int i = 0;
    for (; i + 16 <= n; i += 16) f(i, 16);
    if (i < n) f(i, n - i);
  }
  static F32 load(const float* p, int count) {
    return count == 16 ? L::load(p) : L::load_part(p, count);
  }
  static void store(float* p, int count, F32 a) {
    if (count == 16) {
      L::store(p, a);
    } else {
      L::store_part(p, count, a);
    }
  }

  static float sum_squares(const float* x, float scale, int n) {
    F32 sum = L::set1(0.0F);
    const F32 s = L::set1(scale);
    for_each_vector(n, [&](int i, int count) {
      const F32 v = L::mul(load(x + i, count), s);
      sum = L::fma(v, v, sum);
    });
    return L::sum(sum);
  }
  static float inverse_rms(float sum_squares, int n, float eps) {
    return 1.0F / __builtin_sqrtf(sum_squares / static_cast<float>(n) + eps);
  }

  static float rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
    const float squares = sum_squares(x, 1.0F, n);
    const F32 inverse = L::set1(inverse_rms(squares, n, eps));
    for_each_vector(n, [&](int i, int count) {
      F32 v = L::mul(load(x + i, count), inverse);
      if (weight != nullptr) v = L::mul(v, load(weight + i, count));
      store(out + i, count, v);
    });
    return squares;
  }

  static void add_rms_norm(const float* y, const float* weight, int n, float eps, float scale,
                           float* x) {
    const F32 inverse = L::set1(inverse_rms(sum_squares(y, 1.0F, n), n, eps));
    const F32 s = L::set1(scale);
    for_each_vector(n, [&](int i, int count) {
      const F32 normed = L::mul(load(y + i, count), inverse);
      const F32 v = L::fma(normed, load(weight + i, count), load(x + i, count));
      store(x + i, count, L::mul(v, s));
    });
  }

  static void scale(const float* x, float factor, int n, float* out) {
    const F32 s = L::set1(factor);
    for_each_vector(
        n, [&](int i, int count) { store(out + i, count, L::mul(load(x + i, count), s)); });
  }

  static void gelu_mul(const float* gate, const float* up, int n, float* out) {
    for_each_vector(n, [&](int i, int count) {
      store(out + i, count, L::mul(M::gelu_tanh(load(gate + i, count)), load(up + i, count)));
    });
  }

  static void ple_combine(const float* table, const float* weight, int n, float eps, float x_scale,
                          float table_scale, float* x) {
    const float inverse = inverse_rms(sum_squares(x, x_scale, n), n, eps);
    const F32 s = L::set1(x_scale);
    const F32 r = L::set1(inverse);
    const F32 t = L::set1(table_scale);
    for_each_vector(n, [&](int i, int count) {
      const F32 normed = L::mul(L::mul(load(x + i, count), s), r);
      const F32 scaled = L::mul(load(table + i, count), t);
      const F32 v = L::fma(normed, load(weight + i, count), scaled);
      store(x + i, count, L::mul(v, L::set1(0.707106781186547524F)));
    });
  }

  static void rope_table(std::int32_t position, const float* frequency, int n, float* cosine,
                         float* sine) {
    const F32 p = L::set1(static_cast<float>(position));
    for_each_vector(n, [&](int i, int count) {
      F32 s;
      F32 c;
      M::sin_cos(L::mul(p, load(frequency + i, count)), s, c);
      store(cosine + i, count, c);
      store(sine + i, count, s);
    });
  }

  static void rope(float* x, int n, const float* cosine, const float* sine, int pairs) {
    float* second = x + n / 2;
    for_each_vector(pairs, [&](int i, int count) {
      const F32 a = load(x + i, count);
      const F32 b = load(second + i, count);
      const F32 c = load(cosine + i, count);
      const F32 s = load(sine + i, count);
      store(x + i, count, L::fnma(b, s, L::mul(a, c)));
      store(second + i, count, L::fma(a, s, L::mul(b, c)));
    });
  }

  static void softcap(float* x, int n, float cap) {
    const F32 c = L::set1(cap);
    for_each_vector(n, [&](int i, int count) {
      store(x + i, count, L::mul(c, M::tanh(L::div(load(x + i, count), c))));
    });
  }

  static RowMax argmax(const float* x, int n) {
    // Indices stay exact in f32 up to 2^24; a row's caller splits larger ones.
    alignas(64) float lane_index[16];
    for (int i = 0; i < 16; ++i) lane_index[i] = static_cast<float>(i);
    F32 index = L::load(lane_index);
    F32 best = L::set1(-__builtin_inff());
    F32 best_index = index;
    const F32 step = L::set1(16.0F);
    int i = 0;
    for (; i + 16 <= n; i += 16) {
      const F32 v = L::load(x + i);
      best_index = L::select_less(best, v, index, best_index);
      best = L::select_less(best, v, v, best);
      index = L::add(index, step);
    }
    alignas(64) float value[16];
    L::store(value, best);
    L::store(lane_index, best_index);
    RowMax top{value[0], static_cast<std::int32_t>(lane_index[0])};
    for (int lane = 1; lane < 16; ++lane) {
      const auto at = static_cast<std::int32_t>(lane_index[lane]);
      if (value[lane] > top.value || (value[lane] == top.value && at < top.index)) {
        top = {value[lane], at};
      }
    }
    for (; i < n; ++i) {
      if (x[i] > top.value) top = {x[i], i};
    }
    if (top.index >= n) top.index = 0;
    return top;
  }

  static bool all_finite(const float* x, int n) {
    // v - v is 0 for finite values and NaN otherwise, and NaN survives every addition.
    F32 sum = L::set1(0.0F);
    for_each_vector(n, [&](int i, int count) {
      const F32 v = load(x + i, count);
      sum = L::add(sum, L::sub(v, v));
    });
    return L::sum(sum) == 0.0F;
  }

  static void exp(const float* x, int n, float* out) {
    for_each_vector(n,
                    [&](int i, int count) { store(out + i, count, M::exp(load(x + i, count))); });
  }
  static void tanh(const float* x, int n, float* out) {
    for_each_vector(n,
                    [&](int i, int count) { store(out + i, count, M::tanh(load(x + i, count))); });
  }

  static constexpr RowKernels table(std::string_view isa) {
    return {isa,
            L::kSums >= 2 * kMaxTileVectors ? kMaxTileVectors : 4,
            rms_norm,
            add_rms_norm,
            scale,
            gelu_mul,
            ple_combine,
            rope_table,
            rope,
            softcap,
            argmax,
            all_finite,
            {KvCodes<L>::store_key_int16, KvCodes<L>::store_value_int16},
            {KvCodes<L>::store_key_int8, KvCodes<L>::store_value_int8},
            KvCodes<L>::encode_query,
            Int16Attention<L>::attend,
            AttentionOf<L>::merge_block,
            exp,
            tanh};
  }
};

}  // namespace tandem::kernels::cpu
