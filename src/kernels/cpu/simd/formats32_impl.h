#pragma once

#include <cstdint>

#include "tandem/core/dtype.h"
#include "tandem/kernels/cpu/simd/format_base_impl.h"

namespace tandem::kernels::cpu {

// Blocks of 32 columns: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, NVFP4.

/// The nibble of step S of a 32-block whose vectors start at kFirst: low nibbles are columns 0..15.
template <class L, bool kHasSide, int kVectorCount, int kNibbles>
class Format32 : public FormatBase<L> {
 public:
  using Base = FormatBase<L>;
  using typename Base::Bytes;
  using typename Base::F32;
  static constexpr int kBlock = 32;
  static constexpr int kGroups = 1;
  static constexpr int kVectors = kVectorCount;
  static constexpr int kSectionBytes = kVectors * kVectorBytes;
  static constexpr bool kSide = kHasSide;
  static constexpr bool kHalves = false;
  static constexpr bool kMins = !kHasSide;

  TANDEM_INLINE Format32(const BlockPointer& p, int /*section*/) : Base(p) {}
  template <int G, int H>
  TANDEM_INLINE F32 scale() const {
    if constexpr (kSide) return this->side_scale();
    return L::f16_low(this->vector(0));
  }
  /// The offset m of Q4_1 and Q5_1 is a minimum of -m.
  template <int G, int H>
  TANDEM_INLINE F32 min() const {
    return L::sub(L::set1(0.0F), L::f16_high(this->vector(0)));
  }

 protected:
  template <int S>
  TANDEM_INLINE Bytes nibble() const {
    return this->template nibbles<(S >= 4)>(kNibbles + S % 4);
  }
  /// Fifth bits, from vector kFifth.
  template <int S, int kFifth>
  TANDEM_INLINE Bytes five_bits() const {
    return L::either(nibble<S>(), L::template bits<S - 4, 16>(this->vector(kFifth)));
  }
};

template <class L>
struct Format<L, core::DType::kQ4_0> : Format32<L, true, 4, 0> {
  static constexpr int kBias = 8;
  static constexpr int kCodeMax = 15;
  using Format32<L, true, 4, 0>::Format32;
  template <int G, int S>
  TANDEM_INLINE typename L::Bytes codes() const {
    return this->template nibble<S>();
  }
};

template <class L>
struct Format<L, core::DType::kQ4_1> : Format32<L, false, 5, 1> {
  static constexpr int kBias = 0;
  static constexpr int kCodeMax = 15;
  using Format32<L, false, 5, 1>::Format32;
  template <int G, int S>
  TANDEM_INLINE typename L::Bytes codes() const {
    return this->template nibble<S>();
  }
};

template <class L>
struct Format<L, core::DType::kQ5_0> : Format32<L, true, 5, 1> {
  static constexpr int kBias = 16;
  static constexpr int kCodeMax = 31;
  using Format32<L, true, 5, 1>::Format32;
  template <int G, int S>
  TANDEM_INLINE typename L::Bytes codes() const {
    return this->template five_bits<S, 0>();
  }
};

template <class L>
struct Format<L, core::DType::kQ5_1> : Format32<L, false, 6, 2> {
  static constexpr int kBias = 0;
  static constexpr int kCodeMax = 31;
  using Format32<L, false, 6, 2>::Format32;
  template <int G, int S>
  TANDEM_INLINE typename L::Bytes codes() const {
    return this->template five_bits<S, 1>();
  }
};

template <class L>
struct Format<L, core::DType::kQ8_0> : Format32<L, true, 8, 0> {
  static constexpr int kBias = 128;
  static constexpr int kCodeMax = 255;
  using Format32<L, true, 8, 0>::Format32;
  template <int G, int S>
  TANDEM_INLINE typename L::Bytes codes() const {
    return this->full_bytes(this->vector(S));
  }
};

template <class L>
struct Format<L, core::DType::kIQ4_NL> : Format32<L, true, 4, 0> {
  static constexpr int kBias = 128;
  static constexpr int kCodeMax = 255;
  using Format32<L, true, 4, 0>::Format32;
  template <int G, int S>
  TANDEM_INLINE typename L::Bytes codes() const {
    return this->full_bytes(L::lookup(kIq4Codebook, this->template nibble<S>()));
  }
};

/// The blocks of fp4.h: doubled E2M1 codes and half scales.
template <class L>
struct FormatFp4 : Format32<L, true, 4, 0> {
  static constexpr int kBias = 16;
  static constexpr int kCodeMax = 31;
  using Format32<L, true, 4, 0>::Format32;
  template <int G, int S>
  TANDEM_INLINE typename L::Bytes codes() const {
    return L::lookup(kE2m1Codebook, this->template nibble<S>());
  }
};

template <class L>
struct Format<L, core::DType::kMXFP4> : FormatFp4<L> {
  using FormatFp4<L>::FormatFp4;
  template <int G, int H>
  TANDEM_INLINE typename L::F32 scale() const {
    return this->side_bf16();
  }
};

template <class L>
struct Format<L, core::DType::kNVFP4> : FormatFp4<L> {
  static constexpr bool kHalves = true;
  using FormatFp4<L>::FormatFp4;
  template <int G, int H>
  TANDEM_INLINE typename L::F32 scale() const {
    return L::mul(L::set1(128.0F), this->template side_e4m3<H>());
  }
};

}  // namespace tandem::kernels::cpu
