#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tandem/core/status.h"
#include "tandem/core/tensor.h"
#include "tandem/core/thread_team.h"
#include "tandem/kernels/backend.h"
#include "tandem/kernels/cpu/panel.h"

namespace tandem::kernels::cpu {

/// The int8 form of up to max_rows rows of activations, which quantized weights are multiplied
/// with: see CodeGroup. Copies share the memory.
class ActivationBuffer {
 public:
  ActivationBuffer() = default;
  /// Room for rows x cols; cols is the largest K that will be used.
  static core::Result<ActivationBuffer> create(int max_rows, int max_cols);

  CodeGroup* row(int r) const { return groups_.get() + static_cast<std::size_t>(r) * stride_; }
  std::size_t stride() const { return stride_; }  ///< groups from row to row
  int max_rows() const { return max_rows_; }
  int max_cols() const { return max_cols_; }

 private:
  std::shared_ptr<CodeGroup> groups_;
  int max_rows_ = 0;
  int max_cols_ = 0;
  std::size_t stride_ = 0;
};

/// A linear weight packed in 16-row panels for the chosen instruction set; see docs/kernels.md.
class PackedMatrix : public Weight {
 public:
  /// Panels of 16 outputs; the last one is padded with zero rows.
  virtual int panels() const = 0;
  /// True: reads int8 codes (quantized weights). False: reads the f32 rows (F32, F16, BF16).
  virtual bool wants_codes() const = 0;
  /// dst[0..cols) = row r dequantized, for embedding tables that are also a head.
  virtual void gather_row(std::int64_t r, float* dst) const = 0;
};

/// The functions of one instruction set. All sets give the same bits.
struct MatmulKernels {
  std::string_view isa;

  /// Quantizes x[cols] into row `row` of the buffer; cols is a multiple of 32. A group that holds
  /// an infinity or a NaN gets a NaN scale, and so does every product with it.
  void (*quantize_row)(const float* x, int cols, const ActivationBuffer& out, int row);

  /// out[r * ld + 16 * panel + n] = sum_k W[16 * panel + n][k] a[r][k] for rows r in
  /// [0, num_rows) and panels [panel_begin, panel_end); never writes past output `w.rows()`.
  /// `codes` is read when w.wants_codes(), else x [num_rows, cols] with row stride x_ld.
  void (*matmul)(const PackedMatrix& w, const ActivationBuffer& codes, const float* x, int x_ld,
                 int num_rows, int panel_begin, int panel_end, float* out, int ld);
};

/// Kernels by name ("scalar", "avx2", "avx512", "neon"); empty: the best one this CPU has.
core::Result<const MatmulKernels*> matmul_kernels(std::string_view isa);

/// Packs a [N, K] tensor of any supported dtype (F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K..Q6_K
/// IQ4_NL IQ4_XS), with the team. The packed size equals the file's but for the padding.
core::Result<std::unique_ptr<PackedMatrix>> pack_matrix(const core::TensorView& view,
                                                        core::ThreadTeam& team,
                                                        std::string_view name);

}  // namespace tandem::kernels::cpu
