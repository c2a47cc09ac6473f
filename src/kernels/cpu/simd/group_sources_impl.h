#pragma once

#include <cstddef>
#include <cstdint>

#include "tandem/kernels/cpu/panel.h"
#include "tandem/kernels/cpu/simd/format_base_impl.h"
#include "tandem/kernels/cpu/simd/row_block_impl.h"

// Where the codes and scales of 32 columns of P panels come from: packed panels, decoded in
// registers (few rows: every byte is used once or a few times), or a scratch of decoded panels in
// the first-level cache (many rows: decoded once for all).

namespace tandem::kernels::cpu {

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
struct GroupSources {
  using F32 = typename L::F32;
  using I32 = typename L::I32;
  using Bytes = typename L::Bytes;
  static constexpr int P = L::kPanels;
  template <class F>
  using ClassOf = CodeClass<F::kHalves, F::kMins, F::kBias, L::code_max(F::kCodeMax)>;

  /// Group G of P packed blocks.
  template <class F, int G>
  struct PackedGroup {
    const F (&blocks)[2];

    template <int S>
    TANDEM_INLINE Bytes codes(int p) const {
      return blocks[p].template codes<G, S>();
    }
    template <int H>
    TANDEM_INLINE F32 scale(int p) const {
      return blocks[p].template scale<G, H>();
    }
    template <int H>
    TANDEM_INLINE F32 min(int p) const {
      return blocks[p].template min<G, H>();
    }
  };

  /// A group decoded by unpack_group: for each panel 8 vectors of codes and the scales as f32.
  template <class C>
  struct DecodedGroup {
    static constexpr int kParts = C::kHalves ? 2 : 1;
    static constexpr int kScales = kParts * (C::kMins ? 2 : 1);
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
    template <int H>
    TANDEM_INLINE F32 scale(int p) const {
      return L::load(scales(p, H));
    }
    template <int H>
    TANDEM_INLINE F32 min(int p) const {
      return L::load(scales(p, kParts + H));
    }
  };

  template <class C, class Source>
  TANDEM_INLINE static void decode_group(const Source& from, const DecodedGroup<C>& to, int p) {
    unroll(UpTo<8>(), [&]<int S>() TANDEM_INLINED {
      L::store_bytes(to.data + p * to.kPanelBytes + S * kVectorBytes, from.template codes<S>(p));
    });
    unroll(UpTo<DecodedGroup<C>::kParts>(), [&]<int H>() TANDEM_INLINED {
      L::store(to.scales(p, H), from.template scale<H>(p));
      if constexpr (C::kMins) L::store(to.scales(p, to.kParts + H), from.template min<H>(p));
    });
  }
};

}  // namespace tandem::kernels::cpu
