#include "tandem/kernels/cpu/pack.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "tandem/core/check.h"
#include "tandem/core/checked_math.h"
#include "tandem/formats/dequantize.h"
#include "tandem/kernels/cpu/fp4.h"

namespace tandem::kernels::cpu {
namespace {

using core::DType;

// Vectors in the order of their first use (simd/formats256_impl.h), which is what the processor's
// prefetching follows: scales, then upper bits and nibbles in pairs, then the nibbles that meet the
// same upper bits again.

constexpr auto kQ3KOrder = [] {
  std::array<std::uint8_t, 27> order = {};  // third bits 0..7, low bits 8..23, scales 24..26
  for (std::size_t i = 0; i < 8; ++i) {
    order[i] = static_cast<std::uint8_t>(3 + 2 * i);
    order[8 + i] = static_cast<std::uint8_t>(4 + 2 * i);
    order[16 + i] = static_cast<std::uint8_t>(19 + i);
  }
  for (std::size_t i = 0; i < 3; ++i) order[24 + i] = static_cast<std::uint8_t>(i);
  return order;
}();

constexpr auto kQ5KOrder = [] {
  std::array<std::uint8_t, 44> order = {};  // scales 0..3, fifth bits 4..11, nibbles 12..43
  for (std::size_t i = 0; i < 4; ++i) order[i] = static_cast<std::uint8_t>(i);
  for (std::size_t i = 0; i < 8; ++i) {
    order[4 + i] = static_cast<std::uint8_t>(4 + 2 * i);
    order[12 + i] = static_cast<std::uint8_t>(5 + 2 * i);
  }
  for (std::size_t i = 20; i < 44; ++i) order[i] = static_cast<std::uint8_t>(i);
  return order;
}();

constexpr auto kQ6KOrder = [] {
  std::array<std::uint8_t, 52> order = {};  // nibbles 0..31, upper bits 32..47, scales 48..51
  for (std::size_t half = 0; half < 2; ++half) {
    const std::size_t first = 26 * half;
    for (std::size_t i = 0; i < 8; ++i) {
      order[32 + 8 * half + i] = static_cast<std::uint8_t>(first + 2 + 3 * i);
      order[16 * half + i] = static_cast<std::uint8_t>(first + 3 + 3 * i);
      order[16 * half + 8 + i] = static_cast<std::uint8_t>(first + 4 + 3 * i);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      order[48 + 2 * half + i] = static_cast<std::uint8_t>(first + i);
    }
  }
  return order;
}();

struct FormatEntry {
  DType dtype;
  PanelFormat format;
};

// Byte offsets: spec/formats.md section 3.
constexpr std::array kFormats = {
    FormatEntry{DType::kF32, {.block = 1, .words = 1}},
    FormatEntry{DType::kF16, {.block = 1, .words = 1, .word_bytes = 2}},
    FormatEntry{DType::kBF16, {.block = 1, .words = 1, .word_bytes = 2}},
    FormatEntry{DType::kF8E4M3, {.block = 1, .words = 1, .word_bytes = 1}},
    FormatEntry{DType::kQ4_0, {.block = 32, .words = 4, .words_offset = 2, .scale_offset = 0}},
    FormatEntry{DType::kQ4_1, {.block = 32, .words = 5}},
    FormatEntry{
        DType::kQ5_0,
        {.block = 32, .words = 5, .words_offset = 2, .scale_offset = 0, .permuted_word = 0}},
    FormatEntry{DType::kQ5_1, {.block = 32, .words = 6, .permuted_word = 1}},
    FormatEntry{
        DType::kQ8_0,
        {.block = 32, .words = 8, .words_offset = 2, .scale_offset = 0, .flip = 0x80808080u}},
    FormatEntry{DType::kQ2_K, {.block = 256, .words = 21}},
    FormatEntry{
        DType::kQ3_K,
        {.block = 256, .words = 27, .scale_offset = 108, .vector_of_word = kQ3KOrder.data()}},
    FormatEntry{DType::kQ4_K, {.block = 256, .words = 36}},
    FormatEntry{DType::kQ5_K, {.block = 256, .words = 44, .vector_of_word = kQ5KOrder.data()}},
    FormatEntry{
        DType::kQ6_K,
        {.block = 256, .words = 52, .scale_offset = 208, .vector_of_word = kQ6KOrder.data()}},
    FormatEntry{DType::kIQ4_NL, {.block = 32, .words = 4, .words_offset = 2, .scale_offset = 0}},
    FormatEntry{DType::kIQ4_XS, {.block = 256, .words = 34}},
    // In the form of fp4.h.
    FormatEntry{DType::kNVFP4, {.block = 32, .words = 4, .words_offset = 2, .scale_offset = 0}},
    FormatEntry{DType::kMXFP4, {.block = 32, .words = 4, .words_offset = 2, .scale_offset = 0}},
};

/// Bit 4s + c of the file's word becomes bit 8c + s.
std::uint32_t permute_bits(std::uint32_t word) {
  std::uint32_t out = 0;
  for (int element = 0; element < 32; ++element) {
    out |= ((word >> element) & 1u) << (8 * (element % 4) + element / 4);
  }
  return out;
}

std::uint32_t restore_bits(std::uint32_t word) {
  std::uint32_t out = 0;
  for (int element = 0; element < 32; ++element) {
    out |= ((word >> (8 * (element % 4) + element / 4)) & 1u) << element;
  }
  return out;
}

int num_blocks(const PanelFormat& f, int cols) {
  return core::ceil_div(cols, f.block);
}

std::byte* word_at(std::byte* panel, const PanelFormat& f, int block, int word, int lane) {
  if (f.vector_of_word != nullptr) word = f.vector_of_word[word];
  const auto index = (static_cast<std::size_t>(block) * static_cast<std::size_t>(f.words) +
                      static_cast<std::size_t>(word)) *
                         kPanelRows +
                     static_cast<std::size_t>(lane);
  return panel + index * static_cast<std::size_t>(f.word_bytes);
}

std::byte* scale_at(std::byte* panel, std::size_t side_offset, int block, int lane) {
  const auto index = static_cast<std::size_t>(block) * kPanelRows + static_cast<std::size_t>(lane);
  return panel + side_offset + index * 2;
}

/// One block, in the file's layout or that of fp4.h, into its lane of a panel. `src` may be
/// misaligned.
void pack_block(const PanelMatrix& m, const PanelFormat& f, const std::byte* src, int block,
                int lane, std::byte* panel) {
  const std::byte* words = src + f.words_offset;
  for (int j = 0; j < f.words; ++j, words += sizeof(std::uint32_t)) {
    std::uint32_t word = 0;
    std::memcpy(&word, words, sizeof word);
    word ^= f.flip;
    if (j == f.permuted_word) word = permute_bits(word);
    std::memcpy(word_at(panel, f, block, j, lane), &word, sizeof word);
  }
  if (f.scale_offset >= 0) {
    std::memcpy(scale_at(panel, m.side_offset, block, lane), src + f.scale_offset, 2);
  }
}

/// One row of the file into its lane of a panel.
void pack_lane(const PanelMatrix& m, const PanelFormat& f, const WeightView& view, std::int64_t row,
               int lane, std::byte* panel) {
  const bool from_fp4 = is_fp4(view);
  const std::byte* src = view.tensor.row(row);
  const int block_bytes = core::traits(view.tensor.dtype).block_bytes;
  for (int b = 0; b < num_blocks(f, m.cols); ++b) {
    if (from_fp4) {
      const Fp4Block block = fp4_block(view, row, b);
      pack_block(m, f, reinterpret_cast<const std::byte*>(block.data()), b, lane, panel);
    } else {
      pack_block(m, f, src, b, lane, panel);
      src += block_bytes;
    }
  }
}

/// Rows [first, first + lanes) of a plain type into a panel: written in order, read from 16 places.
template <std::size_t kBytes>
void pack_plain(const WeightView& view, std::int64_t first, int lanes, std::byte* panel) {
  std::array<const std::byte*, kPanelRows> rows = {};
  for (int i = 0; i < lanes; ++i) rows[static_cast<std::size_t>(i)] = view.tensor.row(first + i);
  const auto n = static_cast<std::size_t>(lanes);
  const auto cols = static_cast<std::size_t>(view.cols());
  for (std::size_t k = 0; k < cols; ++k, panel += kPanelRows * kBytes) {
    for (std::size_t i = 0; i < n; ++i) {
      std::memcpy(panel + i * kBytes, rows[i] + k * kBytes, kBytes);
    }
  }
}

/// Rows [first, first + lanes) into a panel.
void pack_panel(const PanelMatrix& m, const PanelFormat& f, const WeightView& view,
                std::int64_t first, int lanes, std::byte* panel) {
  if (f.block == 1) {
    if (f.word_bytes == 1) return pack_plain<1>(view, first, lanes, panel);
    if (f.word_bytes == 2) return pack_plain<2>(view, first, lanes, panel);
    return pack_plain<4>(view, first, lanes, panel);
  }
  for (int lane = 0; lane < lanes; ++lane) pack_lane(m, f, view, first + lane, lane, panel);
}

/// True if some code of an F8_E4M3 row is not a number.
bool has_nan(const std::byte* row, int cols) {
  int found = 0;
  for (int k = 0; k < cols; ++k) found |= (row[k] & std::byte{0x7f}) == std::byte{0x7f} ? 1 : 0;
  return found != 0;
}

/// The scales of one row of an F8_E4M3 weight into its lane.
void pack_scales(const PanelMatrix& m, const WeightView& view, std::int64_t row, int lane,
                 std::byte* panel) {
  auto* scales = reinterpret_cast<float*>(panel + m.side_offset);
  for (int k = 0; k < m.cols; k += m.scale_cols) {
    scales[k / m.scale_cols * kPanelRows + lane] =
        view.scale(row, k) * view.factor * kE4m3WeightUnit;
  }
}

void fp4_values(DType dtype, const std::byte* bytes, float* dst) {
  Fp4Block block;
  std::memcpy(block.data(), bytes, block.size());
  for (int k = 0; k < 32; ++k) {
    dst[k] = static_cast<float>(fp4_code(block, k)) * fp4_half_scale(dtype, block, k);
  }
}

/// What the scales of a weight become: of F8_E4M3 its own, of any other dtype one for all outputs.
core::Status plan_scales(const WeightView& view, std::string_view name, PanelMatrix* m) {
  const bool has_scales = view.scales.data != nullptr;
  if (m->dtype == DType::kF8E4M3) {
    const auto block =
        static_cast<int>(has_scales ? std::min(view.scale_cols, view.cols()) : view.cols());
    m->scale_cols = block;
    m->e4m3_group = view.e4m3_group < m->cols ? view.e4m3_group : kWholeRow;
    if (view.e4m3_group == 0) m->e4m3_group = 0;
    if (m->e4m3_group == kWholeRow || m->e4m3_group % block == 0) return {};
  } else if (view.tensor.dtype == DType::kU8 && view.e4m3_group == 0) {
    m->output_scale = view.factor;  // the scales are in the blocks
    return check_fp4(view, name);
  } else if (view.e4m3_group == 0 && view.has_one_scale()) {
    m->output_scale = view.scale(0, 0) * view.factor;
    return {};
  }
  return core::unimplemented("tensor " + std::string(name) + " (" +
                             std::string(core::name(m->dtype)) +
                             ") has scales that the CPU backend cannot run; choose the reference "
                             "backend");
}

core::Result<PanelMatrix> plan(const WeightView& view, std::string_view name, std::size_t* bytes) {
  const PanelFormat* f = panel_format(panel_dtype(view));
  if (f == nullptr) {
    return core::unimplemented("tensor " + std::string(name) + " has type " +
                               std::string(core::name(view.tensor.dtype)) +
                               ", which the CPU cannot multiply; convert the file to Q4_K_M, Q8_0, "
                               "BF16 or another supported type");
  }
  constexpr std::int64_t kMax = std::numeric_limits<int>::max() / 2;
  if (view.rows() < 1 || view.rows() > kMax || view.cols() < 1 || view.cols() > kMax) {
    return core::invalid_argument("tensor " + std::string(name) + " is empty or larger than " +
                                  std::to_string(kMax) + " in a dimension");
  }
  PanelMatrix m;
  m.dtype = panel_dtype(view);
  m.rows = static_cast<int>(view.rows());
  m.cols = static_cast<int>(view.cols());
  TANDEM_TRY(plan_scales(view, name, &m));
  const auto blocks = static_cast<std::size_t>(num_blocks(*f, m.cols));
  m.side_offset = blocks * static_cast<std::size_t>(f->words * f->word_bytes) * kPanelRows;
  std::size_t side = f->scale_offset >= 0 ? blocks * kPanelRows * 2 : 0;
  if (m.scale_cols > 0) {
    m.side_offset = core::round_up<std::size_t>(m.side_offset, kVectorBytes);
    side =
        static_cast<std::size_t>(core::ceil_div(m.cols, m.scale_cols)) * kPanelRows * sizeof(float);
  }
  m.panel_stride = core::round_up<std::size_t>(m.side_offset + side, kVectorBytes);
  const auto panels = static_cast<std::size_t>(core::ceil_div(m.rows, kPanelRows));
  const auto total = core::checked_mul(panels, m.panel_stride);
  if (!total) return core::invalid_argument("tensor " + std::string(name) + " is too large");
  *bytes = *total;
  return m;
}

}  // namespace

const PanelFormat* panel_format(DType dtype) {
  for (const FormatEntry& entry : kFormats) {
    if (entry.dtype == dtype) return &entry.format;
  }
  return nullptr;
}

const float* e4m3_scales(const PanelMatrix& m, int panel) {
  return reinterpret_cast<const float*>(m.data + static_cast<std::size_t>(panel) * m.panel_stride +
                                        m.side_offset);
}

void unpack_block(const PanelMatrix& m, int panel, int lane, int block, std::byte* dst) {
  const PanelFormat& f = *panel_format(m.dtype);
  auto* base = const_cast<std::byte*>(m.data) + static_cast<std::size_t>(panel) * m.panel_stride;
  const auto word_bytes = static_cast<std::size_t>(f.word_bytes);
  for (int j = 0; j < f.words; ++j) {
    std::uint32_t word = 0;
    std::memcpy(&word, word_at(base, f, block, j, lane), word_bytes);
    if (j == f.permuted_word) word = restore_bits(word);
    word ^= f.flip;
    std::memcpy(dst + f.words_offset + static_cast<std::size_t>(j) * word_bytes, &word, word_bytes);
  }
  if (f.scale_offset >= 0) {
    std::memcpy(dst + f.scale_offset, scale_at(base, m.side_offset, block, lane), 2);
  }
}

PanelWeight::PanelWeight(const PanelMatrix& matrix, core::Arena arena)
    : matrix_(matrix), arena_(std::move(arena)) {}

void PanelWeight::gather_row(std::int64_t r, float* dst) const {
  TANDEM_CHECK(r >= 0 && r < matrix_.rows, "row out of range");
  const PanelFormat& f = *panel_format(matrix_.dtype);
  const int panel = static_cast<int>(r) / kPanelRows;
  const int lane = static_cast<int>(r) % kPanelRows;
  const auto scale_of = [&](int k) {
    if (matrix_.scale_cols == 0) return matrix_.output_scale;
    return e4m3_scales(matrix_, panel)[k / matrix_.scale_cols * kPanelRows + lane] /
           kE4m3WeightUnit;
  };
  std::array<std::byte, 256> block;
  for (int b = 0; b < num_blocks(f, matrix_.cols); ++b) {
    unpack_block(matrix_, panel, lane, b, block.data());
    float* values = dst + static_cast<std::size_t>(b) * static_cast<std::size_t>(f.block);
    if (matrix_.dtype == DType::kNVFP4 || matrix_.dtype == DType::kMXFP4) {
      fp4_values(matrix_.dtype, block.data(), values);
    } else {
      formats::dequantize_row(matrix_.dtype, block.data(), f.block, values);
    }
    const float scale = scale_of(b * f.block);
    for (int i = 0; scale != 1.0F && i < f.block; ++i) values[i] *= scale;
  }
}

core::Result<std::unique_ptr<PackedMatrix>> pack_matrix(const WeightView& view,
                                                        core::ThreadTeam& team,
                                                        std::string_view name) {
  std::size_t bytes = 0;
  TANDEM_ASSIGN(PanelMatrix m, plan(view, name, &bytes));
  TANDEM_ASSIGN(core::Arena arena, core::Arena::reserve(bytes, /*huge_pages=*/true));
  m.data = arena.data();
  const PanelFormat& f = *panel_format(m.dtype);
  const int panels = core::ceil_div(m.rows, kPanelRows);
  std::atomic<bool> found_nan = false;
  team.run([&](core::ThreadTeam::Member member) {
    // The arena is zeroed: lanes beyond the last row need no work.
    for (int p = member.claim(); p < panels; p = member.claim()) {
      std::byte* panel = arena.data() + static_cast<std::size_t>(p) * m.panel_stride;
      const int lanes = std::min(kPanelRows, m.rows - p * kPanelRows);
      const std::int64_t first = std::int64_t{p} * kPanelRows;
      pack_panel(m, f, view, first, lanes, panel);
      for (int lane = 0; lane < lanes && m.scale_cols > 0; ++lane) {
        pack_scales(m, view, first + lane, lane, panel);
        if (has_nan(view.tensor.row(first + lane), m.cols)) found_nan = true;
      }
    }
  });
  if (found_nan) {
    return core::data_loss("tensor " + std::string(name) +
                           " holds a value that is not a number; the file is damaged, get it "
                           "again");
  }
  return std::unique_ptr<PackedMatrix>(std::make_unique<PanelWeight>(m, std::move(arena)));
}

}  // namespace tandem::kernels::cpu
