#include "tandem/kernels/cpu/matmul.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "tandem/core/check.h"
#include "tandem/core/checked_math.h"
#include "tandem/core/cpu_features.h"
#include "tandem/kernels/cpu/pack.h"
#include "tandem/kernels/cpu/panel.h"

namespace tandem::kernels::cpu {
namespace {

using core::IsaLevel;

/// The public function of one instruction set: unwraps the matrix, checks, calls its kernel.
template <const IsaKernels& kernels>
struct Entry {
  static void prepare_row(const InputForms& forms, const float* x, int cols,
                          const ActivationBuffer& out, int row) {
    TANDEM_CHECK(cols <= out.max_cols(), "columns that the buffer cannot hold");
    TANDEM_CHECK(row >= 0 && row < out.max_rows(), "row outside the buffer");
    if (forms.codes) {
      TANDEM_CHECK(cols % 32 == 0, "codes come in groups of 32");
      kernels.quantize_row(x, cols, out.codes(row));
    }
    if (forms.e4m3_group == 0) return;
    float* scale = out.scales(row);
    for (int k = 0; k < cols; k += forms.e4m3_group, ++scale) {
      *scale =
          kernels.round_e4m3(x + k, std::min(forms.e4m3_group, cols - k), out.rounded(row) + k);
    }
  }

  static void matmul(const PackedMatrix& w, const Activations& a, int num_rows, int panel_begin,
                     int panel_end, float* out, int ld) {
    const PanelMatrix& matrix = static_cast<const PanelWeight&>(w).matrix();
    TANDEM_CHECK(panel_begin >= 0 && panel_end <= w.panels(), "panels outside the matrix");
    if (num_rows <= 0) return;
    const auto stride = static_cast<std::size_t>(ld);
    kernels.matmul(matrix, a, {num_rows, panel_begin, panel_end}, out, stride);
    if (matrix.output_scale == 1.0F) return;
    const int begin = panel_begin * kPanelRows;
    const int end = std::min(panel_end * kPanelRows, matrix.rows);
    for (int r = 0; r < num_rows; ++r) {
      float* row = out + static_cast<std::size_t>(r) * stride;
      for (int n = begin; n < end; ++n) row[n] *= matrix.output_scale;
    }
  }

  static MatmulKernels table(IsaLevel level) {
    return {core::isa_name(level), kernels.quantize_row, kernels.attend_int8, prepare_row, matmul};
  }
};

struct Candidate {
  IsaLevel level;
  MatmulKernels kernels;
};

const auto& candidates() {
  static const std::array list = {
    Candidate{IsaLevel::kScalar, Entry<kScalarKernels>::table(IsaLevel::kScalar)},
#if defined(__x86_64__)
    Candidate{IsaLevel::kAvx2, Entry<kAvx2Kernels>::table(IsaLevel::kAvx2)},
    Candidate{IsaLevel::kAvx512, Entry<kAvx512Kernels>::table(IsaLevel::kAvx512)},
#elif defined(__aarch64__)
    Candidate{IsaLevel::kNeon, Entry<kNeonKernels>::table(IsaLevel::kNeon)},
#endif
  };
  return list;
}

}  // namespace

core::Result<ActivationBuffer> ActivationBuffer::create(int max_rows, int max_cols) {
  TANDEM_CHECK(max_rows > 0 && max_cols > 0, "an empty activation buffer");
  ActivationBuffer buffer;
  buffer.max_rows_ = max_rows;
  buffer.max_cols_ = max_cols;
  // An odd number of cache lines: rows must not share cache sets.
  const auto groups = core::ceil_div(static_cast<std::size_t>(max_cols), std::size_t{32});
  buffer.codes_stride_ = core::round_up<std::size_t>(groups, 8) + 4;
  buffer.rounded_stride_ = 32 * buffer.codes_stride_ + 16;
  const auto bytes =
      core::checked_mul(static_cast<std::size_t>(max_rows), buffer.rounded_stride_ * sizeof(float));
  if (!bytes) return core::invalid_argument("activation rows and columns are out of range");
  const std::size_t places = at(max_rows) * buffer.codes_stride_;
  TANDEM_ASSIGN(buffer.codes_, core::Arena::reserve(places * sizeof(CodeGroup), true));
  TANDEM_ASSIGN(buffer.rounded_, core::Arena::reserve(*bytes, /*huge_pages=*/true));
  TANDEM_ASSIGN(buffer.scales_, core::Arena::reserve(places * sizeof(float), false));
  return buffer;
}

Activations ActivationBuffer::rows(int first, const float* x, int x_ld) const {
  Activations a;
  a.codes = codes(first);
  a.codes_stride = codes_stride_;
  a.x = x;
  a.x_stride = static_cast<std::size_t>(x_ld);
  a.rounded = rounded(first);
  a.rounded_stride = rounded_stride_;
  a.scales = scales(first);
  a.scales_stride = codes_stride_;
  return a;
}

core::Result<const MatmulKernels*> matmul_kernels(std::string_view isa) {
  const Candidate* best = nullptr;
  std::string known;
  for (const Candidate& candidate : candidates()) {
    const std::string_view name = core::isa_name(candidate.level);
    known += (known.empty() ? "" : ", ") + std::string(name);
    if (core::has_isa(candidate.level)) best = &candidate;
    if (isa != name) continue;
    if (core::has_isa(candidate.level)) return &candidate.kernels;
    return core::unimplemented("this processor lacks the instructions of '" + std::string(isa) +
                               "' (" + core::describe_cpu() + "); leave the choice to the program");
  }
  if (isa.empty()) return &best->kernels;
  return core::invalid_argument("no instruction set is called '" + std::string(isa) +
                                "'; this build knows " + known);
}

}  // namespace tandem::kernels::cpu
