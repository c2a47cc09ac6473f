#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tandem/core/status.h"
#include "tandem/core/tensor.h"
#include "tandem/core/thread_team.h"
#include "tandem/kernels/backend.h"

namespace tandem::kernels::cpu {

/// Activations of one matrix product in both forms that weights ask for. For each row the int8
/// codes come with one f32 scale per kGroup values along K (symmetric, round to nearest even,
/// clamp to +-127) and the integer sums that offset formats need.
/// Layout and padding are private to the matmul; allocate through ActivationBuffer.
inline constexpr int kGroup = 128;
static_assert(kGroup == 32 || kGroup == 128);

struct Activations;

class ActivationBuffer {
 public:
  ActivationBuffer() = default;
  /// Room for rows x cols; cols is the largest K that will be used.
  /// Copies share the memory.
  static core::Result<ActivationBuffer> create(int max_rows, int max_cols);

  std::int8_t* codes(int row) const;
  float* scales(int row) const;         ///< [ceil(cols / kGroup)]
  std::int32_t* sums16(int row) const;  ///< [cols / 16] sums of 16 codes
  std::int32_t* sums32(int row) const;  ///< [cols / 32] sums of 32 codes
  Activations view() const;             ///< of all rows, for kernels
  int max_rows() const { return max_rows_; }
  int max_cols() const { return max_cols_; }

 private:
  std::shared_ptr<std::byte> memory_;
  int max_rows_ = 0;
  int max_cols_ = 0;
  std::size_t stride_codes_ = 0, stride_scales_ = 0, stride_sums_ = 0;
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
