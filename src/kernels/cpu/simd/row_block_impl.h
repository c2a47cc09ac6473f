#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tandem/kernels/cpu/panel.h"

/// Functions and lambdas that hold register tiles: a call would put the tile into memory.
#define TANDEM_INLINE [[gnu::always_inline]] inline
#define TANDEM_INLINED __attribute__((always_inline))

namespace tandem::kernels::cpu {

/// fn<0>(), fn<1>(), ...
template <int... I, class Fn>
TANDEM_INLINE void unroll(std::integer_sequence<int, I...>, Fn&& fn) {
  (fn.template operator()<I>(), ...);
}
template <int kCount>
using UpTo = std::make_integer_sequence<int, kCount>;

/// The part of a product that one call works on: rows of activations and panels.
struct RowBlock {
  const CodeGroup* a = nullptr;  ///< of the first row
  std::size_t a_stride = 0;
  float* out = nullptr;  ///< the first row's output 0 of the first panel
  std::size_t ld = 0;
  int outputs = 0;              ///< to compute, from there on
  int panel_step = kPanelRows;  ///< outputs from panel to panel
};

/// Walking over the rows of a tile, and the register tiles' way from and to the output.
template <class L>
struct RowBlocks {
  using F32 = typename L::F32;

  /// Rows in blocks of at most L::kRows, as even as possible: fn<R>(first row).
  template <class Fn>
  TANDEM_INLINE static void for_row_blocks(int num_rows, Fn&& fn) {
    const int blocks = (num_rows + L::kRows - 1) / L::kRows;
    int row = 0;
    for (int i = 0; i < blocks; ++i) {
      const int count = num_rows / blocks + (i < num_rows % blocks ? 1 : 0);
      unroll(UpTo<L::kRows>(), [&]<int I>() TANDEM_INLINED {
        if (count == I + 1) fn.template operator()<I + 1>(row);
      });
      row += count;
    }
  }

  /// From row `row` and panel `panel` on, outputs of panels below panel_end.
  TANDEM_INLINE static RowBlock row_block(const PanelMatrix& w, const Activations& a, int row,
                                          int panel, int panel_end, float* out, std::size_t ld) {
    const auto r = static_cast<std::size_t>(row);
    const int first = panel * kPanelRows;
    const int end = panel_end * kPanelRows < w.rows ? panel_end * kPanelRows : w.rows;
    return {a.codes + r * a.codes_stride, a.codes_stride,
            out + r * ld + static_cast<std::size_t>(first), ld, end - first};
  }

  /// The registers' way to the output and back. Whole panels, nearly always, go straight; what
  /// handles a cut panel indexes a copy, so that the registers themselves never need an address.
  template <int R, int kCount>
  TANDEM_INLINE static void store(const RowBlock& rows, F32 (&acc)[R][kCount]) {
    if (is_whole<kCount>(rows)) {
      for_each<R, kCount>([&]<int r, int p>()
                              TANDEM_INLINED { L::store(at(rows, r, p), acc[r][p]); });
      return;
    }
    F32 copy[R][kCount];
    for_each<R, kCount>([&]<int r, int p>() TANDEM_INLINED { copy[r][p] = acc[r][p]; });
    store_cut<R, kCount>(rows, copy);
  }

  template <int R, int kCount>
  TANDEM_INLINE static void load(const RowBlock& rows, bool zero, F32 (&acc)[R][kCount]) {
    for_each<R, kCount>([&]<int r, int p>() TANDEM_INLINED { acc[r][p] = L::set1(0.0F); });
    if (zero) return;
    if (is_whole<kCount>(rows)) {
      for_each<R, kCount>([&]<int r, int p>()
                              TANDEM_INLINED { acc[r][p] = L::load(at(rows, r, p)); });
      return;
    }
    F32 copy[R][kCount];
    load_cut<R, kCount>(rows, copy);
    for_each<R, kCount>([&]<int r, int p>() TANDEM_INLINED { acc[r][p] = copy[r][p]; });
  }

 private:
  template <int R, int kCount, class Fn>
  TANDEM_INLINE static void for_each(Fn&& fn) {
    unroll(UpTo<R>(), [&]<int r>() TANDEM_INLINED {
      unroll(UpTo<kCount>(), [&]<int p>() TANDEM_INLINED { fn.template operator()<r, p>(); });
    });
  }
  template <int kCount>
  TANDEM_INLINE static bool is_whole(const RowBlock& rows) {
    return rows.outputs >= (kCount - 1) * rows.panel_step + kPanelRows;
  }
  TANDEM_INLINE static float* at(const RowBlock& rows, int r, int p) {
    return rows.out + static_cast<std::size_t>(r) * rows.ld + p * rows.panel_step;
  }

  template <int R, int kCount>
  [[gnu::noinline]] static void store_cut(const RowBlock& rows, const F32 (&acc)[R][kCount]) {
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < kCount; ++p) {
        const int n = rows.outputs - p * rows.panel_step;
        if (n >= kPanelRows) {
          L::store(at(rows, r, p), acc[r][p]);
        } else if (n > 0) {
          L::store_part(at(rows, r, p), n, acc[r][p]);
        }
      }
    }
  }
  template <int R, int kCount>
  [[gnu::noinline]] static void load_cut(const RowBlock& rows, F32 (&acc)[R][kCount]) {
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < kCount; ++p) {
        const int n = rows.outputs - p * rows.panel_step;
        acc[r][p] = L::set1(0.0F);
        if (n >= kPanelRows) {
          acc[r][p] = L::load(at(rows, r, p));
        } else if (n > 0) {
          acc[r][p] = L::load_part(at(rows, r, p), n);
        }
      }
    }
  }
};

}  // namespace tandem::kernels::cpu
