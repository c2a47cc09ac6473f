#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tandem/kernels/cpu/panel.h"
#include "tandem/kernels/cpu/simd/group_sources_impl.h"
#include "tandem/kernels/cpu/simd/row_block_impl.h"

// The routine that does all the work of a product with int8 activations: 32 columns of R rows by P
// panels. The arithmetic is that of matmul_scalar.cc.

namespace tandem::kernels::cpu {

constexpr int log2_of(int power) {
  int n = 0;
  while ((1 << n) < power) ++n;
  return n;
}

template <class L>
struct Groups : GroupSources<L> {
  using Sources = GroupSources<L>;
  using Sources::P;
  using typename Sources::Bytes;
  using typename Sources::F32;
  using typename Sources::I32;
  template <class F>
  using ClassOf = typename Sources::template ClassOf<F>;
  template <class F, int G>
  using PackedGroup = typename Sources::template PackedGroup<F, G>;

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

  /// Half H of a group's sums: those of 16 columns where scales are per 16, of all 32 elsewhere.
  template <class C>
  static constexpr int kParts = C::kHalves ? 2 : 1;
  template <class C, int H, int R>
  TANDEM_INLINE static void start_sums(const CodeGroup* a, std::size_t stride, Sums<R> sum) {
    for (int r = 0; r < R; ++r) {
      const CodeGroup& group = a[r * stride];
      const I32 first = start<C>(C::kHalves ? group.minus_sum16[H] : group.minus_sum);
      for (int p = 0; p < P; ++p) sum[r][p] = first;
    }
  }

  /// v = the products of a group so far, with the weights' scales.
  template <class C, int H, int R, class Group>
  TANDEM_INLINE static void scale_sums(const Group& w, Sums<R> sum, Chains<R> v) {
    for (int p = 0; p < P; ++p) {
      const F32 scale = w.template scale<H>(p);
      for (int r = 0; r < R; ++r) {
        const F32 products = L::to_f32(sum[r][p]);
        v[r][p] = H == 0 ? L::mul(scale, products) : L::fma(scale, products, v[r][p]);
      }
    }
  }

  /// One step of every chain: acc = fma(activation scale, v, acc).
  template <class C, int R, class Group>
  TANDEM_INLINE static void add_to_chains(const Group& w, const CodeGroup* a, std::size_t stride,
                                          Chains<R> v, Chains<R> acc) {
    if constexpr (C::kMins) subtract_mins<C, R>(w, a, stride, v);
    for (int r = 0; r < R; ++r) {
      const F32 scale = L::set1(a[r * stride].scale);
      for (int p = 0; p < P; ++p) acc[r][p] = L::fma(scale, v[r][p], acc[r][p]);
    }
  }

  /// 32 columns of every chain. a: the group of row 0.
  template <class C, int R, class Group>
  TANDEM_INLINE static void add_group(const Group& w, const CodeGroup* a, std::size_t stride,
                                      Chains<R> acc) {
    I32 sum[R][P];
    F32 v[R][P];
    unroll(UpTo<kParts<C>>(), [&]<int H>() TANDEM_INLINED {
      constexpr int kSteps = 8 / kParts<C>;
      start_sums<C, H, R>(a, stride, sum);
      dots<C, H * kSteps, kSteps, R>(w, a, stride, sum);
      scale_sums<C, H, R>(w, sum, v);
    });
    add_to_chains<C, R>(w, a, stride, v, acc);
  }

  /// The same for packed groups [kFirst, kFirst + kCount), whose sums grow side by side: a vector
  /// that they share is loaded once, and the panel is read in the order of its addresses.
  template <class F, int kFirst, int kCount, int R>
  TANDEM_INLINE static void add_groups(const F (&blocks)[2], const CodeGroup* a, std::size_t stride,
                                       Chains<R> acc) {
    using C = ClassOf<F>;
    if constexpr (kCount == 1) {
      return add_group<C, R>(PackedGroup<F, kFirst>{blocks}, a + kFirst, stride, acc);
    }
    I32 sum[kCount][R][P];
    F32 v[kCount][R][P];
    unroll(UpTo<kParts<C>>(), [&]<int H>() TANDEM_INLINED {
      constexpr int kSteps = 8 / kParts<C>;
      for (int g = 0; g < kCount; ++g) {
        start_sums<C, H, R>(a + kFirst + g, stride, sum[g]);
      }
      unroll(UpTo<kSteps>(), [&]<int I>() TANDEM_INLINED {
        unroll(UpTo<kCount>(), [&]<int G>() TANDEM_INLINED {
          dots<C, H * kSteps + I, 1, R>(PackedGroup<F, kFirst + G>{blocks}, a + kFirst + G, stride,
                                        sum[G]);
        });
      });
      unroll(UpTo<kCount>(), [&]<int G>() TANDEM_INLINED {
        scale_sums<C, H, R>(PackedGroup<F, kFirst + G>{blocks}, sum[G], v[G]);
      });
    });
    unroll(UpTo<kCount>(), [&]<int G>() TANDEM_INLINED {
      add_to_chains<C, R>(PackedGroup<F, kFirst + G>{blocks}, a + kFirst + G, stride, v[G], acc);
    });
  }

  template <class C, int R, class Group>
  TANDEM_INLINE static void subtract_mins(const Group& w, const CodeGroup* a, std::size_t stride,
                                          Chains<R> v) {
    for (int p = 0; p < P; ++p) {
      unroll(UpTo<kParts<C>>(), [&]<int H>() TANDEM_INLINED {
        const F32 min = w.template min<H>(p);
        for (int r = 0; r < R; ++r) {
          const CodeGroup& group = a[r * stride];
          const std::int32_t minus_sum = C::kHalves ? group.minus_sum16[H] : group.minus_sum;
          v[r][p] = L::fma(min, L::to_f32(L::set1_i32(minus_sum)), v[r][p]);
        }
      });
    }
  }
};

}  // namespace tandem::kernels::cpu
