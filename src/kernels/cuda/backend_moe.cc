// The mixture-of-experts part of a layer.

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

}  // namespace

ExpertArguments CudaBackend::expert_arguments(const MoeWeights& w) {
  const Weight* key = w.experts.front().gate;
  ExpertArguments a;
  a.experts = static_cast<int>(w.experts.size());
  a.top_k = w.top_k;
  a.width = static_cast<int>(w.experts.front().down->rows());
  a.ffn = static_cast<int>(w.experts.front().gate->rows());
  DeviceBuffer& views = expert_views_[key];
  if (views.size() == 0) {
    std::vector<ExpertViews> host;
    for (const ExpertWeights& e : w.experts) {
      host.push_back({matrix(e.gate), matrix(e.up), matrix(e.down)});
      if (host.back().gate.input != host.front().gate.input ||
          host.back().up.input != host.front().gate.input ||
          host.back().down.input != host.front().down.input) {
        check(
            core::unimplemented("experts of a layer round their inputs to e4m3 in different "
                                "ways, which is not built for CUDA; use --device cpu"));
      }
    }
    auto copied = DeviceBuffer::copy_of(host);
    check(copied.status());
    if (copied.ok()) views = *std::move(copied);
  }
  const std::size_t entries =
      static_cast<std::size_t>(geometry_.max_rows) * static_cast<std::size_t>(a.top_k);
  grow(route_weights_, entries * sizeof(float));
  grow(chosen_experts_, entries * sizeof(std::int32_t));
  grow(expert_entries_, entries * sizeof(std::int32_t));
  grow(expert_offsets_, (kMaxExperts + 1) * sizeof(std::int32_t));
  grow(expert_outputs_, entries * static_cast<std::size_t>(a.width) * sizeof(float));
  grow(dense_outputs_, static_cast<std::size_t>(geometry_.max_rows) *
                           static_cast<std::size_t>(a.width) * sizeof(float));
  a.views = views.as<ExpertViews>();
  a.weights = route_weights_.as<float>();
  a.chosen = chosen_experts_.as<std::int32_t>();
  a.entries = expert_entries_.as<std::int32_t>();
  a.offsets = expert_offsets_.as<std::int32_t>();
  return a;
}

void CudaBackend::moe(const MoeWeights& w, float scale, Rows x) {
  if (is_replay()) return;
  const GemmGroup& gate_up = group({w.shared.gate, w.shared.up});
  const GemmGroup& down = group({w.shared.down});
  const GemmGroup& router = group({w.router});
  const ExpertArguments a = expert_arguments(w);
  const int n = count(x), entries = n * a.top_k;
  float* const dense = dense_outputs_.as<float>();
  const HalfRows gated = gated_input(gate_up, down, w.shared, x);
  residual_norm({multiply(down, gated, n), 0, vector(w.shared_post_norm), 1.0F, true}, dense, n,
                x.cols, geometry_.rms_eps, nullptr, {}, nullptr, broken(x.set), stream_);
  const Partials scores =
      multiply(router, next_input(HalfUse::kRouter, x, w.router_scale, router.input()), n);
  route_rows(scores, 1.0F / std::sqrt(static_cast<float>(x.cols)), vector(w.expert_scale), n, a,
             stream_);
  const ExpertWeights& first = w.experts.front();
  const InputForm form = matrix(first.gate).input;
  const HalfRows input =
      rounded_input(form, next_input(HalfUse::kExperts, x, w.experts_norm, form), n);
  const HalfRows hidden = half_rows(HalfUse::kExpertGated, a.ffn, geometry_.max_rows * a.top_k);
  expert_gates(a, input, hidden, broken(x.set), stream_);
  expert_downs(
      a, rounded_input(matrix(first.down).input, hidden, entries, geometry_.max_rows * a.top_k),
      expert_outputs_.as<float>(), stream_);
  mix_experts(a, expert_outputs_.as<float>(), dense, vector(w.experts_post_norm),
              vector(w.shared.post_norm), geometry_.rms_eps, scale, n, x.data, stream_);
  check_launch();
}

}  // namespace tandem::kernels::cuda
