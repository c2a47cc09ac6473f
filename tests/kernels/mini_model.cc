#include "mini_model.h"

#include <algorithm>
#include <cmath>

#include "tandem/core/check.h"

namespace tandem::test {
namespace {

using core::DType;
using kernels::AttentionKind;
using kernels::Rows;
using kernels::RowSet;

constexpr int kDraftWidth = 256;

Dims mini_dims() {
  Dims dims;
  dims.hidden = 256;
  dims.ffn = 256;
  dims.ple = 256;
  dims.layers = 4;
  dims.vocab = 96;
  dims.heads = 4;
  dims.kv_heads = 2;
  dims.head_size = {64, 128};
  dims.window = 24;
  dims.max_rows = 256;
  dims.expert_ffn = 256;
  return dims;
}

}  // namespace

MiniModel::MiniModel(const BackendFactory& factory, DType dtype) : rig_(factory, mini_dims()) {
  const Dims& d = rig_.dims();
  embedding_ = rig_.table(dtype, d.vocab, d.hidden, 1);
  const int ple_width = d.layers * d.ple;
  ple_inputs_ = {rig_.table(dtype, d.vocab, ple_width, 2, kernels::WeightRole::kTable),
                 rig_.linear(dtype, ple_width, d.hidden, 3), rig_.norm(d.ple, 4)};
  constexpr std::array kKinds = {AttentionKind::kSliding, AttentionKind::kFull,
                                 AttentionKind::kSliding, AttentionKind::kFull};
  for (std::size_t l = 0; l < kKinds.size(); ++l) {
    const auto seed = static_cast<std::uint32_t>(100 * (l + 1));
    Layer layer;
    layer.attention = rig_.attention_weights(dtype, kKinds[l], d.hidden, l < 2, false, seed);
    layer.spec = rig_.attention_spec(kKinds[l], 0);
    layer.spec.last_kv_owner = l == 1;
    if (l == 1) {
      layer.moe = rig_.moe_weights(dtype, dtype, seed + 50);
    } else {
      layer.ffn = rig_.ffn_weights(dtype, d.hidden, d.ffn, seed + 20);
    }
    layer.ple = {rig_.linear(dtype, d.ple, d.hidden, seed + 30),
                 rig_.linear(dtype, d.hidden, d.ple, seed + 31), rig_.norm(d.hidden, seed + 32)};
    layers_.push_back(layer);
  }
  head_ = {rig_.norm(d.hidden, 5), embedding_, 30.0F};

  draft_ends_.target_embedding = embedding_;
  draft_ends_.pre_projection = rig_.linear(dtype, kDraftWidth, 2 * d.hidden, 6);
  draft_ends_.post_projection = rig_.linear(dtype, d.hidden, kDraftWidth, 7);
  draft_ends_.head = {rig_.norm(kDraftWidth, 8), rig_.table(dtype, d.vocab, kDraftWidth, 9), 0.0F};
  draft_ends_.embedding_scale = std::sqrt(static_cast<float>(d.hidden));
  if (dtype == DType::kQ8_0 || dtype == DType::kF8E4M3) {
    draft_ends_.centroids = rig_.centroid_head(dtype, kDraftWidth, 8, 3, 10);
  }
  for (std::size_t l = 0; l < 2; ++l) {
    const auto seed = static_cast<std::uint32_t>(1000 + 100 * l);
    Layer layer;
    layer.attention = rig_.attention_weights(dtype, kKinds[l], kDraftWidth, false, false, seed);
    layer.spec = rig_.attention_spec(kKinds[l], 0);
    layer.ffn = rig_.ffn_weights(dtype, kDraftWidth, d.ffn, seed + 20);
    draft_layers_.push_back(layer);
  }
  x_ = rig_.rows(d.max_rows, d.hidden, RowSet::kStep);
  h_ = rig_.rows(d.max_rows, d.hidden, RowSet::kStep);
  ple_ = rig_.rows(d.max_rows, ple_width, RowSet::kStep);
  draft_x_ = rig_.rows(d.max_sequences, kDraftWidth, RowSet::kDraft);
}

void MiniModel::forward(const kernels::Backend::StepShape& shape) {
  kernels::Backend& backend = rig_.backend();
  Rows x = x_.prefix(shape.rows);
  backend.embed(*embedding_, std::sqrt(static_cast<float>(width())), x);
  backend.ple_inputs(ple_inputs_, x, ple_.prefix(shape.rows));
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    backend.attention(layer.attention, layer.spec, x);
    if (layer.spec.last_kv_owner) x = x.prefix(shape.kept_rows);
    if (x.rows == 0) return;
    if (layer.moe.experts.empty()) {
      backend.ffn(layer.ffn, 1.0F, x);
    } else {
      backend.moe(layer.moe, 1.0F, x);
    }
    backend.ple(layer.ple, ple_.prefix(x.rows), static_cast<int>(l), 0.8F, x);
  }
  backend.final_norm(head_, x, h_.prefix(shape.kept_rows));
  backend.verify(head_, h_.prefix(shape.kept_rows));
}

void MiniModel::draft(const kernels::StepPlan& plan, const kernels::Backend::StepShape& shape) {
  kernels::Backend& backend = rig_.backend();
  for (int i = 0; i < shape.draft_steps; ++i) {
    const auto drafts_more = [i](const kernels::Span& span) {
      return span.next_drafts > i && span.samples();
    };
    const Rows x = draft_x_.prefix(
        static_cast<int>(std::count_if(plan.spans.begin(), plan.spans.end(), drafts_more)));
    backend.draft_input(draft_ends_, i, x);
    for (const Layer& layer : draft_layers_) {
      backend.attention(layer.attention, layer.spec, x);
      backend.ffn(layer.ffn, 0.9F, x);
    }
    backend.draft_head(draft_ends_, i, x);
  }
}

kernels::StepResult MiniModel::step(const kernels::StepPlan& plan) {
  const kernels::Backend::StepShape shape = rig_.backend().begin_step(plan);
  forward(shape);
  draft(plan, shape);
  auto result = rig_.backend().end_step();
  TANDEM_CHECK(result.ok(), result.status().message().c_str());
  return std::move(result).value();
}

std::vector<float> MiniModel::hidden_row(int r) {
  return rig_.read({h_.data + static_cast<std::ptrdiff_t>(r) * h_.cols, 1, h_.cols, h_.set});
}

}  // namespace tandem::test
