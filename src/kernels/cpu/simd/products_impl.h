#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tandem/core/dtype.h"
#include "tandem/kernels/cpu/panel.h"
#include "tandem/kernels/cpu/simd/formats256_impl.h"
#include "tandem/kernels/cpu/simd/formats32_impl.h"
#include "tandem/kernels/cpu/simd/groups_impl.h"
#include "tandem/kernels/cpu/simd/plain_impl.h"
#include "tandem/kernels/cpu/simd/row_block_impl.h"

namespace tandem::kernels::cpu {

/// Matrix products of one instruction set, L being its code lanes.
template <class L>
struct Products : Groups<L> {
  using Base = Groups<L>;
  using Rows = RowBlocks<L>;
  using Base::P;
  using typename Base::F32;
  template <class F>
  using ClassOf = typename Base::template ClassOf<F>;
  template <class C>
  using DecodedGroup = typename Base::template DecodedGroup<C>;
  template <class F, int G>
  using PackedGroup = typename Base::template PackedGroup<F, G>;

  template <class F>
  TANDEM_INLINE static BlockPointer block_at(const PanelMatrix& w, int panel, int block) {
    const auto* base = reinterpret_cast<const std::uint8_t*>(w.data) +
                       static_cast<std::size_t>(panel) * w.panel_stride;
    const auto b = static_cast<std::size_t>(block);
    return {base + b * (F::kVectors * kVectorBytes),
            reinterpret_cast<const std::uint16_t*>(base + w.side_offset) + b * kPanelRows};
  }

  /// The panels of a tile's part; beyond the last panel it is repeated, its outputs dropped.
  TANDEM_INLINE static int panel_or_last(const PanelMatrix& w, int panel) {
    const int last = (w.rows - 1) / kPanelRows;
    return panel < last ? panel : last;
  }

  /// Groups whose sums grow side by side: of those that share vectors, as many as leave the sums,
  /// what they are scaled to and the chains in registers.
  template <class F, int R>
  static constexpr int groups_together() {
    int groups = F::kTogether;
    while (groups > 1 && R * P * (groups * (F::kHalves ? 2 : 1) + 1) > L::kSumRegisters)
      groups /= 2;
    return groups;
  }

  /// All columns of R rows by the panels `panel`, `panel + step` and so on, decoding in registers.
  template <class F, int R>
  static void direct(const PanelMatrix& w, int panel, int step, RowBlock rows) {
    constexpr int kTogether = groups_together<F, R>();
    rows.panel_step = step * kPanelRows;
    F32 acc[R][P];
    Rows::template load<R, P>(rows, true, acc);
    const CodeGroup* a = rows.a;
    const int second = panel_or_last(w, panel + step * (P - 1));
    constexpr int kSections = F::kBlock / (32 * F::kGroups);
    for (int i = 0; i < w.cols / (32 * F::kGroups); ++i, a += F::kGroups) {
      const F blocks[2] = {F(block_at<F>(w, panel, i / kSections), i % kSections),
                           F(block_at<F>(w, second, i / kSections), i % kSections)};
      unroll(UpTo<F::kGroups / kTogether>(), [&]<int G>() TANDEM_INLINED {
        Base::template add_groups<F, G * kTogether, kTogether, R>(blocks, a, rows.a_stride, acc);
      });
    }
    Rows::template store<R, P>(rows, acc);
  }

  /// Packed lines of P panels that are fetched to the second-level cache while others are used, one
  /// with each group of products: more at once would wait for each other.
  struct Fetch {
    const std::uint8_t* panels[P];
    int lines;  ///< of each that are left

    TANDEM_INLINE void next() {
      if (lines == 0) return;
      --lines;
      for (const std::uint8_t*& panel : panels) {
        __builtin_prefetch(panel, 0, 2);
        panel += kVectorBytes;
      }
    }
  };

  /// `num_groups` decoded groups of R rows by P panels; `first`: the chains start here.
  template <class C, int R>
  static void decoded(std::uint8_t* scratch, int num_groups, bool first, const RowBlock& rows,
                      Fetch& fetch) {
    F32 acc[R][P];
    Rows::template load<R, P>(rows, first, acc);
    for (int g = 0; g < num_groups; ++g, scratch += DecodedGroup<C>::kBytes) {
      fetch.next();
      Base::template add_group<C, R>(DecodedGroup<C>{scratch}, rows.a + g, rows.a_stride, acc);
    }
    Rows::template store<R, P>(rows, acc);
  }

  /// Decodes sections [begin, end) of P panels.
  template <class F>
  static void decode(const PanelMatrix& w, int panel, int begin, int end, std::uint8_t* scratch) {
    using Decoded = DecodedGroup<ClassOf<F>>;
    constexpr int kSections = F::kBlock / (32 * F::kGroups);
    const int second = panel_or_last(w, panel + P - 1);
    for (int i = begin; i < end; ++i, scratch += F::kGroups * Decoded::kBytes) {
      const F blocks[2] = {F(block_at<F>(w, panel, i / kSections), i % kSections),
                           F(block_at<F>(w, second, i / kSections), i % kSections)};
      unroll(UpTo<P>(), [&]<int p>() TANDEM_INLINED {
        fetch_section<F>(w, p == 0 ? panel : second, i + 1);
        unroll(UpTo<F::kGroups>(), [&]<int G>() TANDEM_INLINED {
          Base::template decode_group<ClassOf<F>>(PackedGroup<F, G>{blocks},
                                                  Decoded{scratch + G * Decoded::kBytes}, p);
        });
      });
    }
  }

  /// Fetches a section from the second-level cache, where Fetch has put it.
  template <class F>
  TANDEM_INLINE static void fetch_section(const PanelMatrix& w, int panel, int section) {
    const std::uint8_t* p =
        block_at<F>(w, panel, 0).vectors + static_cast<std::size_t>(section) * F::kSectionBytes;
    for (int k = 0; k < F::kSectionBytes; k += kVectorBytes) __builtin_prefetch(p + k);
  }

  /// What is decoded after sections [.., begin) of these panels: theirs, or of the panels behind
  /// them, which this thread or its neighbour takes next.
  template <class F>
  static Fetch next_piece(const PanelMatrix& w, int panel, int begin, int num_sections,
                          int at_once) {
    if (begin >= num_sections) {
      panel += P;
      begin = 0;
    }
    const int left = num_sections - begin;
    Fetch fetch;
    for (int p = 0; p < P; ++p) {
      fetch.panels[p] = block_at<F>(w, panel_or_last(w, panel + p), 0).vectors +
                        static_cast<std::size_t>(begin) * F::kSectionBytes;
    }
    fetch.lines = (left < at_once ? left : at_once) * (F::kSectionBytes / kVectorBytes);
    return fetch;
  }

  /// All rows by P panels, decoding them piece by piece.
  template <class F>
  static void decode_and_multiply(const PanelMatrix& w, const Activations& a, const Tile& tile,
                                  int panel, float* out, std::size_t ld) {
    using C = ClassOf<F>;
    constexpr int kSectionsAtOnce = L::kScratchColumns / (32 * F::kGroups);
    alignas(64) std::uint8_t scratch[kSectionsAtOnce * F::kGroups * DecodedGroup<C>::kBytes];
    const int num_sections = w.cols / (32 * F::kGroups);
    for (int begin = 0; begin < num_sections; begin += kSectionsAtOnce) {
      const int left = num_sections - begin;
      const int count = left < kSectionsAtOnce ? left : kSectionsAtOnce;
      decode<F>(w, panel, begin, begin + count, scratch);
      Fetch next = next_piece<F>(w, panel, begin + count, num_sections, kSectionsAtOnce);
      Rows::for_row_blocks(tile.num_rows, [&]<int R>(int row) TANDEM_INLINED {
        RowBlock rows = Rows::row_block(w, a, row, panel, tile.panel_end, out, ld);
        rows.a += begin * F::kGroups;
        decoded<C, R>(scratch, count * F::kGroups, begin == 0, rows, next);
      });
    }
  }

  template <core::DType T>
  static void multiply(const PanelMatrix& w, const Activations& a, const Tile& tile, float* out,
                       std::size_t ld) {
    using F = Format<L, T>;
    if constexpr (F::kBlock > kGroup && kGroup != 32) {
      return kScalarKernels.matmul(w, a, tile, out, ld);
    }
    if (tile.num_rows <= L::direct_rows(T)) return direct_tile<F, T>(w, a, tile, out, ld);
    for (int panel = tile.panel_begin; panel < tile.panel_end; panel += P) {
      decode_and_multiply<F>(w, a, tile, panel, out, ld);
    }
  }

  /// Each of P parts of the tile's panels is read from its first byte to its last: P streams that
  /// the processor's prefetching follows, where pairs of neighbours would make it start again
  /// with every pair.
  template <class F, core::DType T>
  static void direct_tile(const PanelMatrix& w, const Activations& a, const Tile& tile, float* out,
                          std::size_t ld) {
    const int step = (tile.panel_end - tile.panel_begin + P - 1) / P;
    for (int panel = tile.panel_begin; panel < tile.panel_begin + step; ++panel) {
      Rows::for_row_blocks(tile.num_rows, [&]<int R>(int row) TANDEM_INLINED {
        if constexpr (R <= L::direct_rows(T)) {
          direct<F, R>(w, panel, step, Rows::row_block(w, a, row, panel, tile.panel_end, out, ld));
        }
      });
    }
  }

  static void matmul(const PanelMatrix& w, const Activations& a, const Tile& tile, float* out,
                     std::size_t ld) {
    using core::DType;
    switch (w.dtype) {
      case DType::kF32:
        return Plain<L>::template multiply<DType::kF32>(w, a, tile, out, ld);
      case DType::kF16:
        return Plain<L>::template multiply<DType::kF16>(w, a, tile, out, ld);
      case DType::kBF16:
        return Plain<L>::template multiply<DType::kBF16>(w, a, tile, out, ld);
      case DType::kF8E4M3:
        return Plain<L>::template multiply<DType::kF8E4M3>(w, a, tile, out, ld);
      case DType::kQ4_0:
        return multiply<DType::kQ4_0>(w, a, tile, out, ld);
      case DType::kQ4_1:
        return multiply<DType::kQ4_1>(w, a, tile, out, ld);
      case DType::kQ5_0:
        return multiply<DType::kQ5_0>(w, a, tile, out, ld);
      case DType::kQ5_1:
        return multiply<DType::kQ5_1>(w, a, tile, out, ld);
      case DType::kQ8_0:
        return multiply<DType::kQ8_0>(w, a, tile, out, ld);
      case DType::kQ2_K:
        return multiply<DType::kQ2_K>(w, a, tile, out, ld);
      case DType::kQ3_K:
        return multiply<DType::kQ3_K>(w, a, tile, out, ld);
      case DType::kQ4_K:
        return multiply<DType::kQ4_K>(w, a, tile, out, ld);
      case DType::kQ5_K:
        return multiply<DType::kQ5_K>(w, a, tile, out, ld);
      case DType::kQ6_K:
        return multiply<DType::kQ6_K>(w, a, tile, out, ld);
      case DType::kIQ4_NL:
        return multiply<DType::kIQ4_NL>(w, a, tile, out, ld);
      case DType::kIQ4_XS:
        return multiply<DType::kIQ4_XS>(w, a, tile, out, ld);
      case DType::kNVFP4:
        return multiply<DType::kNVFP4>(w, a, tile, out, ld);
      case DType::kMXFP4:
        return multiply<DType::kMXFP4>(w, a, tile, out, ld);
      default:
        return kScalarKernels.matmul(w, a, tile, out, ld);
    }
  }
};

}  // namespace tandem::kernels::cpu
