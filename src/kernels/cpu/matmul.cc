#include "tandem/kernels/cpu/matmul.h"

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "tandem/core/buffer.h"
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
  static void quantize_row(const float* x, int cols, const ActivationBuffer& out, int row) {
    TANDEM_CHECK(cols % 32 == 0 && cols <= out.max_cols(), "columns that the buffer cannot hold");
    TANDEM_CHECK(row >= 0 && row < out.max_rows(), "row outside the buffer");
    kernels.quantize_row(x, cols, out.row(row));
  }

  static void matmul(const PackedMatrix& w, const ActivationBuffer& codes, const float* x, int x_ld,
                     int num_rows, int panel_begin, int panel_end, float* out, int ld) {
    const PanelMatrix& matrix = static_cast<const PanelWeight&>(w).matrix();
    TANDEM_CHECK(panel_begin >= 0 && panel_end <= w.panels(), "panels outside the matrix");
    if (num_rows <= 0) return;
    Activations a;
    if (w.wants_codes()) {
      TANDEM_CHECK(num_rows <= codes.max_rows() && matrix.cols <= codes.max_cols(),
                   "more activations than the buffer holds");
      a.codes = codes.row(0);
      a.codes_stride = codes.stride();
    } else {
      a.x = x;
      a.x_stride = static_cast<std::size_t>(x_ld);
    }
    kernels.matmul(matrix, a, {num_rows, panel_begin, panel_end}, out,
                   static_cast<std::size_t>(ld));
  }

  static MatmulKernels table(IsaLevel level) {
    return {core::isa_name(level), quantize_row, matmul};
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
  buffer.stride_ = core::round_up<std::size_t>(groups, 8) + 4;
  const auto bytes =
      core::checked_mul(static_cast<std::size_t>(max_rows), buffer.stride_ * sizeof(CodeGroup));
  if (!bytes) return core::invalid_argument("activation rows and columns are out of range");
  TANDEM_ASSIGN(core::Arena arena, core::Arena::reserve(*bytes, /*huge_pages=*/true));
  const auto owner = std::make_shared<core::Arena>(std::move(arena));
  buffer.groups_ = std::shared_ptr<CodeGroup>(owner, owner->as<CodeGroup>());
  return buffer;
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
