#pragma once

#include <cstdint>

#include "tandem/core/dtype.h"
#include "tandem/kernels/cpu/simd/format_base_impl.h"

namespace tandem::kernels::cpu {

// Blocks of 256 columns: Q2_K to Q6_K, IQ4_XS.

/// What these share: two sections of 128 columns, and so four groups a section.
template <class L, int kVectorCount>
class Format256 : public FormatBase<L> {
 public:
  static constexpr int kBlock = 256;
  static constexpr int kGroups = 4;
  static constexpr int kVectors = kVectorCount;
  static constexpr int kSectionBytes = kVectors * kVectorBytes / 2;

 protected:
  TANDEM_INLINE Format256(const BlockPointer& p, int section)
      : FormatBase<L>(p), section_(section) {}
  int section_;
};

/// Scales and minima of Q4_K and Q5_K: vectors 1..3 hold the 12 packed bytes, vector 0 d and dmin.
template <class L, int kVectorCount>
class FormatScaleMin : public Format256<L, kVectorCount> {
 public:
  using typename FormatBase<L>::Bytes;
  using typename FormatBase<L>::F32;
  static constexpr bool kHalves = false;
  static constexpr bool kMins = true;
  static constexpr int kBias = 0;

  TANDEM_INLINE FormatScaleMin(const BlockPointer& p, int section)
      : Format256<L, kVectorCount>(p, section) {
    const Bytes d = this->vector(0);
    const Bytes low = this->vector(1);
    const Bytes mid = this->vector(2);
    d_ = L::f16_low(d);
    dmin_ = L::f16_high(d);
    if (section == 0) {
      scales_ = L::template bits<0, 63>(low);
      mins_ = L::template bits<0, 63>(mid);
    } else {
      const Bytes high = this->vector(3);
      scales_ = L::either(L::template bits<0, 15>(high), L::template bits<2, 48>(low));
      mins_ = L::either(L::template bits<4, 15>(high), L::template bits<2, 48>(mid));
    }
  }
  template <int G, int H>
  TANDEM_INLINE F32 scale() const {
    return L::mul(d_, L::to_f32(L::template byte_of_words<G>(scales_)));
  }
  template <int G, int H>
  TANDEM_INLINE F32 min() const {
    return L::mul(dmin_, L::to_f32(L::template byte_of_words<G>(mins_)));
  }

 private:
  F32 d_, dmin_;
  Bytes scales_, mins_;
};

template <class L>
struct Format<L, core::DType::kQ4_K> : FormatScaleMin<L, 36> {
  static constexpr int kTogether = 2;
  static constexpr int kCodeMax = 15;
  using FormatScaleMin<L, 36>::FormatScaleMin;
  template <int G, int S>
  TANDEM_INLINE typename L::Bytes codes() const {
    return this->template nibbles<G % 2 == 1>(4 + 16 * this->section_ + 8 * (G / 2) + S);
  }
};

/// Fifth bits in vectors 4, 6 .. 18, bit g for group g of the block; nibbles of the first 64
/// columns in 5, 7 .. 19, of the others in 20..43.
template <class L>
struct Format<L, core::DType::kQ5_K> : FormatScaleMin<L, 44> {
  static constexpr int kTogether = 2;
  static constexpr int kCodeMax = 31;
  using FormatScaleMin<L, 44>::FormatScaleMin;
  template <int G, int S>
  TANDEM_INLINE typename L::Bytes codes() const {
    const auto fifth = L::shift_bytes_right(this->vector(4 + 2 * S), 4 * this->section_);
    const int pair = 2 * this->section_ + G / 2;
    const int nibble = pair == 0 ? 5 + 2 * S : 12 + 8 * pair + S;
    return L::either(this->template nibbles<G % 2 == 1>(nibble),
                     L::template bits<G - 4, 16>(fifth));
  }
};

/// 26 vectors a section: int8 scales in 0 and 1, upper two bits in 2, 5 .. 23, nibbles of columns
/// 0..31 and 64..95 in 3, 6 .. 24, of the others in 4, 7 .. 25.
template <class L>
struct Format<L, core::DType::kQ6_K> : Format256<L, 52> {
  static constexpr int kTogether = 4;
  static constexpr bool kSide = true;
  static constexpr bool kHalves = true;
  static constexpr bool kMins = false;
  static constexpr int kBias = 32;
  static constexpr int kCodeMax = 63;
  using typename FormatBase<L>::F32;
  using typename FormatBase<L>::Bytes;

  TANDEM_INLINE Format(const BlockPointer& p, int section) : Format256<L, 52>(p, section) {}
  template <int G, int S>
  TANDEM_INLINE Bytes codes() const {
    const int upper = 26 * this->section_ + 2 + 3 * S;
    return L::either(this->template nibbles<(G >= 2)>(upper + 1 + G % 2),
                     L::template bits<2 * G - 4, 48>(this->vector(upper)));
  }
  template <int G, int H>
  TANDEM_INLINE F32 scale() const {
    const Bytes scales = this->vector(26 * this->section_ + G / 2);
    return L::mul(this->side_scale(),
                  L::to_f32(L::template signed_byte_of_words<2 * (G % 2) + H>(scales)));
  }
};

/// Third bits in vectors 3, 5 .. 17, bit g for group g of the block; two low bits of the first 128
/// columns in 4, 6 .. 18, of the others in 19..26. 6-bit scales in 0..2: scale i has its low nibble
/// in byte i % 8, high nibbles for i >= 8, and its upper two bits in byte 8 + i % 4 at bit 2 (i /
/// 4).
template <class L>
struct Format<L, core::DType::kQ3_K> : Format256<L, 27> {
  static constexpr bool kSide = true;
  static constexpr bool kHalves = true;
  static constexpr bool kMins = false;
  static constexpr int kBias = 4;
  static constexpr int kCodeMax = 7;
  using typename FormatBase<L>::F32;
  using typename FormatBase<L>::Bytes;

  TANDEM_INLINE Format(const BlockPointer& p, int section) : Format256<L, 27>(p, section) {}
  template <int G, int S>
  TANDEM_INLINE Bytes codes() const {
    const Bytes third = L::shift_bytes_right(this->vector(3 + 2 * S), 4 * this->section_);
    const int low = this->section_ == 0 ? 4 + 2 * S : 19 + S;
    return L::either(L::template bits<2 * G, 3>(this->vector(low)),
                     L::template bits<G - 2, 4>(third));
  }
  template <int G, int H>
  TANDEM_INLINE F32 scale() const {
    constexpr int kIndex = 2 * G + H;
    const int shift = 4 * this->section_;
    const Bytes low = L::shift_bytes_right(this->vector(kIndex / 4), shift);
    const Bytes high = L::shift_bytes_right(this->vector(2), shift);
    const Bytes both =
        L::either(L::template bits<0, 15>(low), L::template bits<2 * (kIndex / 4) - 4, 48>(high));
    const auto scale = L::add_i32(L::template byte_of_words<kIndex % 4>(both), L::set1_i32(-32));
    return L::mul(this->side_scale(), L::to_f32(scale));
  }
};

/// Scale and minimum nibbles in vectors 0..3, two-bit codes in 4..19, d and dmin in 20.
template <class L>
struct Format<L, core::DType::kQ2_K> : Format256<L, 21> {
  static constexpr bool kHalves = true;
  static constexpr bool kMins = true;
  static constexpr int kBias = 0;
  static constexpr int kCodeMax = 3;
  using typename FormatBase<L>::F32;
  using typename FormatBase<L>::Bytes;

  TANDEM_INLINE Format(const BlockPointer& p, int section) : Format256<L, 21>(p, section) {}
  template <int G, int S>
  TANDEM_INLINE Bytes codes() const {
    return L::template bits<2 * G, 3>(this->vector(4 + 8 * this->section_ + S));
  }
  template <int G, int H>
  TANDEM_INLINE F32 scale() const {
    return L::mul(L::f16_low(this->vector(20)), nibble_of_half<G, H, false>());
  }
  template <int G, int H>
  TANDEM_INLINE F32 min() const {
    return L::mul(L::f16_high(this->vector(20)), nibble_of_half<G, H, true>());
  }

 private:
  template <int G, int H, bool kHigh>
  TANDEM_INLINE F32 nibble_of_half() const {
    const Bytes nibbles = this->template nibbles<kHigh>(2 * this->section_ + G / 2);
    return L::to_f32(L::template byte_of_words<2 * (G % 2) + H>(nibbles));
  }
};

/// d and upper scale bits in vector 0, scale nibbles in 1, codes in 2..33 as in IQ4_NL.
template <class L>
struct Format<L, core::DType::kIQ4_XS> : Format256<L, 34> {
  static constexpr bool kHalves = false;
  static constexpr bool kMins = false;
  static constexpr int kBias = 128;
  static constexpr int kCodeMax = 255;
  using typename FormatBase<L>::F32;
  using typename FormatBase<L>::Bytes;

  TANDEM_INLINE Format(const BlockPointer& p, int section) : Format256<L, 34>(p, section) {}
  template <int G, int S>
  TANDEM_INLINE Bytes codes() const {
    const int index = 2 + 16 * this->section_ + 4 * G + S % 4;
    return this->full_bytes(L::lookup(kIq4Codebook, this->template nibbles<(S >= 4)>(index)));
  }
  template <int G, int H>
  TANDEM_INLINE F32 scale() const {
    // Group g of the block: two bits in byte 2 + g / 4 of vector 0, a nibble in byte g / 2 of 1.
    const Bytes d = this->vector(0);
    const Bytes high = L::shift_words_right(d, 16 + 8 * this->section_);
    const Bytes low = L::shift_words_right(this->vector(1), 16 * this->section_);
    const Bytes low_nibbles = L::template bits < G % 2 == 1 ? 4 : 0, 15 > (low);
    const auto scale =
        L::add_i32(L::template byte_of_words<G / 2>(low_nibbles),
                   L::template byte_of_words<0>(L::template bits<2 * G - 4, 48>(high)));
    return L::mul(L::f16_low(d), L::to_f32(L::add_i32(scale, L::set1_i32(-32))));
  }
};

}  // namespace tandem::kernels::cpu
