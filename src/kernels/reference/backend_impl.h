#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/core/buffer.h"
#include "tandem/core/check.h"
#include "tandem/kernels/backend.h"
#include "tandem/kernels/host_kv.h"
#include "tandem/kernels/host_step.h"
#include "tandem/kernels/reference/reference_ops.h"
#include "tandem/kernels/reference/reference_weight.h"
#include "tandem/kernels/sampling.h"

namespace tandem::kernels::reference {

inline const ReferenceWeight& weight(const Weight* w) {
  TANDEM_CHECK(w != nullptr, "a weight of this operation is missing");
  return static_cast<const ReferenceWeight&>(*w);
}
inline std::span<const float> vector(const Weight* w) {
  return weight(w).vector();
}

/// Row r of x.
inline std::span<float> row(const Rows& x, int r) {
  return {x.data + static_cast<std::ptrdiff_t>(r) * x.cols, static_cast<std::size_t>(x.cols)};
}

/// Scratch rows that keep their memory from call to call.
class Workspace {
 public:
  Rows rows(int num_rows, int cols) {
    const std::size_t size = static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(cols);
    if (memory_.size() < size) memory_.resize(size);
    return {memory_.data(), num_rows, cols};
  }

 private:
  std::vector<float> memory_;
};

/// One expert of one row.
struct Route {
  int row = 0;
  int expert = 0;
  float weight = 0.0F;
};

class ReferenceBackend final : public Backend {
 public:
  std::string describe() const override { return "reference (f32, 1 thread)"; }

  core::Status configure(const Geometry& geometry) override;
  KvLayout kv_layout() const override { return kv_.layout(); }
  core::Result<std::unique_ptr<Weight>> pack(const WeightView& view, WeightRole role,
                                             std::string_view name) override {
    return ReferenceWeight::create(view, role, geometry_.vocab, name);
  }
  core::Result<Rows> allocate_rows(int max_rows, int cols, RowSet set) override;
  void read(const Rows& rows, std::span<float> host) override;
  void write(const Rows& rows, std::span<const float> host) override;
  void set_slot(int slot, const SamplingParams& sampling) override {
    step_.set_slot(slot, sampling);
  }
  SlotSnapshot read_slot(int slot) override { return step_.read_slot(slot); }

  StepShape begin_step(const StepPlan& plan) override { return step_.begin(plan); }
  void embed(const Weight& table, float scale, Rows x) override;
  void ple_inputs(const PleInputWeights& w, Rows x, Rows ple) override;
  void attention(const AttentionWeights& w, const AttentionSpec& spec, Rows x) override;
  void ffn(const FfnWeights& w, float scale, Rows x) override;
  void moe(const MoeWeights& w, float scale, Rows x) override;
  void ple(const PleLayerWeights& w, Rows ple, int layer, float scale, Rows x) override;
  void final_norm(const Head& head, Rows x, Rows h) override;
  void logits(const Head& head, Rows h, Rows out) override;
  void verify(const Head& head, Rows h) override;
  void draft_input(const DraftWeights& w, int i, Rows x) override;
  void draft_head(const DraftWeights& w, int i, Rows x) override;
  core::Result<StepResult> end_step() override;

 private:
  Rows normed(Rows x, const Weight* norm);
  Rows linear(const Weight* w, Rows x, Workspace& out);
  /// down(gelu_tanh(gate z) * (up z)), in projected_.
  Rows gated(const Weight* gate, const Weight* up, const Weight* down, Rows z);
  void norm_rows(Rows x, const Weight* norm);
  std::vector<Route> routes(const MoeWeights& w, Rows x);
  Rows mix_experts(const MoeWeights& w, Rows x);
  void add_normed(Rows delta, const Weight* post_norm, float scale, Rows x);
  void write_kv(const AttentionWeights& w, const AttentionSpec& spec, Rows z);
  void attend_row(const AttentionSpec& spec, const RowInfo& info, std::span<const float> q,
                  std::span<float> out);
  HeadCache cache(const AttentionSpec& spec, const RowInfo& info, int kv_head) const;
  std::span<const float> frequencies(AttentionKind kind) const {
    return geometry_.rope_frequencies[index_of(kind)];
  }
  void head_logits(const Head& head, Rows h, float* out);
  /// The drafter's choice for a row y of width d, by its logits or by its clusters' alone.
  TokenId draft_token(const DraftWeights& w, Rows y);
  TokenId best_of_clusters(const DraftWeights& w, Rows y, std::span<const float> logits);

  Geometry geometry_;
  HostStep step_;
  HostKv kv_;
  std::vector<core::Arena> row_memory_;
  Workspace normed_, q_, k_, v_, attended_, projected_, gate_, up_, logits_, mixed_, centroids_;
  std::vector<float> scores_;
  std::vector<TokenId> chosen_;
  SamplingScratch sampling_;
};

}  // namespace tandem::kernels::reference
