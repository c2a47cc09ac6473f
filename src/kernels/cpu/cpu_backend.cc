#include "tandem/kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "tandem/core/check.h"
#include "tandem/kernels/cpu/attention_task.h"
#include "tandem/kernels/cpu/kv_layout.h"
#include "tandem/kernels/cpu/ops.h"
#include "tandem/kernels/cpu/read_rate.h"
#include "tandem/kernels/cpu/sizes.h"
#include "tandem/kernels/cpu/weights.h"

namespace tandem::kernels {
namespace cpu {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, const MatmulKernels& matmul, const RowKernels& kernels) : c_(threads) {
    c_.matmul = &matmul;
    c_.kernels = &kernels;
  }

  std::string describe() const override {
    const int threads = c_.team.size();
    return "cpu (" + std::string(c_.kernels->isa) + ", " + std::to_string(threads) +
           (threads == 1 ? " thread)" : " threads)");
  }
  core::Result<double> read_rate() override { return measure_read_rate(c_.team); }
  core::Status configure(const Geometry& geometry) override;
  KvLayout kv_layout() const override { return c_.kv.layout(); }
  core::Result<std::unique_ptr<Weight>> pack(const WeightView& view, WeightRole role,
                                             std::string_view name) override;
  core::Result<Rows> allocate_rows(int max_rows, int cols, RowSet set) override;
  void read(const Rows& rows, std::span<float> host) override;
  void write(const Rows& rows, std::span<const float> host) override;
  void set_slot(int slot, const SamplingParams& sampling) override {
    c_.step.set_slot(slot, sampling);
  }
  SlotSnapshot read_slot(int slot) override { return c_.step.read_slot(slot); }

  StepShape begin_step(const StepPlan& plan) override {
    c_.rope.reset(RowSet::kStep);
    return c_.step.begin(plan);
  }
  void embed(const Weight& table, float scale, Rows x) override { cpu::embed(c_, table, scale, x); }
  void ple_inputs(const PleInputWeights& w, Rows x, Rows ple) override {
    cpu::ple_inputs(c_, w, x, ple);
  }
  void attention(const AttentionWeights& w, const AttentionSpec& spec, Rows x) override {
    cpu::attention(c_, w, spec, x);
  }
  void ffn(const FfnWeights& w, float scale, Rows x) override { cpu::ffn(c_, w, scale, x); }
  void moe(const MoeWeights& w, float scale, Rows x) override { cpu::moe(c_, w, scale, x); }
  void ple(const PleLayerWeights& w, Rows ple, int layer, float scale, Rows x) override {
    cpu::ple(c_, w, ple, layer, scale, x);
  }
  void final_norm(const Head& head, Rows x, Rows h) override { cpu::final_norm(c_, head, x, h); }
  void logits(const Head& head, Rows h, Rows out) override { cpu::logits(c_, head, h, out); }
  void verify(const Head& head, Rows h) override { cpu::verify(c_, head, h); }
  void draft_input(const DraftWeights& w, int i, Rows x) override { cpu::draft_input(c_, w, i, x); }
  void draft_head(const DraftWeights& w, int i, Rows x) override { cpu::draft_head(c_, w, i, x); }
  core::Result<StepResult> end_step() override;

 private:
  core::Status reserve_members(int max_rows, int max_head_size);
  core::Status fit_workspace(const Weight& w, WeightRole role);
  core::Status check_e4m3_group(const PackedMatrix& w, std::string_view name);

  Context c_;
  std::vector<core::Arena> row_memory_;
  int max_rows_ = 0;
  int max_inputs_ = 0;
  int max_outputs_ = 0;
  int e4m3_group_ = 0;  // of all weights that are wider than one
};

core::Status check_shapes(const Geometry& geometry) {
  for (const KvLayerSpec& layer : geometry.kv_layers) {
    const auto& f = geometry.rope_frequencies[index_of(layer.kind)];
    const std::string size = std::to_string(layer.head_size);
    const int unit = geometry.kv_type == KvType::kInt8 ? 32 : 16;
    if (layer.head_size <= 0 || layer.head_size % unit != 0) {
      return core::unimplemented("a KV layer has head size " + size +
                                 "; the CPU backend runs multiples of " + std::to_string(unit) +
                                 (unit == 32 ? " with an int8 cache" : ""));
    }
    if (f.size() != static_cast<std::size_t>(layer.head_size / 2)) {
      return core::unimplemented("a KV layer has head size " + size + ", but its kind has " +
                                 std::to_string(f.size()) +
                                 " rotary frequencies; one head size per kind is supported");
    }
  }
  return {};
}

core::Status CpuBackend::configure(const Geometry& geometry) {
  TANDEM_TRY(check_shapes(geometry));
  c_.geometry = geometry;
  c_.step.configure(geometry);
  const std::size_t code_bytes = geometry.kv_type == KvType::kInt8 ? 1 : 2;
  TANDEM_TRY(c_.kv.configure(geometry, kPageTokens, code_bytes, kScaleBytes));
  TANDEM_TRY(c_.rope.configure(geometry));

  max_rows_ = std::max({geometry.max_rows, geometry.max_kept_rows, geometry.max_sequences});
  int max_head_size = 16;
  for (const KvLayerSpec& layer : geometry.kv_layers) {
    max_head_size = std::max(max_head_size, layer.head_size);
  }
  TANDEM_TRY(c_.attention.configure(max_head_size));
  TANDEM_TRY(reserve_members(max_rows_, max_head_size));

  const std::size_t logit_row = static_cast<std::size_t>(geometry.vocab) * sizeof(float);
  c_.logit_rows = std::clamp(static_cast<int>(kLogitBytes / logit_row), 1, max_rows_);
  TANDEM_ASSIGN(c_.logits, core::Arena::reserve(static_cast<std::size_t>(c_.logit_rows) * logit_row,
                                                /*huge_pages=*/false));
  c_.chosen.reserve(static_cast<std::size_t>(max_rows_));
  c_.full_logits.reserve(static_cast<std::size_t>(max_rows_));
  return {};
}

core::Status CpuBackend::reserve_members(int max_rows, int max_head_size) {
  const std::size_t floats = static_cast<std::size_t>(std::max(kScratchFloats, 16 * max_rows));
  c_.members.resize(static_cast<std::size_t>(c_.team.size()));
  for (MemberScratch& member : c_.members) {
    TANDEM_ASSIGN(member.attention,
                  core::Arena::reserve(AttentionRunner::scratch_bytes(max_head_size),
                                       /*huge_pages=*/false));
    TANDEM_ASSIGN(member.floats,
                  core::Arena::reserve(floats * sizeof(float), /*huge_pages=*/false));
    member.best.resize(static_cast<std::size_t>(max_rows));
  }
  return {};
}

core::Result<std::unique_ptr<Weight>> CpuBackend::pack(const WeightView& view, WeightRole role,
                                                       std::string_view name) {
  if (role == WeightRole::kTokenIds) {
    TANDEM_ASSIGN(std::vector<TokenId> ids, read_token_ids(view, c_.geometry.vocab, name));
    return std::unique_ptr<Weight>(std::make_unique<TokenIdsWeight>(std::move(ids)));
  }
  TANDEM_TRY(view.check(name));
  if (role == WeightRole::kVector) return VectorWeight::create(view);
  if (role == WeightRole::kTable) {
    return std::unique_ptr<Weight>(std::make_unique<TableWeight>(view));
  }
  TANDEM_ASSIGN(std::unique_ptr<PackedMatrix> packed, pack_matrix(view, c_.team, name));
  TANDEM_TRY(check_e4m3_group(*packed, name));
  TANDEM_TRY(fit_workspace(*packed, role));
  if (role == WeightRole::kExpert) {
    TANDEM_TRY(c_.moe.fit(static_cast<int>(view.cols()), static_cast<int>(view.rows())));
  }
  return std::unique_ptr<Weight>(std::move(packed));
}

/// All weights of a phase read one rounded form. A row that is no wider than a group has the same
/// form in either scheme.
core::Status CpuBackend::check_e4m3_group(const PackedMatrix& w, std::string_view name) {
  constexpr int kWidestGroup = 128;
  const int group = w.input_forms().e4m3_group;
  if (group == 0 || (group == kWholeRow && w.cols() <= kWidestGroup)) return {};
  if (e4m3_group_ == 0) e4m3_group_ = group;
  if (e4m3_group_ == group) return {};
  return core::unimplemented("tensor " + std::string(name) +
                             " scales its activations in other groups than the tensors before it; "
                             "the CPU backend runs one scheme per model");
}

/// Makes the scratch rows wide enough for a weight's inputs and outputs.
core::Status CpuBackend::fit_workspace(const Weight& w, WeightRole role) {
  const int inputs = std::max(max_inputs_, static_cast<int>(w.cols()));
  // A head's outputs never exist for all rows at once.
  const int outputs = role == WeightRole::kLinear
                          ? std::max(max_outputs_, static_cast<int>(w.rows()))
                          : max_outputs_;
  if (inputs == max_inputs_ && outputs == max_outputs_) return {};
  max_inputs_ = inputs;
  max_outputs_ = outputs;
  return c_.workspace.reserve(max_rows_, inputs, outputs);
}

core::Result<Rows> CpuBackend::allocate_rows(int max_rows, int cols, RowSet set) {
  const std::size_t bytes =
      static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(cols) * sizeof(float);
  TANDEM_ASSIGN(core::Arena arena, core::Arena::reserve(bytes, /*huge_pages=*/false));
  row_memory_.push_back(std::move(arena));
  return Rows{row_memory_.back().as<float>(), max_rows, cols, set};
}

void CpuBackend::read(const Rows& rows, std::span<float> host) {
  TANDEM_CHECK(host.size() == static_cast<std::size_t>(rows.rows) * rows.cols, "wrong size");
  if (!host.empty()) std::memcpy(host.data(), rows.data, host.size_bytes());
}

void CpuBackend::write(const Rows& rows, std::span<const float> host) {
  TANDEM_CHECK(host.size() == static_cast<std::size_t>(rows.rows) * rows.cols, "wrong size");
  if (!host.empty()) std::memcpy(rows.data, host.data(), host.size_bytes());
}

core::Result<StepResult> CpuBackend::end_step() {
  return c_.step.take_result();
}

}  // namespace
}  // namespace cpu

core::Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options) {
  if (options.threads < 0) return core::invalid_argument("the number of threads is negative");
  TANDEM_ASSIGN(const cpu::MatmulKernels* matmul, cpu::matmul_kernels(options.isa));
  const cpu::RowKernels* kernels = cpu::row_kernels(matmul->isa);
  if (kernels == nullptr) {
    return core::unimplemented("this build has no kernels for " + std::string(matmul->isa));
  }
  const int threads = options.threads == 0 ? core::usable_cores() : options.threads;
  return std::unique_ptr<Backend>(std::make_unique<cpu::CpuBackend>(threads, *matmul, *kernels));
}

}  // namespace tandem::kernels
