#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>

#include "tandem/core/check.h"
#include "tandem/kernels/cpu/ops.h"
#include "tandem/kernels/cpu/product.h"
#include "tandem/kernels/cpu/weights.h"

// The mixture of experts, spec/model.md section 7. Rows are taken in chunks; within a chunk every
// expert multiplies all rows that chose it at once. A row's sum runs over its experts in ascending
// order, whoever else is there.

namespace tandem::kernels::cpu {
namespace {

/// One chunk of rows.
class MoeOp {
 public:
  MoeOp(Context& c, const MoeWeights& w, float scale, Rows x);
  void work(Member& m);

 private:
  void normalize(int r);
  void route(int r);
  void choose(int r, float* p);
  void group_by_expert();
  void gather(int r);
  void combine(int r);
  /// Runs the tasks of both phases.
  static void run_claimed(Member& m, const ProductPhase& first, const ProductPhase& second);

  int routed(int r) const { return r * w_.top_k; }
  int num_experts() const { return static_cast<int>(w_.experts.size()); }
  int routed_rows() const { return routed(x_.rows); }

  Context& c_;
  const RowKernels& k_;
  Workspace& ws_;
  MoeWorkspace& moe_;
  const MoeWeights& w_;
  const float scale_;
  const Rows x_;
  const int width_;         // F of the dense branch
  const int expert_width_;  // F of the experts
  ProductPhase router_, gate_up_, down_, expert_gate_up_, expert_down_;
};

MoeOp::MoeOp(Context& c, const MoeWeights& w, float scale, Rows x)
    : c_(c),
      k_(*c.kernels),
      ws_(c.workspace),
      moe_(c.moe),
      w_(w),
      scale_(scale),
      x_(x),
      width_(static_cast<int>(matrix(w.shared.gate).rows())),
      expert_width_(static_cast<int>(matrix(w.experts[0].gate).rows())),
      router_(c, {&c.moe.forms, c.workspace.attended.as<float>(), x.cols}),
      gate_up_(c, {&c.workspace.forms, c.workspace.input.as<float>(), x.cols}),
      down_(c, {&c.workspace.forms, c.workspace.a.as<float>(), width_}),
      expert_gate_up_(c, {&c.moe.forms, c.moe.input.as<float>(), x.cols},
                      std::span(c.moe.products).first(2 * kMaxExperts)),
      expert_down_(c, {&c.moe.forms, c.moe.gate.as<float>(), expert_width_},
                   std::span(c.moe.products).subspan(2 * kMaxExperts)) {
  TANDEM_CHECK(matrix(w.router).rows() == num_experts(), "the router must know every expert");
  router_.add(matrix(w.router), moe_.logits.as<float>(), num_experts(), x.rows);
  gate_up_.add(matrix(w.shared.gate), ws_.a.as<float>(), width_, x.rows);
  gate_up_.add(matrix(w.shared.up), ws_.b.as<float>(), width_, x.rows);
  down_.add(matrix(w.shared.down), ws_.c.as<float>(), x.cols, x.rows);
}

void MoeOp::run_claimed(Member& m, const ProductPhase& first, const ProductPhase& second) {
  const int tasks = first.num_tasks() + second.num_tasks();
  for (int t = m.claim(); t < tasks; t = m.claim()) {
    if (t < first.num_tasks()) {
      first.run(t);
    } else {
      second.run(t - first.num_tasks());
    }
  }
}

void MoeOp::work(Member& m) {
  const Range rows = share_of(m, x_.rows);
  for (int r = rows.begin; r < rows.end; ++r) normalize(r);
  m.barrier();
  run_claimed(m, router_, gate_up_);
  m.barrier();
  for (int r = rows.begin; r < rows.end; ++r) {
    route(r);
    float* g = row_of(ws_.a, r, width_);
    k_.gelu_mul(g, row_of(ws_.b, r, width_), width_, g);
    down_.prepare(r);
  }
  m.barrier();
  if (m.index() == 0) group_by_expert();
  m.barrier();
  for (int r = rows.begin; r < rows.end; ++r) gather(r);
  m.barrier();
  run_claimed(m, expert_gate_up_, down_);
  m.barrier();
  const Range routed = share_of(m, routed_rows());
  for (int i = routed.begin; i < routed.end; ++i) {
    float* g = row_of(moe_.gate, i, expert_width_);
    k_.gelu_mul(g, row_of(moe_.up, i, expert_width_), expert_width_, g);
    expert_down_.prepare(i);
  }
  m.barrier();
  expert_down_.run_claimed(m);
  m.barrier();
  for (int r = rows.begin; r < rows.end; ++r) combine(r);
}

/// The inputs of the dense branch and of the router.
void MoeOp::normalize(int r) {
  const float* x = row_of(x_, r);
  k_.rms_norm(x, vector_data(w_.shared.norm, x_.cols), x_.cols, c_.eps(),
              row_of(ws_.input, r, x_.cols));
  gate_up_.prepare(r);
  float* z = row_of(ws_.attended, r, x_.cols);
  k_.rms_norm(x, vector_data(w_.router_scale, x_.cols), x_.cols, c_.eps(), z);
  k_.scale(z, 1.0F / std::sqrt(static_cast<float>(x_.cols)), x_.cols, z);
  router_.prepare(r);
}

/// Chooses the row's experts and their weights. Their shares of the softmax's sum cancel that sum.
void MoeOp::route(int r) {
  const int n = num_experts();
  float* p = row_of(moe_.logits, r, n);
  const float max = k_.argmax(p, n).value;
  for (int e = 0; e < n; ++e) p[e] -= max;
  k_.exp(p, n, p);
  choose(r, p);
}

/// The top_k largest of p [X], in ascending order of the expert.
void MoeOp::choose(int r, float* p) {
  int* experts = moe_.experts.data() + routed(r);
  float* weights = moe_.weights.data() + routed(r);
  for (int j = 0; j < w_.top_k; ++j) {
    const int e = k_.argmax(p, num_experts()).index;
    int at = j;
    for (; at > 0 && experts[at - 1] > e; --at) {
      experts[at] = experts[at - 1];
      weights[at] = weights[at - 1];
    }
    experts[at] = e;
    weights[at] = std::exchange(p[e], -1.0F);
  }
  float total = 0.0F;
  for (int j = 0; j < w_.top_k; ++j) total += weights[j];
  const float* scales =
      w_.expert_scale != nullptr ? vector_data(w_.expert_scale, num_experts()) : nullptr;
  for (int j = 0; j < w_.top_k; ++j) {
    weights[j] = weights[j] / total * (scales != nullptr ? scales[experts[j]] : 1.0F);
  }
}

/// Gives every expert's rows neighbouring places, and plans their products.
void MoeOp::group_by_expert() {
  const int n = num_experts();
  std::fill_n(moe_.ends.begin(), n, 0);
  const auto expert_of = [&](int i) -> int& {
    return moe_.ends[static_cast<std::size_t>(moe_.experts[static_cast<std::size_t>(i)])];
  };
  for (int i = 0; i < routed_rows(); ++i) ++expert_of(i);
  int begin = 0;
  for (int e = 0; e < n; ++e) begin += std::exchange(moe_.ends[static_cast<std::size_t>(e)], begin);
  for (int i = 0; i < routed_rows(); ++i) moe_.places[static_cast<std::size_t>(i)] = expert_of(i)++;

  begin = 0;
  for (int e = 0; e < n; ++e) {
    const int end = moe_.ends[static_cast<std::size_t>(e)];
    const ExpertWeights& w = w_.experts[static_cast<std::size_t>(e)];
    const int rows = end - begin;
    if (rows > 0) {
      expert_gate_up_.add(matrix(w.gate), row_of(moe_.gate, begin, expert_width_), expert_width_,
                          rows, begin);
      expert_gate_up_.add(matrix(w.up), row_of(moe_.up, begin, expert_width_), expert_width_, rows,
                          begin);
      expert_down_.add(matrix(w.down), row_of(moe_.down, begin, x_.cols), x_.cols, rows, begin);
    }
    begin = end;
  }
}

/// The experts' input, once for each expert of the row.
void MoeOp::gather(int r) {
  const int* places = moe_.places.data() + routed(r);
  const float* y = row_of(moe_.input, places[0], x_.cols);
  k_.rms_norm(row_of(x_, r), vector_data(w_.experts_norm, x_.cols), x_.cols, c_.eps(),
              row_of(moe_.input, places[0], x_.cols));
  for (int j = 0; j < w_.top_k; ++j) {
    if (j > 0) std::copy_n(y, x_.cols, row_of(moe_.input, places[j], x_.cols));
    expert_gate_up_.prepare(places[j]);
  }
}

void MoeOp::combine(int r) {
  const int n = x_.cols;
  float* mixed = row_of(ws_.attended, r, n);
  std::fill_n(mixed, n, 0.0F);
  for (int j = routed(r); j < routed(r + 1); ++j) {
    const auto i = static_cast<std::size_t>(j);
    const float* expert = row_of(moe_.down, moe_.places[i], n);
    const float weight = moe_.weights[i];
    for (int k = 0; k < n; ++k) mixed[k] += weight * expert[k];
  }
  float* dense = row_of(ws_.c, r, n);
  k_.rms_norm(mixed, vector_data(w_.experts_post_norm, n), n, c_.eps(), mixed);
  k_.rms_norm(dense, vector_data(w_.shared_post_norm, n), n, c_.eps(), dense);
  for (int k = 0; k < n; ++k) dense[k] += mixed[k];
  k_.add_rms_norm(dense, vector_data(w_.shared.post_norm, n), n, c_.eps(), scale_, row_of(x_, r));
}

}  // namespace

void moe(Context& c, const MoeWeights& w, float scale, Rows x) {
  const int num_experts = static_cast<int>(w.experts.size());
  TANDEM_CHECK(w.top_k >= 1 && w.top_k <= num_experts && num_experts <= kMaxExperts,
               "a row takes at least one expert and at most all");
  const int chunk = std::min(kRoutedRows / w.top_k, c.workspace.forms.max_rows());
  for (int begin = 0; begin < x.rows; begin += chunk) {
    const Rows part = {row_of(x, begin), std::min(chunk, x.rows - begin), x.cols, x.set};
    MoeOp op(c, w, scale, part);
    auto job = [&](Member m) {
      op.work(m);
    };
    run_team(c, job);
  }
}

}  // namespace tandem::kernels::cpu
