#pragma once

#include <memory>
#include <string>
#include <utility>

#include "tandem/kernels/backend.h"

namespace tandem::testing {

/// Hands every call on to another backend. A test derives from it what it wants to be different.
class ForwardingBackend : public kernels::Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<kernels::Backend> inner) : inner_(std::move(inner)) {}

  using Rows = kernels::Rows;
  using Weight = kernels::Weight;

  bool runs_ahead() const override { return inner_->runs_ahead(); }
  std::string describe() const override { return inner_->describe(); }
  core::Status configure(const kernels::Geometry& g) override { return inner_->configure(g); }
  kernels::KvLayout kv_layout() const override { return inner_->kv_layout(); }
  core::Result<std::unique_ptr<Weight>> pack(const kernels::WeightView& view,
                                             kernels::WeightRole role,
                                             std::string_view name) override {
    return inner_->pack(view, role, name);
  }
  core::Result<Rows> allocate_rows(int max_rows, int cols, kernels::RowSet set) override {
    return inner_->allocate_rows(max_rows, cols, set);
  }
  void read(const Rows& rows, std::span<float> host) override { inner_->read(rows, host); }
  void write(const Rows& rows, std::span<const float> host) override { inner_->write(rows, host); }
  void set_slot(int slot, const kernels::SamplingParams& sampling) override {
    inner_->set_slot(slot, sampling);
  }
  kernels::SlotSnapshot read_slot(int slot) override { return inner_->read_slot(slot); }
  StepShape begin_step(const kernels::StepPlan& plan) override { return inner_->begin_step(plan); }
  void embed(const Weight& table, float scale, Rows x) override { inner_->embed(table, scale, x); }
  void ple_inputs(const kernels::PleInputWeights& w, Rows x, Rows ple) override {
    inner_->ple_inputs(w, x, ple);
  }
  void attention(const kernels::AttentionWeights& w, const kernels::AttentionSpec& spec,
                 Rows x) override {
    inner_->attention(w, spec, x);
  }
  void ffn(const kernels::FfnWeights& w, float scale, Rows x) override { inner_->ffn(w, scale, x); }
  void moe(const kernels::MoeWeights& w, float scale, Rows x) override { inner_->moe(w, scale, x); }
  void ple(const kernels::PleLayerWeights& w, Rows ple, int layer, float scale, Rows x) override {
    inner_->ple(w, ple, layer, scale, x);
  }
  void final_norm(const kernels::Head& head, Rows x, Rows h) override {
    inner_->final_norm(head, x, h);
  }
  void logits(const kernels::Head& head, Rows h, Rows out) override {
    inner_->logits(head, h, out);
  }
  void verify(const kernels::Head& head, Rows h) override { inner_->verify(head, h); }
  void draft_input(const kernels::DraftWeights& w, int i, Rows x) override {
    inner_->draft_input(w, i, x);
  }
  void draft_head(const kernels::DraftWeights& w, int i, Rows x) override {
    inner_->draft_head(w, i, x);
  }
  core::Result<kernels::StepResult> end_step() override { return inner_->end_step(); }

 private:
  std::unique_ptr<kernels::Backend> inner_;
};

}  // namespace tandem::testing
