// The mixture-of-experts part of a layer.

#include <algorithm>
#include <cmath>
#include <utility>

#include "tandem/kernels/cuda/backend_impl.h"

namespace tandem::kernels::cuda {
namespace {

const MatrixView& matrix(const Weight* w) {
  TANDEM_CHECK(w != nullptr, "a weight of this operation is missing");
  return static_cast<const CudaWeight*>(w)->matrix();
}
const float* vector(const Weight* w) {
  return w == nullptr ? nullptr : static_cast<const CudaWeight*>(w)->vector();
}

core::Result<LayerExperts> layer_experts(const MoeWeights& w) {
  LayerExperts out;
  std::vector<ExpertViews> views;
  for (const ExpertWeights& e : w.experts) {
    views.push_back({matrix(e.gate), matrix(e.up), matrix(e.down)});
    const ExpertViews &v = views.back(), &first = views.front();
    if (v.gate.input != first.gate.input || v.up.input != first.gate.input ||
        v.down.input != first.down.input) {
      return core::unimplemented(
          "experts of a layer round their inputs to e4m3 in different ways, which is not built for "
          "CUDA; use --device cpu");
    }
    out.gate_bytes = std::max(out.gate_bytes, brick_bytes(v.gate.kind) + brick_bytes(v.up.kind));
    out.down_bytes = std::max(out.down_bytes, 2 * brick_bytes(v.down.kind));
  }
  TANDEM_ASSIGN(out.views, DeviceBuffer::copy_of(views));
  return core::Result<LayerExperts>(std::move(out));
}

}  // namespace

ExpertArguments CudaBackend::expert_arguments(const MoeWeights& w) {
  LayerExperts& layer = layer_experts_[w.experts.front().gate];
  if (layer.views.size() == 0) {
    auto made = layer_experts(w);
    check(made.status());
    if (made.ok()) layer = *std::move(made);
  }
  ExpertArguments a;
  a.experts = static_cast<int>(w.experts.size());
  a.top_k = w.top_k;
  a.width = static_cast<int>(w.experts.front().down->rows());
  a.ffn = static_cast<int>(w.experts.front().gate->rows());
  const std::size_t entries =
      static_cast<std::size_t>(geometry_.max_rows) * static_cast<std::size_t>(a.top_k);
  grow(experts_.weights, entries * sizeof(float));
  grow(experts_.chosen, entries * sizeof(std::int32_t));
  grow(experts_.entries, entries * sizeof(std::int32_t));
  grow(experts_.active, kMaxExperts * sizeof(ActiveExpert));
  grow(experts_.arrived, sizeof(std::int32_t));
  grow(experts_.outputs, entries * static_cast<std::size_t>(a.width) * sizeof(float));
  a.views = layer.views.as<ExpertViews>();
  a.gate_bytes = layer.gate_bytes;
  a.down_bytes = layer.down_bytes;
  a.weights = experts_.weights.as<float>();
  a.chosen = experts_.chosen.as<std::int32_t>();
  a.entries = experts_.entries.as<std::int32_t>();
  a.active = experts_.active.as<ActiveExpert>();
  a.arrived = experts_.arrived.as<std::int32_t>();
  return a;
}

// The dense branch goes between the router and the experts, and its last product behind them: what
// a kernel waits for is then old enough for its weights to be on their way before.
void CudaBackend::moe(const MoeWeights& w, float scale, Rows x) {
  if (is_replay()) return;
  const GemmGroup& gate_up = group({w.shared.gate, w.shared.up});
  const GemmGroup& down = group({w.shared.down});
  const GemmGroup& router = group({w.router});
  const ExpertArguments a = expert_arguments(w);
  const MatrixView &expert_gate = matrix(w.experts.front().gate),
                   &expert_down = matrix(w.experts.front().down);
  const int n = count(x), entries = n * a.top_k, most_entries = geometry_.max_rows * a.top_k;
  const auto input = [&](HalfUse use, const Weight* norm, InputForm form) {
    if (!is_e4m3_rows(form)) form = InputForm::kHalf;
    return NormedRows{vector(norm), rows_of_form(form, use, x.cols)};
  };
  // Rounding the router's input would take the memory of the dense branch's codes.
  const bool is_half = router.input() == InputForm::kHalf;
  const NormedRows of_dense =
      input(HalfUse::kNormed, w.shared.norm, is_half ? gate_up.input() : InputForm::kHalf);
  const NormedRows of_router = input(HalfUse::kRouter, w.router_scale, InputForm::kHalf);
  const NormedRows of_experts = input(HalfUse::kExperts, w.experts_norm, expert_gate.input);
  const bool is_of_x = pending_x_.data == x.data && pending_x_.rows == x.rows;
  if (!is_of_x || pending_ple_ || pending_mix_) flush_pending();
  expert_inputs(std::exchange(pending_, {}), x.data, n, x.cols, geometry_.rms_eps, of_dense,
                of_router, of_experts, broken(x.set), stream_);

  route_rows(multiply(router, of_router.out, n), 1.0F / std::sqrt(static_cast<float>(x.cols)),
             vector(w.expert_scale), n, a, stream_);
  const HalfRows gated = gated_input(gate_up, down, of_dense.out, w.shared, x);
  const HalfRows hidden = half_rows(HalfUse::kExpertGated, a.ffn, most_entries);
  expert_gates(a, rounded_input(expert_gate.input, of_experts.out, n), n, hidden, broken(x.set),
               stream_);
  expert_downs(a, rounded_input(expert_down.input, hidden, entries, most_entries), n,
               experts_.outputs.as<float>(), stream_);
  pending_mix_ = ExpertMix{a,
                           experts_.outputs.as<float>(),
                           multiply(down, gated, n),
                           vector(w.shared_post_norm),
                           vector(w.experts_post_norm),
                           vector(w.shared.post_norm),
                           scale};
  pending_x_ = x;
  check_launch();
}

}  // namespace tandem::kernels::cuda
