#include "tandem/model/load_moe.h"

namespace tandem::model {
namespace {

using kernels::ExpertWeights;
using kernels::Weight;
using kernels::WeightRole;
using kernels::WeightView;

/// Packs the `parts` of each expert's rows in a tensor [X, sum of the parts' rows, cols]; all parts
/// have `rows` rows.
core::Status load_stacked(TensorPacker& pack, TensorKey key, std::int64_t rows, std::int64_t cols,
                          std::vector<ExpertWeights>& experts,
                          std::initializer_list<const Weight * ExpertWeights::*> parts) {
  const auto count = static_cast<std::int64_t>(experts.size());
  const std::int64_t expert_rows = rows * static_cast<std::int64_t>(parts.size());
  TANDEM_ASSIGN(const WeightView all, pack.find(key, count * expert_rows, cols));
  for (std::int64_t e = 0; e < count; ++e) {
    // First the expert: a scale of its own then spans every part.
    const WeightView expert = all.slice(e * expert_rows, expert_rows);
    std::int64_t first = 0;
    for (const Weight* ExpertWeights::*part : parts) {
      TANDEM_TRY(pack.pack(key, expert.slice(first, rows), WeightRole::kExpert,
                           experts[static_cast<std::size_t>(e)].*part));
      first += rows;
    }
  }
  return {};
}

core::Status load_gate_and_up(TensorPacker& pack, int l, int ffn, int hidden,
                              std::vector<ExpertWeights>& experts) {
  if (pack.has({TensorRole::kExpertsGate, l})) {
    TANDEM_TRY(load_stacked(pack, {TensorRole::kExpertsGate, l}, ffn, hidden, experts,
                            {&ExpertWeights::gate}));
    return load_stacked(pack, {TensorRole::kExpertsUp, l}, ffn, hidden, experts,
                        {&ExpertWeights::up});
  }
  return load_stacked(pack, {TensorRole::kExpertsGateUp, l}, ffn, hidden, experts,
                      {&ExpertWeights::gate, &ExpertWeights::up});
}

core::Status load_split(TensorPacker& pack, int l, int ffn, int hidden,
                        std::vector<ExpertWeights>& experts) {
  for (int e = 0; e < static_cast<int>(experts.size()); ++e) {
    ExpertWeights& w = experts[static_cast<std::size_t>(e)];
    const WeightRole use = WeightRole::kExpert;
    TANDEM_TRY(pack.matrix({TensorRole::kExpertGate, l, e}, ffn, hidden, use, w.gate));
    TANDEM_TRY(pack.matrix({TensorRole::kExpertUp, l, e}, ffn, hidden, use, w.up));
    TANDEM_TRY(pack.matrix({TensorRole::kExpertDown, l, e}, hidden, ffn, use, w.down));
  }
  return {};
}

}  // namespace

core::Status load_moe(TensorPacker& pack, int l, const ModelConfig& config,
                      const kernels::FfnWeights& shared, kernels::MoeWeights& w) {
  const int hidden = config.hidden;
  w.shared = shared;
  w.top_k = config.experts_per_token;
  w.experts.resize(static_cast<std::size_t>(config.experts));
  TANDEM_TRY(pack.vector({TensorRole::kPostDenseNorm, l}, hidden, w.shared_post_norm));
  TANDEM_TRY(pack.linear({TensorRole::kRouter, l}, config.experts, hidden, w.router));
  TANDEM_TRY(pack.vector({TensorRole::kRouterScale, l}, hidden, w.router_scale));
  if (pack.has({TensorRole::kExpertScale, l})) {
    TANDEM_TRY(pack.vector({TensorRole::kExpertScale, l}, config.experts, w.expert_scale));
  }
  TANDEM_TRY(pack.vector({TensorRole::kExpertsNorm, l}, hidden, w.experts_norm));
  TANDEM_TRY(pack.vector({TensorRole::kPostExpertsNorm, l}, hidden, w.experts_post_norm));
  if (pack.has({TensorRole::kExpertGate, l})) {
    return load_split(pack, l, config.expert_ffn, hidden, w.experts);
  }
  TANDEM_TRY(load_gate_and_up(pack, l, config.expert_ffn, hidden, w.experts));
  return load_stacked(pack, {TensorRole::kExpertsDown, l}, hidden, config.expert_ffn, w.experts,
                      {&ExpertWeights::down});
}

}  // namespace tandem::model
