#include "tandem/model/dry_run_backend.h"

#include <algorithm>

#include "tandem/core/check.h"

namespace tandem::model {
namespace {

using kernels::Rows;
using kernels::Weight;

class ShapeOnly final : public Weight {
 public:
  explicit ShapeOnly(const kernels::WeightView& view) : rows_(view.rows()), cols_(view.cols()) {}
  std::int64_t rows() const override { return rows_; }
  std::int64_t cols() const override { return cols_; }
  std::size_t bytes() const override { return 0; }

 private:
  std::int64_t rows_, cols_;
};

class DryRunBackend final : public kernels::Backend {
 public:
  DryRunBackend(DryRunTotals* totals, const kernels::Backend* sizes)
      : totals_(totals), sizes_(sizes) {}

  std::string describe() const override { return "dry run"; }
  core::Status configure(const kernels::Geometry&) override { return {}; }
  kernels::KvLayout kv_layout() const override { return {}; }

  core::Result<std::unique_ptr<Weight>> pack(const kernels::WeightView& view,
                                             kernels::WeightRole role,
                                             std::string_view name) override {
    if (role != kernels::WeightRole::kTokenIds) TANDEM_TRY(view.check(name));
    if (totals_ != nullptr) count(view, role);
    return std::unique_ptr<Weight>(std::make_unique<ShapeOnly>(view));
  }

  core::Result<Rows> allocate_rows(int max_rows, int cols, kernels::RowSet set) override {
    const Rows rows = {nullptr, max_rows, cols, set};
    if (totals_ != nullptr) {
      totals_->row_bytes +=
          sizeof(float) * static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(cols);
    }
    return rows;
  }
  void read(const Rows&, std::span<float>) override { refuse(); }
  void write(const Rows&, std::span<const float>) override { refuse(); }
  void set_slot(int, const kernels::SamplingParams&) override { refuse(); }
  kernels::SlotSnapshot read_slot(int) override { return refuse(), kernels::SlotSnapshot(); }
  StepShape begin_step(const kernels::StepPlan&) override { return refuse(), StepShape(); }
  void embed(const Weight&, float, Rows) override { refuse(); }
  void ple_inputs(const kernels::PleInputWeights&, Rows, Rows) override { refuse(); }
  void attention(const kernels::AttentionWeights&, const kernels::AttentionSpec&, Rows) override {
    refuse();
  }
  void ffn(const kernels::FfnWeights&, float, Rows) override { refuse(); }
  void moe(const kernels::MoeWeights&, float, Rows) override { refuse(); }
  void ple(const kernels::PleLayerWeights&, Rows, int, float, Rows) override { refuse(); }
  void final_norm(const kernels::Head&, Rows, Rows) override { refuse(); }
  void logits(const kernels::Head&, Rows, Rows) override { refuse(); }
  void verify(const kernels::Head&, Rows) override { refuse(); }
  void draft_input(const kernels::DraftWeights&, int, Rows) override { refuse(); }
  void draft_head(const kernels::DraftWeights&, int, Rows) override { refuse(); }
  core::Result<kernels::StepResult> end_step() override {
    return refuse(), core::internal_error("a dry run has no steps");
  }

 private:
  void count(const kernels::WeightView& view, kernels::WeightRole role) {
    const std::size_t bytes = packed_bytes(view, role);
    if (role != kernels::WeightRole::kTable) {
      totals_->packed_bytes += bytes;
    } else {
      totals_->table_bytes += bytes;
      if (bytes == 0) totals_->in_file_bytes += view.bytes();
    }
    if (role == kernels::WeightRole::kVector || role == kernels::WeightRole::kTable) return;
    const core::DType dtype = view.tensor.dtype;
    if (view.e4m3_group > 0) {
      totals_->max_e4m3_inputs = std::max(totals_->max_e4m3_inputs, static_cast<int>(view.cols()));
    } else if (core::is_block_quantized(dtype) || dtype == core::DType::kU8) {
      totals_->max_code_inputs = std::max(totals_->max_code_inputs, static_cast<int>(view.cols()));
    }
  }

  /// By the backend's word; else packed weights are as large as the file's, vectors are kept in f32
  /// and tables stay in the file.
  std::size_t packed_bytes(const kernels::WeightView& view, kernels::WeightRole role) const {
    if (sizes_ != nullptr) return sizes_->packed_bytes(view, role);
    if (role == kernels::WeightRole::kTable) return 0;
    if (role != kernels::WeightRole::kVector) return view.bytes();
    return sizeof(float) * static_cast<std::size_t>(view.cols());
  }

  static void refuse() { TANDEM_CHECK(false, "the dry-run backend runs no step"); }

  DryRunTotals* totals_;
  const kernels::Backend* sizes_;
};

}  // namespace

std::unique_ptr<kernels::Backend> make_dry_run_backend(DryRunTotals* totals,
                                                       const kernels::Backend* sizes) {
  return std::make_unique<DryRunBackend>(totals, sizes);
}

}  // namespace tandem::model
