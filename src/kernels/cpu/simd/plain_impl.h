#pragma once

#include <cstddef>
#include <cstdint>

#include "tandem/core/dtype.h"
#include "tandem/kernels/cpu/panel.h"
#include "tandem/kernels/cpu/simd/row_block_impl.h"

namespace tandem::kernels::cpu {

/// Products of F32, F16, BF16 and F8_E4M3 weights with f32 activations: one fused multiply-add a
/// column, and for F8_E4M3 the scales behind every block of columns.
template <class L>
struct Plain {
  using F32 = typename L::F32;
  using Rows = RowBlocks<L>;
  static constexpr int P = L::kPanels;

  template <core::DType T>
  static constexpr int kColumnBytes = kPanelRows*(T == core::DType::kF32      ? 4
                                                  : T == core::DType::kF8E4M3 ? 1
                                                                              : 2);

  template <core::DType T>
  TANDEM_INLINE static F32 load_plain(const std::byte* p) {
    if constexpr (T == core::DType::kF32) return L::load(reinterpret_cast<const float*>(p));
    if constexpr (T == core::DType::kF8E4M3) {
      return L::load_e4m3(reinterpret_cast<const std::uint8_t*>(p));
    }
    const auto* halves = reinterpret_cast<const std::uint16_t*>(p);
    if constexpr (T == core::DType::kF16) return L::load_f16(halves);
    return L::load_bf16(halves);
  }

  /// The inputs of R rows.
  struct Inputs {
    const float* x = nullptr;
    std::size_t stride = 0;
    const float* scales = nullptr;  ///< null: 1
    std::size_t scales_stride = 0;
  };
  template <core::DType T>
  TANDEM_INLINE static Inputs inputs(const PanelMatrix& w, const Activations& a, int row) {
    const auto r = static_cast<std::size_t>(row);
    if (T != core::DType::kF8E4M3 || w.e4m3_group == 0) {
      return {a.x + r * a.x_stride, a.x_stride, nullptr, 0};
    }
    return {a.rounded + r * a.rounded_stride, a.rounded_stride, a.scales + r * a.scales_stride,
            a.scales_stride};
  }

  /// acc[r][p] = the chain over columns [begin, end).
  template <core::DType T, int R, int kCount>
  TANDEM_INLINE static void add_columns(const PanelMatrix& w, int panel, const Inputs& in,
                                        int begin, int end, F32 (&acc)[R][kCount]) {
    const std::byte* data = w.data + static_cast<std::size_t>(panel) * w.panel_stride +
                            static_cast<std::size_t>(begin) * kColumnBytes<T>;
    for (int k = begin; k < end; ++k, data += kColumnBytes<T>) {
      F32 weights[kCount];
      for (int p = 0; p < kCount; ++p) {
        weights[p] = load_plain<T>(data + static_cast<std::size_t>(p) * w.panel_stride);
      }
      for (int r = 0; r < R; ++r) {
        const F32 value =
            L::set1(in.x[static_cast<std::size_t>(r) * in.stride + static_cast<std::size_t>(k)]);
        for (int p = 0; p < kCount; ++p) acc[r][p] = L::fma(weights[p], value, acc[r][p]);
      }
    }
  }

  /// acc = acc * (activation scale) * (weight scale of block b) + what the blocks before gave.
  template <int R, int kCount>
  TANDEM_INLINE static void apply_scales(const PanelMatrix& w, int panel, const Inputs& in, int b,
                                         const RowBlock& rows, F32 (&acc)[R][kCount]) {
    const int group = w.e4m3_group > 0 ? b * w.scale_cols / w.e4m3_group : 0;
    F32 before[R][kCount];
    Rows::template load<R, kCount>(rows, b == 0, before);
    for (int p = 0; p < kCount; ++p) {
      const std::byte* side = w.data + static_cast<std::size_t>(panel + p) * w.panel_stride +
                              w.side_offset + static_cast<std::size_t>(b) * 4 * kPanelRows;
      const F32 scale = L::load(reinterpret_cast<const float*>(side));
      for (int r = 0; r < R; ++r) {
        const float x_scale = in.scales == nullptr
                                  ? 1.0F
                                  : in.scales[static_cast<std::size_t>(r) * in.scales_stride +
                                              static_cast<std::size_t>(group)];
        const F32 v = L::mul(L::mul(acc[r][p], L::set1(x_scale)), scale);
        acc[r][p] = b == 0 ? v : L::add(before[r][p], v);
      }
    }
  }

  template <core::DType T, int R, int kCount>
  static void plain_block(const PanelMatrix& w, int panel, const Inputs& in, const RowBlock& rows) {
    const int block = T == core::DType::kF8E4M3 ? w.scale_cols : w.cols;
    for (int begin = 0; begin < w.cols; begin += block) {
      const int end = w.cols - begin < block ? w.cols : begin + block;
      F32 acc[R][kCount];
      Rows::template load<R, kCount>(rows, true, acc);
      add_columns<T, R, kCount>(w, panel, in, begin, end, acc);
      if constexpr (T == core::DType::kF8E4M3) {
        apply_scales<R, kCount>(w, panel, in, begin / block, rows, acc);
      }
      Rows::template store<R, kCount>(rows, acc);
    }
  }

  template <core::DType T, int kCount>
  TANDEM_INLINE static void plain_panels(const PanelMatrix& w, const Activations& a,
                                         const Tile& tile, int panel, float* out, std::size_t ld) {
    Rows::for_row_blocks(tile.num_rows, [&]<int R>(int row) TANDEM_INLINED {
      plain_block<T, R, kCount>(w, panel, inputs<T>(w, a, row),
                                Rows::row_block(w, a, row, panel, tile.panel_end, out, ld));
    });
  }

  template <core::DType T>
  static void multiply(const PanelMatrix& w, const Activations& a, const Tile& tile, float* out,
                       std::size_t ld) {
    // A chain waits for its last step: one row alone needs more panels to keep the units busy.
    constexpr int kOneRowPanels = 4;
    int panel = tile.panel_begin;
    for (; tile.num_rows == 1 && panel + kOneRowPanels <= tile.panel_end; panel += kOneRowPanels) {
      plain_block<T, 1, kOneRowPanels>(w, panel, inputs<T>(w, a, 0),
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
