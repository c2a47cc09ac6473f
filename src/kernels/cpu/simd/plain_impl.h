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

  // ---- where the weights of a column come from

  /// The packed panels, from `panel` on.
  template <core::DType T>
  struct Packed {
    const std::byte* data;
    std::size_t panel_stride;

    TANDEM_INLINE F32 weights(int k, int p) const {
      return load_plain<T>(data + static_cast<std::size_t>(p) * panel_stride +
                           static_cast<std::size_t>(k) * kColumnBytes<T>);
    }
  };
  template <core::DType T>
  TANDEM_INLINE static Packed<T> packed(const PanelMatrix& w, int panel) {
    return {w.data + static_cast<std::size_t>(panel) * w.panel_stride, w.panel_stride};
  }

  /// f32 columns from `first` on, decoded once for many rows.
  template <int kCount>
  struct Decoded {
    const float* data;
    int first;

    TANDEM_INLINE F32 weights(int k, int p) const {
      return L::load(data + ((k - first) * kCount + p) * kPanelRows);
    }
  };

  /// acc[r][p] += the chain over columns [begin, end).
  template <int R, int kCount, class Source>
  TANDEM_INLINE static void add_columns(const Source& source, const Inputs& in, int begin, int end,
                                        F32 (&acc)[R][kCount]) {
    for (int k = begin; k < end; ++k) {
      F32 weights[kCount];
      for (int p = 0; p < kCount; ++p) weights[p] = source.weights(k, p);
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

  /// Columns that share a scale: their chain starts at zero.
  template <core::DType T>
  TANDEM_INLINE static int block_of(const PanelMatrix& w) {
    return T == core::DType::kF8E4M3 ? w.scale_cols : w.cols;
  }

  /// Columns [begin, end): whole blocks, or a part of the only one, whose chain waits in the
  /// output.
  template <core::DType T, int R, int kCount, class Source>
  static void plain_block(const PanelMatrix& w, int panel, const Source& source, int begin, int end,
                          const Inputs& in, const RowBlock& rows) {
    const int block = block_of<T>(w);
    for (int k = begin; k < end;) {
      const int b = k / block;
      const int block_end = w.cols - b * block < block ? w.cols : (b + 1) * block;
      const int next = block_end < end ? block_end : end;
      F32 acc[R][kCount];
      Rows::template load<R, kCount>(rows, k == b * block, acc);
      add_columns<R, kCount>(source, in, k, next, acc);
      if (T == core::DType::kF8E4M3 && next == block_end) {
        apply_scales<R, kCount>(w, panel, in, b, rows, acc);
      }
      Rows::template store<R, kCount>(rows, acc);
      k = next;
    }
  }

  template <core::DType T, int kCount>
  TANDEM_INLINE static void plain_panels(const PanelMatrix& w, const Activations& a,
                                         const Tile& tile, int panel, float* out, std::size_t ld) {
    Rows::for_row_blocks(tile.num_rows, [&]<int R>(int row) TANDEM_INLINED {
      plain_block<T, R, kCount>(w, panel, packed<T>(w, panel), 0, w.cols, inputs<T>(w, a, row),
                                Rows::row_block(w, a, row, panel, tile.panel_end, out, ld));
    });
  }

  /// The same for many rows: pieces of the panels are decoded to the first-level cache.
  static constexpr int kPieceColumns = 256;
  template <core::DType T, int kCount>
  static void decode_and_multiply(const PanelMatrix& w, const Activations& a, const Tile& tile,
                                  int panel, float* out, std::size_t ld) {
    alignas(64) float scratch[kPieceColumns * kCount * kPanelRows];
    const Packed<T> source = packed<T>(w, panel);
    for (int begin = 0; begin < w.cols; begin += kPieceColumns) {
      const int end = w.cols - begin < kPieceColumns ? w.cols : begin + kPieceColumns;
      for (int k = begin; k < end; ++k) {
        for (int p = 0; p < kCount; ++p) {
          L::store(scratch + ((k - begin) * kCount + p) * kPanelRows, source.weights(k, p));
        }
      }
      Rows::for_row_blocks(tile.num_rows, [&]<int R>(int row) TANDEM_INLINED {
        plain_block<T, R, kCount>(w, panel, Decoded<kCount>{scratch, begin}, begin, end,
                                  inputs<T>(w, a, row),
                                  Rows::row_block(w, a, row, panel, tile.panel_end, out, ld));
      });
    }
  }

  template <core::DType T, int kCount>
  TANDEM_INLINE static void panels(const PanelMatrix& w, const Activations& a, const Tile& tile,
                                   int panel, float* out, std::size_t ld) {
    const int block = block_of<T>(w);
    const bool can_be_cut = block >= w.cols || kPieceColumns % block == 0;
    if (T != core::DType::kF32 && tile.num_rows > 2 * L::kRows && can_be_cut) {
      decode_and_multiply<T, kCount>(w, a, tile, panel, out, ld);
    } else {
      plain_panels<T, kCount>(w, a, tile, panel, out, ld);
    }
  }

  template <core::DType T>
  static void multiply(const PanelMatrix& w, const Activations& a, const Tile& tile, float* out,
                       std::size_t ld) {
    // A chain waits for its last step: one row alone needs more panels to keep the units busy.
    constexpr int kOneRowPanels = 4;
    int panel = tile.panel_begin;
    for (; tile.num_rows == 1 && panel + kOneRowPanels <= tile.panel_end; panel += kOneRowPanels) {
      plain_block<T, 1, kOneRowPanels>(w, panel, packed<T>(w, panel), 0, w.cols, inputs<T>(w, a, 0),
                                       Rows::row_block(w, a, 0, panel, tile.panel_end, out, ld));
    }
    for (; panel + P <= tile.panel_end; panel += P) panels<T, P>(w, a, tile, panel, out, ld);
    for (; panel < tile.panel_end; ++panel) panels<T, 1>(w, a, tile, panel, out, ld);
  }
};

}  // namespace tandem::kernels::cpu
