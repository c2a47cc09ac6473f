#include <algorithm>

#include "tandem/core/check.h"
#include "tandem/kernels/cpu/attention_task.h"
#include "tandem/kernels/cpu/attention_work.h"
#include "tandem/kernels/cpu/ops.h"
#include "tandem/kernels/cpu/product.h"
#include "tandem/kernels/cpu/weights.h"

namespace tandem::kernels::cpu {
namespace {

/// One call of attention().
class AttentionOp {
 public:
  AttentionOp(Context& c, const AttentionWeights& w, const AttentionSpec& spec, Rows x);
  void run();

 private:
  int kv_cols() const { return spec_.kv_heads * spec_.head_size; }
  int q_cols() const { return spec_.heads * spec_.head_size; }
  const RowInfo& row(int r) const { return rows_[static_cast<std::size_t>(r)]; }

  bool is_int8() const { return c_.geometry.kv_type == KvType::kInt8; }

  void work(Member& m);
  void normalize_rows(const Range& rows);
  void finish_heads(int r);
  void finish_kv_head(int r, int kv_head, const float* cosines, const float* sines);
  void rotate(float* head, const float* cosines, const float* sines) const;
  void attend(Member& m);

  Context& c_;
  Workspace& ws_;
  const RowKernels& k_;
  const AttentionWeights& w_;
  const AttentionSpec spec_;
  const Rows x_;
  int q_rows_;  // rows that attend; the others only write K and V
  int window_;
  std::span<const RowInfo> rows_;
  const float* norm_;
  const float* q_norm_;
  const float* k_norm_ = nullptr;
  const float* post_norm_;
  ProductPhase qkv_;
  ProductPhase out_;
};

AttentionOp::AttentionOp(Context& c, const AttentionWeights& w, const AttentionSpec& spec, Rows x)
    : c_(c),
      ws_(c.workspace),
      k_(*c.kernels),
      w_(w),
      spec_(spec),
      x_(x),
      q_rows_(x.rows),
      window_(spec.kind == AttentionKind::kSliding ? c.geometry.window : 0),
      rows_(c.step.rows(x.set)),
      norm_(vector_data(w.norm, x.cols)),
      q_norm_(vector_data(w.q_norm, spec.head_size)),
      post_norm_(vector_data(w.post_norm, x.cols)),
      qkv_(c, {&c.workspace.forms, c.workspace.input.as<float>(), x.cols}),
      out_(c, {&c.workspace.forms, c.workspace.attended.as<float>(), spec.heads * spec.head_size}) {
  TANDEM_CHECK(spec.kv_heads > 0 && spec.heads % spec.kv_heads == 0,
               "query heads must be a multiple of KV heads");
  if (spec.last_kv_owner && x.set == RowSet::kStep) {
    q_rows_ = std::min(x.rows, c.step.kept_rows());
  }
  qkv_.add(matrix(w.q), ws_.a.as<float>(), q_cols(), q_rows_);
  if (w.k != nullptr) {
    k_norm_ = vector_data(w.k_norm, spec.head_size);
    qkv_.add(matrix(w.k), ws_.b.as<float>(), kv_cols(), x.rows);
    if (w.v != nullptr) qkv_.add(matrix(w.v), ws_.c.as<float>(), kv_cols(), x.rows);
  }
  out_.add(matrix(w.out), ws_.c.as<float>(), x.cols, q_rows_);
  c.attention.plan({spec, window_, q_rows_, c.team.size()}, rows_, c.step.runs(x.set));
}

void AttentionOp::run() {
  auto job = [this](Member m) {
    work(m);
  };
  run_team(c_, job);
  c_.rope.set_ready(x_.set, spec_.kind);
}

void AttentionOp::work(Member& m) {
  const Range rows = share_of(m, x_.rows);
  normalize_rows(rows);
  m.barrier();
  qkv_.run_claimed(m);
  m.barrier();
  for (int r = rows.begin; r < rows.end; ++r) finish_heads(r);
  if (q_rows_ == 0) return;
  m.barrier();
  attend(m);

  const Range kept = share_of(m, q_rows_);
  m.barrier();
  if (out_.needs_preparing()) {
    for (int r = kept.begin; r < kept.end; ++r) out_.prepare(r);
    m.barrier();
  }
  out_.run_claimed(m);
  m.barrier();
  for (int r = kept.begin; r < kept.end; ++r) {
    k_.add_rms_norm(row_of(ws_.c, r, x_.cols), post_norm_, x_.cols, c_.eps(), 1.0F, row_of(x_, r));
  }
}

void AttentionOp::normalize_rows(const Range& rows) {
  const bool needs_rope = !c_.rope.ready(x_.set, spec_.kind);
  for (int r = rows.begin; r < rows.end; ++r) {
    float* z = row_of(ws_.input, r, x_.cols);
    k_.rms_norm(row_of(x_, r), norm_, x_.cols, c_.eps(), z);
    qkv_.prepare(r);
    if (needs_rope) c_.rope.fill(k_, x_.set, spec_.kind, r, row(r).position);
  }
}

/// Norms and rotates the heads of a row and writes its K and V to the cache.
void AttentionOp::finish_heads(int r) {
  const float* cosines = c_.rope.cosines(x_.set, spec_.kind, r);
  const float* sines = c_.rope.sines(x_.set, spec_.kind, r);
  if (r < q_rows_) {
    for (int head = 0; head < spec_.heads; ++head) {
      float* q = row_of(ws_.a, r, q_cols()) + head * spec_.head_size;
      k_.rms_norm(q, q_norm_, spec_.head_size, c_.eps(), q);
      rotate(q, cosines, sines);
    }
  }
  if (w_.k == nullptr) return;
  for (int g = 0; g < spec_.kv_heads; ++g) finish_kv_head(r, g, cosines, sines);
}

void AttentionOp::finish_kv_head(int r, int kv_head, const float* cosines, const float* sines) {
  const Position position = row(r).position;
  const auto page_index = static_cast<std::size_t>(position / kPageTokens);
  const PageId page = c_.step.pages(row(r).span, spec_.kind)[page_index];
  TANDEM_CHECK(page != kNoPage, "a row's position has no KV page");
  const int token = position % kPageTokens;
  const int size = spec_.head_size;

  float* k = row_of(ws_.b, r, kv_cols()) + kv_head * size;
  float* v = row_of(ws_.c, r, kv_cols()) + kv_head * size;
  k_.rms_norm(w_.v == nullptr ? k : v, nullptr, size, c_.eps(), v);
  k_.rms_norm(k, k_norm_, size, c_.eps(), k);
  rotate(k, cosines, sines);
  if (!k_.all_finite(k, size) || !k_.all_finite(v, size)) {
    c_.step.set_broken(r);
    // Whoever gets the page next must find finite values even where its mask hides them.
    std::fill_n(k, size, 0.0F);
    std::fill_n(v, size, 0.0F);
  }
  const KvWriter& write = is_int8() ? k_.int8 : k_.int16;
  write.key(k, size, c_.kv.keys<std::byte>(spec_.kv_layer, page, kv_head), token);
  write.value(v, size, c_.kv.values<std::byte>(spec_.kv_layer, page, kv_head), token);
}

void AttentionOp::rotate(float* head, const float* cosines, const float* sines) const {
  k_.rope(head, spec_.head_size, cosines, sines, c_.rope.pairs(spec_.kind));
}

void AttentionOp::attend(Member& m) {
  const AttentionRunner runner(k_, c_.kv, c_.step, c_.attention,
                               {spec_, window_, rows_, ws_.a.as<float>(), ws_.attended.as<float>(),
                                is_int8() ? c_.matmul : nullptr});
  const core::Arena& scratch = c_.members[static_cast<std::size_t>(m.index())].attention;
  const std::span<const AttentionTask> tasks = c_.attention.tasks();
  const int num_tasks = static_cast<int>(tasks.size());
  for (int i = m.claim(); i < num_tasks; i = m.claim()) {
    // With equal tasks the members take turns.
    const AttentionTask* next =
        i + m.size() < num_tasks ? &tasks[static_cast<std::size_t>(i + m.size())] : nullptr;
    runner.run(tasks[static_cast<std::size_t>(i)], next, scratch);
  }
  const std::span<const AttentionTask> merges = c_.attention.merges();
  if (merges.empty()) return;
  m.barrier();
  const int num_merges = static_cast<int>(merges.size());
  for (int i = m.claim(); i < num_merges; i = m.claim()) {
    runner.merge(merges[static_cast<std::size_t>(i)], scratch);
  }
}

}  // namespace

void attention(Context& c, const AttentionWeights& w, const AttentionSpec& spec, Rows x) {
  if (x.rows > 0) AttentionOp(c, w, spec, x).run();
}

}  // namespace tandem::kernels::cpu
