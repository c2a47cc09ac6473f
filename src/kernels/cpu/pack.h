#pragma once

#include <cstddef>
#include <cstdint>

#include "tandem/core/buffer.h"
#include "tandem/core/dtype.h"
#include "tandem/kernels/cpu/matmul.h"
#include "tandem/kernels/cpu/panel.h"

namespace tandem::kernels::cpu {

/// How a dtype's blocks lie in a panel; see PanelMatrix.
struct PanelFormat {
  int block = 0;           ///< elements of a block along K
  int words = 0;           ///< words of a block that are transposed
  int word_bytes = 4;      ///< 4; of a plain type, its element's size
  int words_offset = 0;    ///< byte of the file's block where they start
  int scale_offset = -1;   ///< byte of the f16 scale that is kept apart; -1: none
  int permuted_word = -1;  ///< the word whose bits are permuted (Q5_0, Q5_1); -1: none
  /// Vector of a block that holds word j, for formats whose vectors are not in the file's order.
  const std::uint8_t* vector_of_word = nullptr;
  std::uint32_t flip = 0;  ///< XORed to every word (Q8_0: codes plus 128)
};

/// Null for a dtype that has no panels.
const PanelFormat* panel_format(core::DType dtype);

/// [cols / scale_cols][16 rows] scales of a panel of F8_E4M3, times kE4m3WeightUnit.
const float* e4m3_scales(const PanelMatrix& m, int panel);

/// Writes block `block` of row `lane` of a panel back in the file's layout, or that of fp4.h: dst
/// has room for 256 bytes.
void unpack_block(const PanelMatrix& m, int panel, int lane, int block, std::byte* dst);

/// The PackedMatrix of the CPU backend: panels in an arena of their own.
class PanelWeight final : public PackedMatrix {
 public:
  PanelWeight(const PanelMatrix& matrix, core::Arena arena);
  std::int64_t rows() const override { return matrix_.rows; }
  std::int64_t cols() const override { return matrix_.cols; }
  std::size_t bytes() const override { return arena_.size(); }
  int panels() const override { return (matrix_.rows + kPanelRows - 1) / kPanelRows; }
  InputForms input_forms() const override {
    return {core::is_block_quantized(matrix_.dtype), matrix_.e4m3_group};
  }
  void gather_row(std::int64_t r, float* dst) const override;

  const PanelMatrix& matrix() const { return matrix_; }

 private:
  PanelMatrix matrix_;
  core::Arena arena_;
};

}  // namespace tandem::kernels::cpu
