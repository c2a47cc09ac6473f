#include <algorithm>
#include <cmath>
#include <vector>

#include "tandem/kernels/reference/backend_impl.h"

// The mixture of experts, spec/model.md section 7.

namespace tandem::kernels::reference {

/// The top_k experts of every row, by row and ascending expert.
std::vector<Route> ReferenceBackend::routes(const MoeWeights& w, Rows x) {
  const std::span<const float> scale = vector(w.router_scale);
  const float width_scale = 1.0F / std::sqrt(static_cast<float>(x.cols));
  const Rows z = normed(x, nullptr);
  for (int r = 0; r < z.rows; ++r) {
    for (std::size_t i = 0; i < scale.size(); ++i) row(z, r)[i] *= scale[i] * width_scale;
  }
  const Rows logits = linear(w.router, z, gate_);
  std::vector<Route> all;
  for (int r = 0; r < x.rows; ++r) {
    const std::span<float> p = row(logits, r);
    softmax(p);
    std::vector<int> experts = largest(p, w.top_k);
    std::sort(experts.begin(), experts.end());
    float total = 0.0F;
    for (const int e : experts) total += p[static_cast<std::size_t>(e)];
    for (const int e : experts) {
      const auto i = static_cast<std::size_t>(e);
      const float expert_scale = w.expert_scale != nullptr ? vector(w.expert_scale)[i] : 1.0F;
      all.push_back({r, e, p[i] / total * expert_scale});
    }
  }
  return all;
}

/// sum_e w_e * expert_e(rms(x) * experts_norm).
Rows ReferenceBackend::mix_experts(const MoeWeights& w, Rows x) {
  const std::vector<Route> chosen = routes(w, x);
  const Rows y = normed(x, w.experts_norm);
  const Rows out = mixed_.rows(x.rows, x.cols);
  std::fill_n(out.data, static_cast<std::size_t>(out.rows) * out.cols, 0.0F);
  for (const Route& route : chosen) {
    const ExpertWeights& e = w.experts[static_cast<std::size_t>(route.expert)];
    const Rows one = gated(e.gate, e.up, e.down, {row(y, route.row).data(), 1, y.cols});
    for (std::size_t i = 0; i < static_cast<std::size_t>(out.cols); ++i) {
      row(out, route.row)[i] += route.weight * row(one, 0)[i];
    }
  }
  return out;
}

void ReferenceBackend::moe(const MoeWeights& w, float scale, Rows x) {
  TANDEM_CHECK(w.top_k >= 1 && w.top_k <= static_cast<int>(w.experts.size()),
               "a row takes at least one expert and at most all");
  const Rows mixed = mix_experts(w, x);
  norm_rows(mixed, w.experts_post_norm);
  const Rows dense = gated(w.shared.gate, w.shared.up, w.shared.down, normed(x, w.shared.norm));
  norm_rows(dense, w.shared_post_norm);
  for (int r = 0; r < x.rows; ++r) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(x.cols); ++i) {
      row(dense, r)[i] += row(mixed, r)[i];
    }
  }
  add_normed(dense, w.shared.post_norm, scale, x);
}

}  // namespace tandem::kernels::reference
