#include "tandem/kernels/cpu/pack.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "tandem/core/check.h"
#include "tandem/core/checked_math.h"
#include "tandem/formats/dequantize.h"

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
      order[32 + 8 * half + i] = static_cast<std::uint8_t>(first + 2 + 2 * i);
      order[16 * half + i] = static_cast<std::uint8_t>(first + 3 + 2 * i);
      order[16 * half + 8 + i] = static_cast<std::uint8_t>(first + 18 + i);
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

/// One row of the file into its lane of a panel. `src` may be misaligned.
void pack_lane(const PanelMatrix& m, const PanelFormat& f, const std::byte* src, int lane,
               std::byte* panel) {
  const auto word_bytes = static_cast<std::size_t>(f.word_bytes);
  for (int b = 0; b < num_blocks(f, m.cols); ++b, src += core::traits(m.dtype).block_bytes) {
    const std::byte* words = src + f.words_offset;
    for (int j = 0; j < f.words; ++j, words += word_bytes) {
      std::uint32_t word = 0;
      std::memcpy(&word, words, word_bytes);
      word ^= f.flip;
      if (j == f.permuted_word) word = permute_bits(word);
      std::memcpy(word_at(panel, f, b, j, lane), &word, word_bytes);
    }
    if (f.scale_offset >= 0) {
      std::memcpy(scale_at(panel, m.side_offset, b, lane), src + f.scale_offset, 2);
    }
  }
}

core::Result<PanelMatrix> plan(const core::TensorView& view, std::string_view name,
                               std::size_t* bytes) {
  const PanelFormat* f = panel_format(view.dtype);
  if (f == nullptr) {
    return core::unimplemented("tensor " + std::string(name) + " has type " +
                               std::string(core::name(view.dtype)) +
                               ", which the CPU cannot multiply; convert the file to Q4_K_M, Q8_0, "
                               "BF16 or another supported type");
  }
  constexpr std::int64_t kMax = std::numeric_limits<int>::max() / 2;
  if (view.rows() < 1 || view.rows() > kMax || view.cols() < 1 || view.cols() > kMax) {
    return core::invalid_argument("tensor " + std::string(name) + " is empty or larger than " +
                                  std::to_string(kMax) + " in a dimension");
  }
  PanelMatrix m;
  m.dtype = view.dtype;
  m.rows = static_cast<int>(view.rows());
  m.cols = static_cast<int>(view.cols());
  const auto blocks = static_cast<std::size_t>(num_blocks(*f, m.cols));
  m.side_offset = blocks * static_cast<std::size_t>(f->words * f->word_bytes) * kPanelRows;
  const std::size_t side = f->scale_offset >= 0 ? blocks * kPanelRows * 2 : 0;
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
  std::array<std::byte, 256> block;
  for (int b = 0; b < num_blocks(f, matrix_.cols); ++b) {
    unpack_block(matrix_, panel, lane, b, block.data());
    formats::dequantize_row(matrix_.dtype, block.data(), f.block,
                            dst + static_cast<std::size_t>(b) * static_cast<std::size_t>(f.block));
  }
}

core::Result<std::unique_ptr<PackedMatrix>> pack_matrix(const core::TensorView& view,
                                                        core::ThreadTeam& team,
                                                        std::string_view name) {
  std::size_t bytes = 0;
  TANDEM_ASSIGN(PanelMatrix m, plan(view, name, &bytes));
  TANDEM_ASSIGN(core::Arena arena, core::Arena::reserve(bytes, /*huge_pages=*/true));
  m.data = arena.data();
  const PanelFormat& f = *panel_format(m.dtype);
  const int panels = core::ceil_div(m.rows, kPanelRows);
  team.run([&](core::ThreadTeam::Member member) {
    // The arena is zeroed: lanes beyond the last row need no work.
    for (int p = member.claim(); p < panels; p = member.claim()) {
      std::byte* panel = arena.data() + static_cast<std::size_t>(p) * m.panel_stride;
      const int lanes = std::min(kPanelRows, m.rows - p * kPanelRows);
      for (int lane = 0; lane < lanes; ++lane) {
        pack_lane(m, f, view.row(std::int64_t{p} * kPanelRows + lane), lane, panel);
      }
    }
  });
  return std::unique_ptr<PackedMatrix>(std::make_unique<PanelWeight>(m, std::move(arena)));
}

}  // namespace tandem::kernels::cpu
