#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "tandem/core/buffer.h"
#include "tandem/core/status.h"
#include "tandem/core/thread_team.h"
#include "tandem/kernels/backend.h"
#include "tandem/kernels/cpu/panel.h"

namespace tandem::kernels::cpu {

/// Room for the derived forms of up to max_rows rows of activations. Memory is backed where it is
/// touched.
class ActivationBuffer {
 public:
  ActivationBuffer() = default;
  /// Room for rows x cols; cols is the largest K that will be used.
  static core::Result<ActivationBuffer> create(int max_rows, int max_cols);

  CodeGroup* codes(int row) const { return codes_.as<CodeGroup>() + at(row) * codes_stride_; }
  float* rounded(int row) const { return rounded_.as<float>() + at(row) * rounded_stride_; }
  float* scales(int row) const { return scales_.as<float>() + at(row) * codes_stride_; }
  /// Rows from `first` on, with the f32 values x of row `first`, x_ld apart.
  Activations rows(int first, const float* x, int x_ld) const;
  int max_rows() const { return max_rows_; }
  int max_cols() const { return max_cols_; }

 private:
  static std::size_t at(int row) { return static_cast<std::size_t>(row); }

  core::Arena codes_, rounded_, scales_;
  int max_rows_ = 0;
  int max_cols_ = 0;
  std::size_t codes_stride_ = 0;    // groups of 32 columns, and room for a scale each
  std::size_t rounded_stride_ = 0;  // columns
};

/// A linear weight packed in 16-row panels for the chosen instruction set; see docs/kernels.md.
class PackedMatrix : public Weight {
 public:
  /// Panels of 16 outputs; the last one is padded with zero rows.
  virtual int panels() const = 0;
  /// What is read beside the f32 rows: codes for block-quantized weights, values rounded to e4m3
  /// for weights that ask for it, nothing for plain ones.
  virtual InputForms input_forms() const = 0;
  /// dst[0..cols) = row r dequantized, for embedding tables that are also a head.
  virtual void gather_row(std::int64_t r, float* dst) const = 0;
};

/// The functions of one instruction set. All sets give the same bits.
struct MatmulKernels {
  std::string_view isa;

  /// x[cols], a multiple of 32, as codes.
  void (*quantize_row)(const float* x, int cols, CodeGroup* out);
  /// Attention over a block of an int8 cache.
  void (*attend_int8)(const Int8AttentionBlock& block);

  /// Writes the forms of x[cols] into row `row` of the buffer. Codes want cols to be a multiple of
  /// 32. A group that holds an infinity or a NaN gets a NaN scale, and so does every product with
  /// it.
  void (*prepare_row)(const InputForms& forms, const float* x, int cols,
                      const ActivationBuffer& out, int row);

  /// out[r * ld + 16 * panel + n] = sum_k W[16 * panel + n][k] a[r][k] for rows r in
  /// [0, num_rows) and panels [panel_begin, panel_end); never writes past output `w.rows()`.
  void (*matmul)(const PackedMatrix& w, const Activations& a, int num_rows, int panel_begin,
                 int panel_end, float* out, int ld);
};

/// Kernels by name ("scalar", "avx2", "avx512", "neon"); empty: the best one this CPU has.
core::Result<const MatmulKernels*> matmul_kernels(std::string_view isa);

/// Packs a [N, K] weight of any supported dtype (F32 F16 BF16 F8_E4M3 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0
/// Q2_K..Q6_K IQ4_NL IQ4_XS NVFP4 MXFP4, and NVFP4 as pairs in U8), with the team. The packed size
/// equals the file's but for the padding and the scales of F8_E4M3, which become f32. Scales of
/// other dtypes must be one for all values.
core::Result<std::unique_ptr<PackedMatrix>> pack_matrix(const WeightView& view,
                                                        core::ThreadTeam& team,
                                                        std::string_view name);

}  // namespace tandem::kernels::cpu
