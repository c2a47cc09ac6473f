#pragma once

#include <cstddef>
#include <cstdint>

#include "tandem/kernels/cpu/kv_layout.h"
#include "tandem/kernels/cpu/simd/attention_block.h"
#include "tandem/kernels/cpu/simd/attention_impl.h"
#include "tandem/kernels/cpu/simd/groups_impl.h"
#include "tandem/kernels/cpu/simd/quantize_impl.h"
#include "tandem/kernels/cpu/simd/row_block_impl.h"

namespace tandem::kernels::cpu {

/// Attention over one block of an int8 cache; the definition is in attention_int8_scalar.cc. All
/// sums of products are exact integers per 32 columns, then one float chain over the head or over
/// the pages, so that the bits depend on nothing but a vector and its keys.
template <class L>
struct Int8Attention : Groups<L> {
  using Base = Groups<L>;
  using Rows = RowBlocks<L>;
  using Float = AttentionOf<L>;
  using Base::P;
  using typename Base::Bytes;
  using typename Base::F32;
  using Codes = CodeClass<false, false, kInt8Offset, L::code_max(255)>;
  static constexpr int kPagePanels = kPageTokens / kPanelRows;
  static constexpr int kGroupBytes = 8 * kVectorBytes;
  static_assert(kPagePanels % P == 0 && kPageTokens == 32);

  static void attend(const Int8AttentionBlock& b) {
    for (int page = b.first_page; page < b.end_page; ++page) score_page(b, page);
    typename Float::Merge merge;
    for (int i = 0; i < b.num_vectors; ++i) {
      Float::softmax(b, i, merge);
      round_weights(b, i);
    }
    for (int page = b.first_page; page < b.end_page; ++page) sum_page(b, page);
    for (int i = 0; i < b.num_vectors; ++i) Float::merge_vector(b, i, merge);
  }

 private:
  /// A group of 32 columns of P panels whose scales are applied elsewhere.
  struct Group {
    const std::uint8_t* data;
    std::ptrdiff_t panel_bytes;
    const std::uint8_t* next;  ///< the same group of the page that is read next

    template <int S>
    TANDEM_INLINE Bytes codes(int p) const {
      Float::fetch(next + p * panel_bytes + S * kVectorBytes);
      const Bytes biased = L::load_bytes(data + p * panel_bytes + S * kVectorBytes);
      if constexpr (L::kUnsignedCodes) return biased;
      return L::flip_top_bit(biased);
    }
    template <int H>
    TANDEM_INLINE F32 scale(int) const {
      return L::set1(1.0F);
    }
  };

  static const std::uint8_t* bytes_of(const void* page) {
    return static_cast<const std::uint8_t*>(page);
  }

  static void score_page(const Int8AttentionBlock& b, int page) {
    const bool is_last = page + 1 == b.end_page;
    const std::uint8_t* next = bytes_of(is_last ? b.values[b.first_page] : b.keys[page + 1]);
    Float::fetch_scales(b, next);
    const std::ptrdiff_t panel_bytes = std::ptrdiff_t{kPanelRows} * b.head_size;
    const float* scales = Float::scales_of(b, bytes_of(b.keys[page]));
    const int groups = b.head_size / 32;
    for (int panel = 0; panel < kPagePanels; panel += P) {
      const std::uint8_t* codes = bytes_of(b.keys[page]) + panel * panel_bytes;
      const std::uint8_t* next_codes = next + panel * panel_bytes;
      Rows::for_row_blocks(b.num_vectors, [&]<int R>(int row) TANDEM_INLINED {
        const CodeGroup* queries = b.queries + row * groups;
        const auto stride = static_cast<std::size_t>(groups);
        F32 acc[R][P];
        for (int r = 0; r < R; ++r) {
          for (int p = 0; p < P; ++p) acc[r][p] = L::set1(0.0F);
        }
        for (int g = 0; g < groups; ++g) {
          Base::template add_group<Codes, R>(
              Group{codes + g * kGroupBytes, panel_bytes, next_codes + g * kGroupBytes},
              queries + g, stride, acc);
        }
        float* scores = b.scores + row * kBlockTokens + page * kPageTokens;
        for (int r = 0; r < R; ++r) {
          for (int p = 0; p < P; ++p) {
            const int first = (panel + p) * kPanelRows;
            L::store(scores + r * kBlockTokens + first, L::mul(acc[r][p], L::load(scales + first)));
          }
        }
      });
    }
  }

  /// The softmax's weights of vector i, times the scales of the values, as codes.
  static void round_weights(const Int8AttentionBlock& b, int i) {
    alignas(64) float weights[kBlockTokens];
    const int begin = b.first_page * kPageTokens;
    const int end = b.end_page * kPageTokens;
    const float* scores = b.scores + i * kBlockTokens;
    for (int page = b.first_page; page < b.end_page; ++page) {
      const float* scales = Float::scales_of(b, bytes_of(b.values[page]));
      for (int j = 0; j < kPageTokens; j += 16) {
        const int key = page * kPageTokens + j;
        L::store(weights + key, L::mul(L::load(scores + key), L::load(scales + j)));
      }
    }
    Quantizer<L>::quantize_row(weights + begin, end - begin,
                               b.weights + i * kPagesPerBlock + b.first_page);
  }

  static void sum_page(const Int8AttentionBlock& b, int page) {
    const std::uint8_t* next = bytes_of(page + 1 == b.end_page ? b.next_keys : b.values[page + 1]);
    Float::fetch_scales(b, next);
    for (int panel = 0; panel < b.head_size / kPanelRows; panel += P) {
      const std::uint8_t* codes = bytes_of(b.values[page]) + panel * kGroupBytes;
      const std::uint8_t* next_codes = next + panel * kGroupBytes;
      Rows::for_row_blocks(b.num_vectors, [&]<int R>(int row) TANDEM_INLINED {
        const auto ld = static_cast<std::size_t>(b.head_size);
        const RowBlock rows = {nullptr, 0, b.block_out + row * b.head_size + panel * kPanelRows, ld,
                               P * kPanelRows};
        F32 acc[R][P];
        Rows::template load<R, P>(rows, page == b.first_page, acc);
        Base::template add_group<Codes, R>(Group{codes, kGroupBytes, next_codes},
                                           b.weights + row * kPagesPerBlock + page,
                                           std::size_t{kPagesPerBlock}, acc);
        Rows::template store<R, P>(rows, acc);
      });
    }
  }
};

}  // namespace tandem::kernels::cpu
