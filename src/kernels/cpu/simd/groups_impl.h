#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tandem/kernels/cpu/panel.h"
#include "tandem/kernels/cpu/simd/format_base_impl.h"
#include "tandem/kernels/cpu/simd/row_block_impl.h"

// The routine that does all the work of a product with int8 activations: 32 columns of R rows by P
// panels. It takes its codes from packed panels, decoded in registers (few rows: every byte is used
// once or a few times), or from a scratch of decoded panels in the first-level cache (many rows:
// decoded once for all). The arithmetic is that of matmul_scalar.cc.

namespace tandem::kernels::cpu {

constexpr int log2_of(int power) {
  int n = 0;
  while ((1 << n) < power) ++n;
  return n;
}

/// What decides the arithmetic of a format once its codes are decoded; formats that agree in it
/// share their kernels.
template <bool kWithHalves, bool kWithMins, int kCodeBias, int kLargestCode>
struct CodeClass {
  static constexpr bool kHalves = kWithHalves;
  static constexpr bool kMins = kWithMins;
  static constexpr int kBias = kCodeBias;
  static constexpr int kCodeMax = kLargestCode;
};

template <class L>
struct Groups {
  using F32 = typename L::F32;
  using I32 = typename L::I32;
  using Bytes = typename L::Bytes;
  static constexpr int P = L::kPanels;
  template <class F>
  using ClassOf = CodeClass<F::kHalves, F::kMins, F::kBias, L::code_max(F::kCodeMax)>;

  // ---- where codes and scales of a group come from

  /// Group G of P packed blocks.
  template <class F, int G>
  struct PackedGroup {
    const F (&blocks)[2];
    const std::uint8_t* ahead[2];  ///< what the panels need soon

    template <int S>
    TANDEM_INLINE Bytes codes(int p) const {
      // One vector a step, so that the misses never fill the queue of the cache.
      if constexpr ((8 * G + S) * kVectorBytes < F::kSectionBytes) {
        L::prefetch(ahead[p] + (8 * G + S) * kVectorBytes);
      }
      return blocks[p].template codes<G, S>();
    }
    TANDEM_INLINE F32 scale(int p) const { return blocks[p].template scale<G>(); }
    TANDEM_INLINE F32 min(int p) const { return blocks[p].template min<G>(); }
    template <int H>
    TANDEM_INLINE F32 half_scale(int p) const {
      return blocks[p].template half_scale<G, H>();
    }
    template <int H>
    TANDEM_INLINE F32 half_min(int p) const {
      return blocks[p].template half_min<G, H>();
    }
    TANDEM_INLINE F32 d(int p) const { return blocks[p].d(); }
    TANDEM_INLINE F32 dmin(int p) const { return blocks[p].dmin(); }
  };

  /// A group decoded by unpack_group: for each panel 8 vectors of codes and the scales as f32.
  template <class C>
  struct DecodedGroup {
    static constexpr int kScales = (C::kHalves ? 3 : 1) * (C::kMins ? 2 : 1);
    static constexpr int kPanelBytes = (8 + kScales) * kVectorBytes;
    static constexpr int kBytes = P * kPanelBytes;
    std::uint8_t* data;

    template <int S>
    TANDEM_INLINE Bytes codes(int p) const {
      return L::load_bytes(data + p * kPanelBytes + S * kVectorBytes);
    }
    TANDEM_INLINE float* scales(int p, int i) const {
      return reinterpret_cast<float*>(data + p * kPanelBytes + (8 + i) * kVectorBytes);
    }
    TANDEM_INLINE F32 scale(int p) const { return L::load(scales(p, 0)); }
    TANDEM_INLINE F32 min(int p) const { return L::load(scales(p, 1)); }
    template <int H>
    TANDEM_INLINE F32 half_scale(int p) const {
      return L::load(scales(p, H));
    }
    TANDEM_INLINE F32 d(int p) const { return L::load(scales(p, 2)); }
    template <int H>
    TANDEM_INLINE F32 half_min(int p) const {
      return L::load(scales(p, 3 + H));
    }
    TANDEM_INLINE F32 dmin(int p) const { return L::load(scales(p, 5)); }
  };

  template <class C, class Source>
  TANDEM_INLINE static void decode_group(const Source& from, const DecodedGroup<C>& to, int p) {
    unroll(UpTo<8>(), [&]<int S>() TANDEM_INLINED {
      L::store_bytes(to.data + p * to.kPanelBytes + S * kVectorBytes, from.template codes<S>(p));
    });
    if constexpr (C::kHalves) {
      L::store(to.scales(p, 0), from.template half_scale<0>(p));
      L::store(to.scales(p, 1), from.template half_scale<1>(p));
      L::store(to.scales(p, 2), from.d(p));
      if constexpr (C::kMins) {
        L::store(to.scales(p, 3), from.template half_min<0>(p));
        L::store(to.scales(p, 4), from.template half_min<1>(p));
        L::store(to.scales(p, 5), from.dmin(p));
      }
    } else {
      L::store(to.scales(p, 0), from.scale(p));
      if constexpr (C::kMins) L::store(to.scales(p, 1), from.min(p));
    }
  }

  // ---- 32 columns

  template <int R>
  using Sums = I32 (&)[R][P];
  template <int R>
  using Chains = F32 (&)[R][P];

  /// sum[r][p] += products of steps kFirst .. kFirst + kCount - 1, four columns each.
  template <class C, int kFirst, int kCount, int R, class Group>
  TANDEM_INLINE static void dots(const Group& w, const CodeGroup* a, std::size_t stride,
                                 Sums<R> sum) {
    constexpr int kWideSteps = L::steps_in_16_bits(C::kCodeMax);
    if constexpr (kWideSteps == 0) {
      unroll(UpTo<kCount>(), [&]<int I>() TANDEM_INLINED {
        Bytes codes[P];
        for (int p = 0; p < P; ++p) codes[p] = w.template codes<kFirst + I>(p);
        for (int r = 0; r < R; ++r) {
          const auto quad = L::broadcast_quad(a[r * stride].codes + 4 * (kFirst + I));
          for (int p = 0; p < P; ++p) {
            sum[r][p] = L::template dot<C::kCodeMax>(sum[r][p], codes[p], quad);
          }
        }
      });
    } else {
      constexpr int kSteps = kWideSteps < kCount ? kWideSteps : kCount;
      typename L::I16 part[R][P];
      unroll(UpTo<kCount>(), [&]<int I>() TANDEM_INLINED {
        decltype(L::template prepare<C::kCodeMax>(Bytes())) codes[P];
        for (int p = 0; p < P; ++p) {
          codes[p] = L::template prepare<C::kCodeMax>(w.template codes<kFirst + I>(p));
        }
        for (int r = 0; r < R; ++r) {
          const auto quad = L::broadcast_quad(a[r * stride].codes + 4 * (kFirst + I));
          for (int p = 0; p < P; ++p) {
            const auto product = L::products(codes[p], quad);
            part[r][p] = I % kSteps == 0 ? product : L::add_i16(part[r][p], product);
            if (I % kSteps == kSteps - 1) sum[r][p] = L::widen_add(sum[r][p], part[r][p]);
          }
        }
      });
    }
  }

  /// The start of a sum of products: minus bias times the sum of the activations' codes.
  template <class C>
  TANDEM_INLINE static I32 start(std::int32_t minus_sum) {
    if constexpr (C::kBias == 0 || (C::kBias == 128 && !L::kUnsignedCodes)) {
      return L::zero();
    } else {
      return L::template shift_left<log2_of(C::kBias)>(L::set1_i32(minus_sum));
    }
  }

  /// One step of every chain: acc = fma(activation scale, v, acc). a: the group of row 0.
  template <class C, int R, class Group>
  TANDEM_INLINE static void add_group(const Group& w, const CodeGroup* a, std::size_t stride,
                                      Chains<R> acc) {
    I32 sum[R][P];
    F32 v[R][P];
    if constexpr (C::kHalves) {
      for (int r = 0; r < R; ++r) {
        for (int p = 0; p < P; ++p) sum[r][p] = start<C>(a[r * stride].minus_sum16[0]);
      }
      dots<C, 0, 4, R>(w, a, stride, sum);
      for (int p = 0; p < P; ++p) {
        const F32 scale = w.template half_scale<0>(p);
        for (int r = 0; r < R; ++r) {
          v[r][p] = L::mul(scale, L::to_f32(sum[r][p]));
          sum[r][p] = start<C>(a[r * stride].minus_sum16[1]);
        }
      }
      dots<C, 4, 4, R>(w, a, stride, sum);
      for (int p = 0; p < P; ++p) {
        const F32 scale = w.template half_scale<1>(p);
        const F32 d = w.d(p);
        for (int r = 0; r < R; ++r) {
          v[r][p] = L::mul(d, L::fma(scale, L::to_f32(sum[r][p]), v[r][p]));
        }
      }
    } else {
      for (int r = 0; r < R; ++r) {
        for (int p = 0; p < P; ++p) sum[r][p] = start<C>(a[r * stride].minus_sum);
      }
      dots<C, 0, 8, R>(w, a, stride, sum);
      for (int p = 0; p < P; ++p) {
        const F32 scale = w.scale(p);
        for (int r = 0; r < R; ++r) v[r][p] = L::mul(scale, L::to_f32(sum[r][p]));
      }
    }
    if constexpr (C::kMins) subtract_mins<C, R>(w, a, stride, v);
    for (int r = 0; r < R; ++r) {
      const F32 scale = L::set1(a[r * stride].scale);
      for (int p = 0; p < P; ++p) acc[r][p] = L::fma(scale, v[r][p], acc[r][p]);
    }
  }

  template <class C, int R, class Group>
  TANDEM_INLINE static void subtract_mins(const Group& w, const CodeGroup* a, std::size_t stride,
                                          Chains<R> v) {
    for (int p = 0; p < P; ++p) {
      if constexpr (C::kHalves) {
        const F32 low = w.template half_min<0>(p);
        const F32 high = w.template half_min<1>(p);
        const F32 dmin = w.dmin(p);
        for (int r = 0; r < R; ++r) {
          const std::int32_t* minus = a[r * stride].minus_sum16;
          const F32 t = L::fma(high, L::to_f32(L::set1_i32(minus[1])),
                               L::mul(low, L::to_f32(L::set1_i32(minus[0]))));
          v[r][p] = L::fma(dmin, t, v[r][p]);
        }
      } else {
        const F32 min = w.min(p);
        for (int r = 0; r < R; ++r) {
          v[r][p] = L::fma(min, L::to_f32(L::set1_i32(a[r * stride].minus_sum)), v[r][p]);
        }
      }
    }
  }
};

}  // namespace tandem::kernels::cpu
