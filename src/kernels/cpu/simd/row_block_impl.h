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

  template <int R, int kCount>
  TANDEM_INLINE static void store(const RowBlock& rows, F32 (&acc)[R][kCount]) {
    for (int r = 0; r < R; ++r) {
      float* out = rows.out + r * rows.ld;
      for (int p = 0; p < kCount; ++p) {
        const int first = p * rows.panel_step;
        const int n = rows.outputs - first;
        if (n >= kPanelRows) {
          L::store(out + first, acc[r][p]);
        } else if (n > 0) {
          L::store_part(out + first, n, acc[r][p]);
        }
      }
    }
  }

  template <int R, int kCount>
  TANDEM_INLINE static void load(const RowBlock& rows, bool zero, F32 (&acc)[R][kCount]) {
    for (int r = 0; r < R; ++r) {
      const float* out = rows.out + r * rows.ld;
      for (int p = 0; p < kCount; ++p) {
        const int first = p * rows.panel_step;
        const int n = rows.outputs - first;
        if (zero || n <= 0) {
          acc[r][p] = L::set1(0.0F);
        } else if (n >= kPanelRows) {
          acc[r][p] = L::load(out + first);
        } else {
          acc[r][p] = L::load_part(out + first, n);
        }
      }
    }
  }
};

}  // namespace tandem::kernels::cpu
