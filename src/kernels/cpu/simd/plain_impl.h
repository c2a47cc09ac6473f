#pragma once

#include <cstddef>
#include <cstdint>

#include "tandem/core/dtype.h"
#include "tandem/kernels/cpu/panel.h"
#include "tandem/kernels/cpu/simd/row_block_impl.h"

namespace tandem::kernels::cpu {

/// Products of F32, F16 and BF16 weights with f32 activations: one fused multiply-add a column.
template <class L>
struct Plain {
  using F32 = typename L::F32;
  using Rows = RowBlocks<L>;
  static constexpr int P = L::kPanels;

  template <core::DType T>
  TANDEM_INLINE static F32 load_plain(const std::byte* p) {
    if constexpr (T == core::DType::kF32) return L::load(reinterpret_cast<const float*>(p));
    const auto* halves = reinterpret_cast<const std::uint16_t*>(p);
    if constexpr (T == core::DType::kF16) return L::load_f16(halves);
    return L::load_bf16(halves);
  }

  template <core::DType T, int R, int kCount>
  static void plain_block(const PanelMatrix& w, int panel, const float* x, std::size_t x_stride,
                          const RowBlock& rows) {
    constexpr int kColumnBytes = kPanelRows * (T == core::DType::kF32 ? 4 : 2);
    const std::byte* data = w.data + static_cast<std::size_t>(panel) * w.panel_stride;
    F32 acc[R][kCount];
    Rows::template load<R, kCount>(rows, true, acc);
    for (int k = 0; k < w.cols; ++k, data += kColumnBytes) {
      F32 weights[kCount];
      for (int p = 0; p < kCount; ++p) {
        weights[p] = load_plain<T>(data + static_cast<std::size_t>(p) * w.panel_stride);
      }
      for (int r = 0; r < R; ++r) {
        const F32 value =
            L::set1(x[static_cast<std::size_t>(r) * x_stride + static_cast<std::size_t>(k)]);
        for (int p = 0; p < kCount; ++p) acc[r][p] = L::fma(weights[p], value, acc[r][p]);
      }
    }
    Rows::template store<R, kCount>(rows, acc);
  }

  template <core::DType T, int kCount>
  TANDEM_INLINE static void plain_panels(const PanelMatrix& w, const Activations& a,
                                         const Tile& tile, int panel, float* out, std::size_t ld) {
    Rows::for_row_blocks(tile.num_rows, [&]<int R>(int row) TANDEM_INLINED {
      RowBlock rows = Rows::row_block(w, a, row, panel, tile.panel_end, out, ld);
      plain_block<T, R, kCount>(w, panel, a.x + static_cast<std::size_t>(row) * a.x_stride,
                                a.x_stride, rows);
    });
  }

  template <core::DType T>
  static void multiply(const PanelMatrix& w, const Activations& a, const Tile& tile, float* out,
                       std::size_t ld) {
    // A chain waits for its last step: one row alone needs more panels to keep the units busy.
    constexpr int kOneRowPanels = 4;
    int panel = tile.panel_begin;
    for (; tile.num_rows == 1 && panel + kOneRowPanels <= tile.panel_end; panel += kOneRowPanels) {
      plain_block<T, 1, kOneRowPanels>(w, panel, a.x, a.x_stride,
                                       Rows::row_block(w, a, 0, panel, tile.panel_end, out, ld));
    }
    for (; panel + P <= tile.panel_end; panel += P) {
      plain_panels<T, P>(w, a, tile, panel, out, ld);
    }
    for (; panel < tile.panel_end; ++panel) {
      plain_panels<T, 1>(w, a, tile, panel, out, ld);
    }
  }
};

}  // namespace tandem::kernels::cpu
