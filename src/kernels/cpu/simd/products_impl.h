#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tandem/kernels/cpu/panel.h"
#include "tandem/kernels/cpu/simd/formats_impl.h"

// Matrix products of one instruction set, L being its code lanes. The arithmetic is that of
// matmul_scalar.cc; docs/kernels.md says which instructions do what.
//
// One routine does all the work: add_group, 32 columns of R rows by P panels. It takes its codes
// from packed panels, decoded in registers (few rows: every byte is used once or a few times), or
// from a scratch of decoded panels in the first-level cache (many rows: decoded once for all).

namespace tandem::kernels::cpu {

template <int... I, class Fn>
TANDEM_INLINE void unroll(std::integer_sequence<int, I...>, Fn&& fn) {
  (fn.template operator()<I>(), ...);
}

constexpr int log2_of(int power) {
  int n = 0;
  while ((1 << n) < power) ++n;
  return n;
}

/// What decides the arithmetic of a format once its codes are decoded; formats that agree in it
/// share their kernels.
template <bool kWithHalves, bool kWithMins, int kCodeBias, int kLargestCode>
struct CodeClass {
  static constexpr bool kHalves = kWithHalves;
  static constexpr bool kMins = kWithMins;
  static constexpr int kBias = kCodeBias;
  static constexpr int kCodeMax = kLargestCode;
};

/// The part of a product that one call works on: rows of activations and P neighbouring panels.
struct RowBlock {
  const CodeGroup* a = nullptr;
  std::size_t a_stride = 0;
  float* out = nullptr;  ///< output 0 of the first panel
  std::size_t ld = 0;
  int outputs = 0;  ///< of these panels; fewer than 16 * P at the end of the matrix
};

template <class L>
struct Products {
  using F32 = typename L::F32;
  using I32 = typename L::I32;
  using Bytes = typename L::Bytes;
  static constexpr int P = L::kPanels;
  template <class F>
  using ClassOf = CodeClass<F::kHalves, F::kMins, F::kBias, L::code_max(F::kCodeMax)>;

  // ---- where codes and scales of a group come from

  /// Group G of P packed blocks.
  template <class F, int G>
  struct PackedGroup {
    const F (&blocks)[2];

    template <int S>
    TANDEM_INLINE Bytes codes(int p) const {
      return blocks[p].template codes<G, S>();
    }
    TANDEM_INLINE F32 scale(int p) const { return blocks[p].template scale<G>(); }
    TANDEM_INLINE F32 min(int p) const { return blocks[p].template min<G>(); }
    template <int H>
    TANDEM_INLINE F32 half_scale(int p) const {
      return blocks[p].template half_scale<G, H>();
    }
    template <int H>
    TANDEM_INLINE F32 half_min(int p) const {
      return blocks[p].template half_min<G, H>();
    }
    TANDEM_INLINE F32 d(int p) const { return blocks[p].d(); }
    TANDEM_INLINE F32 dmin(int p) const { return blocks[p].dmin(); }
  };

  /// A group decoded by unpack_group: for each panel 8 vectors of codes and the scales as f32.
  template <class C>
  struct DecodedGroup {
    static constexpr int kScales = (C::kHalves ? 3 : 1) * (C::kMins ? 2 : 1);
    static constexpr int kPanelBytes = (8 + kScales) * kVectorBytes;
    static constexpr int kBytes = P * kPanelBytes;
    std::uint8_t* data;

    template <int S>
    TANDEM_INLINE Bytes codes(int p) const {
      return L::load_bytes(data + p * kPanelBytes + S * kVectorBytes);
    }
    TANDEM_INLINE float* scales(int p, int i) const {
      return reinterpret_cast<float*>(data + p * kPanelBytes + (8 + i) * kVectorBytes);
    }
    TANDEM_INLINE F32 scale(int p) const { return L::load(scales(p, 0)); }
    TANDEM_INLINE F32 min(int p) const { return L::load(scales(p, 1)); }
    template <int H>
    TANDEM_INLINE F32 half_scale(int p) const {
      return L::load(scales(p, H));
    }
    TANDEM_INLINE F32 d(int p) const { return L::load(scales(p, 2)); }
    template <int H>
    TANDEM_INLINE F32 half_min(int p) const {
      return L::load(scales(p, 3 + H));
    }
    TANDEM_INLINE F32 dmin(int p) const { return L::load(scales(p, 5)); }
  };

  template <class C, class Source>
  TANDEM_INLINE static void decode_group(const Source& from, const DecodedGroup<C>& to, int p) {
    unroll(
        std::make_integer_sequence<int, 8>(), [&]<int S>() __attribute__((always_inline)) {
          L::store_bytes(to.data + p * to.kPanelBytes + S * kVectorBytes,
                         from.template codes<S>(p));
        });
    if constexpr (C::kHalves) {
      L::store(to.scales(p, 0), from.template half_scale<0>(p));
      L::store(to.scales(p, 1), from.template half_scale<1>(p));
      L::store(to.scales(p, 2), from.d(p));
      if constexpr (C::kMins) {
        L::store(to.scales(p, 3), from.template half_min<0>(p));
        L::store(to.scales(p, 4), from.template half_min<1>(p));
        L::store(to.scales(p, 5), from.dmin(p));
      }
    } else {
      L::store(to.scales(p, 0), from.scale(p));
      if constexpr (C::kMins) L::store(to.scales(p, 1), from.min(p));
    }
  }

  // ---- 32 columns

  template <int R>
  using Sums = I32 (&)[R][P];
  template <int R>
  using Chains = F32 (&)[R][P];

  /// sum[r][p] += products of steps kFirst .. kFirst + kCount - 1, four columns each.
  template <class C, int kFirst, int kCount, int R, class Group>
  TANDEM_INLINE static void dots(const Group& w, const CodeGroup* a, std::size_t stride,
                                 Sums<R> sum) {
    constexpr int kWideSteps = L::steps_in_16_bits(C::kCodeMax);
    if constexpr (kWideSteps == 0) {
      unroll(
          std::make_integer_sequence<int, kCount>(), [&]<int I>() __attribute__((always_inline)) {
            Bytes codes[P];
            for (int p = 0; p < P; ++p) codes[p] = w.template codes<kFirst + I>(p);
            for (int r = 0; r < R; ++r) {
              const auto quad = L::broadcast_quad(a[r * stride].codes + 4 * (kFirst + I));
              for (int p = 0; p < P; ++p) {
                sum[r][p] = L::template dot<C::kCodeMax>(sum[r][p], codes[p], quad);
              }
            }
          });
    } else {
      constexpr int kSteps = kWideSteps < kCount ? kWideSteps : kCount;
      typename L::I16 part[R][P];
      unroll(
          std::make_integer_sequence<int, kCount>(), [&]<int I>() __attribute__((always_inline)) {
            decltype(L::template prepare<C::kCodeMax>(Bytes())) codes[P];
            for (int p = 0; p < P; ++p) {
              codes[p] = L::template prepare<C::kCodeMax>(w.template codes<kFirst + I>(p));
            }
            for (int r = 0; r < R; ++r) {
              const auto quad = L::broadcast_quad(a[r * stride].codes + 4 * (kFirst + I));
              for (int p = 0; p < P; ++p) {
                const auto product = L::products(codes[p], quad);
                part[r][p] = I % kSteps == 0 ? product : L::add_i16(part[r][p], product);
                if (I % kSteps == kSteps - 1) sum[r][p] = L::widen_add(sum[r][p], part[r][p]);
              }
            }
          });
    }
  }

  /// The start of a sum of products: minus bias times the sum of the activations' codes.
  template <class C>
  TANDEM_INLINE static I32 start(std::int32_t minus_sum) {
    if constexpr (C::kBias == 0 || (C::kBias == 128 && !L::kUnsignedCodes)) {
      return L::zero();
    } else {
      return L::template shift_left<log2_of(C::kBias)>(L::set1_i32(minus_sum));
    }
  }

  /// One step of every chain: acc = fma(activation scale, v, acc). a: the group of row 0.
  template <class C, int R, class Group>
  TANDEM_INLINE static void add_group(const Group& w, const CodeGroup* a, std::size_t stride,
                                      Chains<R> acc) {
    I32 sum[R][P];
    F32 v[R][P];
    if constexpr (C::kHalves) {
      for (int r = 0; r < R; ++r) {
        for (int p = 0; p < P; ++p) sum[r][p] = start<C>(a[r * stride].minus_sum16[0]);
      }
      dots<C, 0, 4, R>(w, a, stride, sum);
      for (int p = 0; p < P; ++p) {
        const F32 scale = w.template half_scale<0>(p);
        for (int r = 0; r < R; ++r) {
          v[r][p] = L::mul(scale, L::to_f32(sum[r][p]));
          sum[r][p] = start<C>(a[r * stride].minus_sum16[1]);
        }
      }
      dots<C, 4, 4, R>(w, a, stride, sum);
      for (int p = 0; p < P; ++p) {
        const F32 scale = w.template half_scale<1>(p);
        const F32 d = w.d(p);
        for (int r = 0; r < R; ++r) {
          v[r][p] = L::mul(d, L::fma(scale, L::to_f32(sum[r][p]), v[r][p]));
        }
      }
    } else {
      for (int r = 0; r < R; ++r) {
        for (int p = 0; p < P; ++p) sum[r][p] = start<C>(a[r * stride].minus_sum);
      }
      dots<C, 0, 8, R>(w, a, stride, sum);
      for (int p = 0; p < P; ++p) {
        const F32 scale = w.scale(p);
        for (int r = 0; r < R; ++r) v[r][p] = L::mul(scale, L::to_f32(sum[r][p]));
      }
    }
    if constexpr (C::kMins) subtract_mins<C, R>(w, a, stride, v);
    for (int r = 0; r < R; ++r) {
      const F32 scale = L::set1(a[r * stride].scale);
      for (int p = 0; p < P; ++p) acc[r][p] = L::fma(scale, v[r][p], acc[r][p]);
    }
  }

  template <class C, int R, class Group>
  TANDEM_INLINE static void subtract_mins(const Group& w, const CodeGroup* a, std::size_t stride,
                                          Chains<R> v) {
    for (int p = 0; p < P; ++p) {
      if constexpr (C::kHalves) {
        const F32 low = w.template half_min<0>(p);
        const F32 high = w.template half_min<1>(p);
        const F32 dmin = w.dmin(p);
        for (int r = 0; r < R; ++r) {
          const std::int32_t* minus = a[r * stride].minus_sum16;
          const F32 t = L::fma(high, L::to_f32(L::set1_i32(minus[1])),
                               L::mul(low, L::to_f32(L::set1_i32(minus[0]))));
          v[r][p] = L::fma(dmin, t, v[r][p]);
        }
      } else {
        const F32 min = w.min(p);
        for (int r = 0; r < R; ++r) {
          v[r][p] = L::fma(min, L::to_f32(L::set1_i32(a[r * stride].minus_sum)), v[r][p]);
        }
      }
    }
  }

  // ---- loops

  template <class F>
  TANDEM_INLINE static BlockPointer block_at(const PanelMatrix& w, int panel, int block) {
    const auto* base = reinterpret_cast<const std::uint8_t*>(w.data) +
                       static_cast<std::size_t>(panel) * w.panel_stride;
    const auto b = static_cast<std::size_t>(block);
    return {base + b * (F::kVectors * kVectorBytes),
            reinterpret_cast<const std::uint16_t*>(base + w.side_offset) + b * kPanelRows};
  }

  template <int R, int kCount>
  TANDEM_INLINE static void store(const RowBlock& rows, F32 (&acc)[R][kCount]) {
    for (int r = 0; r < R; ++r) {
      float* out = rows.out + r * rows.ld;
      for (int p = 0; p < kCount; ++p) {
        const int n = rows.outputs - p * kPanelRows;
        if (n >= kPanelRows) {
          L::store(out + p * kPanelRows, acc[r][p]);
        } else if (n > 0) {
          L::store_part(out + p * kPanelRows, n, acc[r][p]);
        }
      }
    }
  }

  template <int R, int kCount>
  TANDEM_INLINE static void load(const RowBlock& rows, bool zero, F32 (&acc)[R][kCount]) {
    for (int r = 0; r < R; ++r) {
      const float* out = rows.out + r * rows.ld;
      for (int p = 0; p < kCount; ++p) {
        const int n = rows.outputs - p * kPanelRows;
        if (zero || n <= 0) {
          acc[r][p] = L::set1(0.0F);
        } else if (n >= kPanelRows) {
          acc[r][p] = L::load(out + p * kPanelRows);
        } else {
          acc[r][p] = L::load_part(out + p * kPanelRows, n);
        }
      }
    }
  }

  /// The panels of a tile's part; beyond the last panel it is repeated, its outputs dropped.
  TANDEM_INLINE static int panel_or_last(const PanelMatrix& w, int panel) {
    const int last = (w.rows - 1) / kPanelRows;
    return panel < last ? panel : last;
  }

  /// All columns of R rows by P panels, decoding in registers.
  template <class F, int R>
  static void direct(const PanelMatrix& w, int panel, const RowBlock& rows) {
    F32 acc[R][P];
    load<R, P>(rows, true, acc);
    const CodeGroup* a = rows.a;
    const int second = panel_or_last(w, panel + P - 1);
    constexpr int kSections = F::kBlock / (32 * F::kGroups);
    for (int i = 0; i < w.cols / (32 * F::kGroups); ++i, a += F::kGroups) {
      const F blocks[2] = {F(block_at<F>(w, panel, i / kSections), i % kSections),
                           F(block_at<F>(w, second, i / kSections), i % kSections)};
      unroll(
          std::make_integer_sequence<int, F::kGroups>(), [&]<int G>() __attribute__((
                                                             always_inline)) {
            add_group<ClassOf<F>, R>(PackedGroup<F, G>{blocks}, a + G, rows.a_stride, acc);
          });
    }
    store<R, P>(rows, acc);
  }

  /// `num_groups` decoded groups of R rows by P panels; `first`: the chains start here.
  template <class C, int R>
  static void decoded(std::uint8_t* scratch, int num_groups, bool first, const RowBlock& rows) {
    F32 acc[R][P];
    load<R, P>(rows, first, acc);
    for (int g = 0; g < num_groups; ++g, scratch += DecodedGroup<C>::kBytes) {
      add_group<C, R>(DecodedGroup<C>{scratch}, rows.a + g, rows.a_stride, acc);
    }
    store<R, P>(rows, acc);
  }

  /// Decodes sections [begin, end) of P panels.
  template <class F>
  static void decode(const PanelMatrix& w, int panel, int begin, int end, std::uint8_t* scratch) {
    using Decoded = DecodedGroup<ClassOf<F>>;
    constexpr int kSections = F::kBlock / (32 * F::kGroups);
    for (int i = begin; i < end; ++i, scratch += F::kGroups * Decoded::kBytes) {
      for (int p = 0; p < P; ++p) {
        const F block(block_at<F>(w, panel_or_last(w, panel + p), i / kSections), i % kSections);
        const F blocks[2] = {block, block};
        unroll(
            std::make_integer_sequence<int, F::kGroups>(), [&]<int G>() __attribute__((
                                                               always_inline)) {
              decode_group<ClassOf<F>>(PackedGroup<F, G>{blocks},
                                       Decoded{scratch + G * Decoded::kBytes}, p);
            });
      }
    }
  }

  /// Rows in blocks of at most L::kRows, as even as possible: fn<R>(first row).
  template <class Fn>
  TANDEM_INLINE static void for_row_blocks(int num_rows, Fn&& fn) {
    const int blocks = (num_rows + L::kRows - 1) / L::kRows;
    int row = 0;
    for (int i = 0; i < blocks; ++i) {
      const int count = num_rows / blocks + (i < num_rows % blocks ? 1 : 0);
      unroll(
          std::make_integer_sequence<int, L::kRows>(), [&]<int I>() __attribute__((always_inline)) {
            if (count == I + 1) fn.template operator()<I + 1>(row);
          });
      row += count;
    }
  }

  TANDEM_INLINE static RowBlock row_block(const PanelMatrix& w, const Activations& a, int row,
                                          int panel, float* out, std::size_t ld) {
    const auto r = static_cast<std::size_t>(row);
    const int first_output = panel * kPanelRows;
    return {a.codes + r * a.codes_stride, a.codes_stride,
            out + r * ld + static_cast<std::size_t>(first_output), ld, w.rows - first_output};
  }

  /// All rows by P panels.
  template <class F>
  static void panels(const PanelMatrix& w, const Activations& a, int num_rows, int panel,
                     int outputs, float* out, std::size_t ld) {
    using C = ClassOf<F>;
    constexpr int kSectionsAtOnce = L::kScratchColumns / (32 * F::kGroups);
    alignas(64) std::uint8_t scratch[kSectionsAtOnce * F::kGroups * DecodedGroup<C>::kBytes];
    const int num_sections = w.cols / (32 * F::kGroups);
    for (int begin = 0; begin < num_sections; begin += kSectionsAtOnce) {
      const int left = num_sections - begin;
      const int count = left < kSectionsAtOnce ? left : kSectionsAtOnce;
      decode<F>(w, panel, begin, begin + count, scratch);
      for_row_blocks(
          num_rows, [&]<int R>(int row) __attribute__((always_inline)) {
            RowBlock rows = row_block(w, a, row, panel, out, ld);
            rows.a += begin * F::kGroups;
            if (outputs < rows.outputs) rows.outputs = outputs;
            decoded<C, R>(scratch, count * F::kGroups, begin == 0, rows);
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
    for (int panel = tile.panel_begin; panel < tile.panel_end; panel += P) {
      // An odd panel at the end of a tile: its neighbour is another member's.
      const int outputs = (tile.panel_end - panel) * kPanelRows;
      constexpr int kDirectRows = L::direct_rows(T);
      if (tile.num_rows <= kDirectRows) {
        for_row_blocks(
            tile.num_rows, [&]<int R>(int row) __attribute__((always_inline)) {
              if constexpr (R <= kDirectRows) {
                RowBlock rows = row_block(w, a, row, panel, out, ld);
                if (outputs < rows.outputs) rows.outputs = outputs;
                direct<F, R>(w, panel, rows);
              }
            });
      } else {
        panels<F>(w, a, tile.num_rows, panel, outputs, out, ld);
      }
    }
  }

  // ---- plain types: one fused multiply-add a column

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
    load<R, kCount>(rows, true, acc);
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
    store<R, kCount>(rows, acc);
  }

  template <core::DType T, int kCount>
  TANDEM_INLINE static void plain_panels(const PanelMatrix& w, const Activations& a, int num_rows,
                                         int panel, float* out, std::size_t ld) {
    for_row_blocks(
        num_rows, [&]<int R>(int row) __attribute__((always_inline)) {
          RowBlock rows = row_block(w, a, row, panel, out, ld);
          plain_block<T, R, kCount>(w, panel, a.x + static_cast<std::size_t>(row) * a.x_stride,
                                    a.x_stride, rows);
        });
  }

  template <core::DType T>
  static void multiply_plain(const PanelMatrix& w, const Activations& a, const Tile& tile,
                             float* out, std::size_t ld) {
    // A chain waits for its last step: one row alone needs more panels to keep the units busy.
    constexpr int kOneRowPanels = 4;
    int panel = tile.panel_begin;
    for (; tile.num_rows == 1 && panel + kOneRowPanels <= tile.panel_end; panel += kOneRowPanels) {
      plain_block<T, 1, kOneRowPanels>(w, panel, a.x, a.x_stride,
                                       row_block(w, a, 0, panel, out, ld));
    }
    for (; panel + P <= tile.panel_end; panel += P) {
      plain_panels<T, P>(w, a, tile.num_rows, panel, out, ld);
    }
    for (; panel < tile.panel_end; ++panel) {
      plain_panels<T, 1>(w, a, tile.num_rows, panel, out, ld);
    }
  }

  // ---- entry points

  static void matmul(const PanelMatrix& w, const Activations& a, const Tile& tile, float* out,
                     std::size_t ld) {
    using core::DType;
    switch (w.dtype) {
      case DType::kF32:
        return multiply_plain<DType::kF32>(w, a, tile, out, ld);
      case DType::kF16:
        return multiply_plain<DType::kF16>(w, a, tile, out, ld);
      case DType::kBF16:
        return multiply_plain<DType::kBF16>(w, a, tile, out, ld);
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
      default:
        return kScalarKernels.matmul(w, a, tile, out, ld);
    }
  }

  static void quantize_group(const float* x, int n, CodeGroup* out) {
    I32 max = L::zero();
    for (int k = 0; k < n; k += 16) max = L::max_magnitude(max, x + k);
    const std::uint32_t bits = L::largest(max);
    float magnitude;
    __builtin_memcpy(&magnitude, &bits, sizeof magnitude);
    float scale = 0.0F;
    float inverse = 0.0F;
    if (bits >= kInfinityBits) {
      scale = __builtin_nanf("");
    } else if (magnitude >= kSmallestMagnitude) {
      scale = magnitude / 127.0F;
      inverse = 127.0F / magnitude;
    }
    for (int k = 0; k < n; k += 32, ++out) {
      out->scale = scale;
      if (inverse == 0.0F) {
        *out = {{}, scale, 0, {}};
        continue;
      }
      const std::int32_t low = L::quantize16(x + k, inverse, out->codes);
      const std::int32_t high = L::quantize16(x + k + 16, inverse, out->codes + 16);
      out->minus_sum16[0] = -low;
      out->minus_sum16[1] = -high;
      out->minus_sum = -(low + high);
    }
  }

  static void quantize_row(const float* x, int cols, CodeGroup* out) {
    for (int k = 0; k < cols; k += kGroup) {
      quantize_group(x + k, cols - k < kGroup ? cols - k : kGroup, out + k / 32);
    }
  }
};

}  // namespace tandem::kernels::cpu
