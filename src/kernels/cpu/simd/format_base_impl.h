#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tandem/core/dtype.h"
#include "tandem/kernels/cpu/panel.h"
#include "tandem/kernels/cpu/simd/row_block_impl.h"

// How each type's panels (PanelMatrix) are decoded, once for all instruction sets: L is the set's
// code lanes. A Format<L, T> has
//   kBlock       columns of a block: 32 or 256
//   kGroups      groups of 32 columns in a section: 1, or 4 of a block's 8
//   kVectors     vectors of a block
//   kBias        subtracted from the codes to give signed values; 128: codes fill 8 bits
//   kCodeMax     largest code
//   kHalves      true: scales per 16 columns; else per 32
//   kMins        true: has minima
//   kTogether    neighbouring groups that lie in the same vectors; divides kGroups
// and is constructed at a section of a block of a panel. For group G of that section:
//   codes<G, S>()       the codes of columns 4S .. 4S + 3
//   scale<G, H>()       d * scale, an exact product, of half H; H = 0 where scales are per 32
//   min<G, H>()         dmin * min, likewise
// Layouts: spec/formats.md section 3.

namespace tandem::kernels::cpu {

/// Where block b of a panel starts, and its scale if that is kept apart.
struct BlockPointer {
  const std::uint8_t* vectors = nullptr;
  const std::uint16_t* side = nullptr;
};

/// The codebook of IQ4_NL and IQ4_XS, plus 128.
alignas(16) inline constexpr std::uint8_t kIq4Codebook[16] = {
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

/// Doubled E2M1 values, plus 16.
alignas(16) inline constexpr std::uint8_t kE2m1Codebook[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                                               16, 15, 14, 13, 12, 10, 8,  4};

template <class L, core::DType T>
struct Format;

/// What the formats share: vectors by index, and codes with a bias of 128, which instruction sets
/// with signed products take as they are.
template <class L>
class FormatBase {
 public:
  static constexpr int kTogether = 1;
  using F32 = typename L::F32;
  using I32 = typename L::I32;
  using Bytes = typename L::Bytes;

 protected:
  TANDEM_INLINE explicit FormatBase(const BlockPointer& p) : p_(p) {}
  TANDEM_INLINE Bytes vector(int i) const { return L::load_bytes(p_.vectors + 64 * i); }
  TANDEM_INLINE F32 side_scale() const { return L::load_f16(p_.side); }
  TANDEM_INLINE F32 side_bf16() const { return L::load_bf16(p_.side); }
  /// Byte H of the side, an unsigned E4M3 divided by 256.
  template <int H>
  TANDEM_INLINE F32 side_e4m3() const {
    return L::template load_e4m3_byte<H>(p_.side);
  }
  /// Low (kHigh false) or high nibbles.
  template <bool kHigh>
  TANDEM_INLINE Bytes nibbles(int i) const {
    return L::template bits < kHigh ? 4 : 0, 15 > (vector(i));
  }
  TANDEM_INLINE static Bytes full_bytes(Bytes biased) {
    if constexpr (L::kUnsignedCodes) return biased;
    return L::flip_top_bit(biased);
  }

 private:
  BlockPointer p_;
};

}  // namespace tandem::kernels::cpu
