#include <algorithm>
#include <limits>

#include "tandem/core/check.h"
#include "tandem/core/checked_math.h"
#include "tandem/kernels/cpu/attention_work.h"
#include "tandem/kernels/cpu/ops.h"
#include "tandem/kernels/cpu/product.h"
#include "tandem/kernels/cpu/weights.h"

namespace tandem::kernels::cpu {
namespace {

/// The pieces of a member's scratch: state of a task's vectors and the scores of one tile.
struct TaskScratch {
  TaskScratch(const core::Arena& arena, int head_size) {
    queries = arena.as<float>();
    out = queries + kTaskVectors * head_size;
    scores = out + kTaskVectors * head_size;
    max = scores + kMaxTileVectors * kBlockTokens;
    sum = max + kTaskVectors;
  }
  static std::size_t bytes(int head_size) {
    const int floats =
        2 * kTaskVectors * head_size + kMaxTileVectors * kBlockTokens + 2 * kTaskVectors;
    return static_cast<std::size_t>(floats) * sizeof(float);
  }

  static constexpr int kMaxTileVectors = 12;
  float* queries;  // per tile of V vectors: [D][V]
  float* out;      // [kTaskVectors][D]
  float* scores;   // [kMaxTileVectors][kBlockTokens]
  float* max;      // [kTaskVectors]
  float* sum;
};

/// Vectors of the next tile when `left` are left: what RowKernels::attend_block takes, without a
/// small rest where that can be avoided.
int tile_vectors(int left, int max_vectors) {
  if (left >= 12 && left != 16 && max_vectors >= 12) return 12;
  if (left >= 8 && max_vectors >= 8) return 8;
  if (left >= 4) return 4;
  return left >= 2 ? 2 : 1;
}

/// One call of attention().
class AttentionOp {
 public:
  AttentionOp(Context& c, const AttentionWeights& w, const AttentionSpec& spec, Rows x);
  void run();

 private:
  int kv_cols() const { return spec_.kv_heads * spec_.head_size; }
  int q_cols() const { return spec_.heads * spec_.head_size; }
  int heads_per_kv() const { return spec_.heads / spec_.kv_heads; }
  const RowInfo& row(int r) const { return rows_[static_cast<std::size_t>(r)]; }

  void work(Member& m);
  void normalize_rows(const Range& rows);
  void finish_heads(int r);
  void finish_kv_head(int r, int kv_head, const float* cosines, const float* sines);
  void rotate(float* head, const float* cosines, const float* sines) const;
  void attend(Member& m);
  void run_task(const AttentionTask& task, const TaskScratch& s);
  void load_queries(const AttentionTask& task, const TaskScratch& s) const;
  void attend_block(const AttentionTask& task, int block, const TaskScratch& s);
  void merge_task(const AttentionTask& task, const TaskScratch& s);
  void write_result(const AttentionTask& task, int vector, const float* out, float sum);
  const float* query(const AttentionTask& task, int vector) const;

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
      qkv_(c, {&c.workspace.codes, c.workspace.input.as<float>(), x.cols}),
      out_(c, {&c.workspace.codes, c.workspace.attended.as<float>(), spec.heads * spec.head_size}) {
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
  if (out_.wants_codes()) {
    for (int r = kept.begin; r < kept.end; ++r) {
      c_.matmul->quantize_row(row_of(ws_.attended, r, q_cols()), q_cols(), ws_.codes, r);
    }
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
    if (qkv_.wants_codes()) c_.matmul->quantize_row(z, x_.cols, ws_.codes, r);
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
  k_.store_value(v, size, c_.kv.values<std::uint16_t>(spec_.kv_layer, page, kv_head), token);
  k_.rms_norm(k, k_norm_, size, c_.eps(), k);
  rotate(k, cosines, sines);
  std::uint16_t* tile =
      c_.kv.keys<std::uint16_t>(spec_.kv_layer, page, kv_head) + token / 16 * size * 16;
  k_.store_key(k, size, tile, token % 16);
}

void AttentionOp::rotate(float* head, const float* cosines, const float* sines) const {
  k_.rope(head, spec_.head_size, cosines, sines, c_.rope.pairs(spec_.kind));
}

void AttentionOp::attend(Member& m) {
  const TaskScratch scratch(c_.members[static_cast<std::size_t>(m.index())].attention,
                            spec_.head_size);
  const std::span<const AttentionTask> tasks = c_.attention.tasks();
  const int num_tasks = static_cast<int>(tasks.size());
  for (int i = m.claim(); i < num_tasks; i = m.claim()) {
    run_task(tasks[static_cast<std::size_t>(i)], scratch);
  }
  const std::span<const AttentionTask> merges = c_.attention.merges();
  if (merges.empty()) return;
  m.barrier();
  const int num_merges = static_cast<int>(merges.size());
  for (int i = m.claim(); i < num_merges; i = m.claim()) {
    merge_task(merges[static_cast<std::size_t>(i)], scratch);
  }
}

const float* AttentionOp::query(const AttentionTask& task, int vector) const {
  const int r = task.run.first_row + vector / heads_per_kv();
  const int head = task.kv_head * heads_per_kv() + vector % heads_per_kv();
  return row_of(ws_.a, r, q_cols()) + head * spec_.head_size;
}

void AttentionOp::load_queries(const AttentionTask& task, const TaskScratch& s) const {
  int tile = 0;
  for (int first = 0; first < task.num_vectors; first += tile) {
    tile = tile_vectors(task.num_vectors - first, k_.max_vectors);
    float* out = s.queries + first * spec_.head_size;
    for (int i = 0; i < tile; ++i) {
      const float* q = query(task, task.first_vector + first + i);
      for (int d = 0; d < spec_.head_size; ++d) out[d * tile + i] = q[d];
    }
  }
}

void AttentionOp::run_task(const AttentionTask& task, const TaskScratch& s) {
  load_queries(task, s);
  std::fill_n(s.max, task.num_vectors, -std::numeric_limits<float>::infinity());
  for (int block = task.first_block; block < task.end_block; ++block) {
    attend_block(task, block, s);
  }
  for (int i = 0; i < task.num_vectors; ++i) {
    const float* out = s.out + i * spec_.head_size;
    if (task.partial < 0) {
      write_result(task, i, out, s.sum[i]);
      continue;
    }
    float* partial = c_.attention.partial(task.partial + i);
    std::copy_n(out, spec_.head_size, partial);
    partial[spec_.head_size] = s.max[i];
    partial[spec_.head_size + 1] = s.sum[i];
  }
}

void AttentionOp::attend_block(const AttentionTask& task, int block, const TaskScratch& s) {
  const std::span<const PageId> pages = c_.step.pages(task.run.span, spec_.kind);
  const std::uint16_t* keys[kPagesPerBlock];
  const std::uint16_t* values[kPagesPerBlock];
  std::int32_t key_begin[TaskScratch::kMaxTileVectors];
  std::int32_t key_end[TaskScratch::kMaxTileVectors];
  const Position origin = block * kBlockTokens;

  int tile = 0;
  for (int first = 0; first < task.num_vectors; first += tile) {
    tile = tile_vectors(task.num_vectors - first, k_.max_vectors);
    int lowest = kBlockTokens;
    int highest = 0;
    for (int i = 0; i < tile; ++i) {
      const int vector = task.first_vector + first + i;
      const RowInfo& info = row(task.run.first_row + vector / heads_per_kv());
      key_begin[i] = std::max(first_visible_key(info, window_) - origin, 0);
      key_end[i] = std::min(info.visible_end - origin, kBlockTokens);
      if (key_begin[i] >= key_end[i]) continue;
      lowest = std::min(lowest, key_begin[i]);
      highest = std::max(highest, key_end[i]);
    }
    if (lowest >= highest) continue;

    AttentionBlock b;
    b.head_size = spec_.head_size;
    b.num_vectors = tile;
    b.queries = s.queries + first * spec_.head_size;
    b.keys = keys;
    b.values = values;
    b.first_page = lowest / kPageTokens;
    b.end_page = core::ceil_div(highest, kPageTokens);
    for (int p = b.first_page; p < b.end_page; ++p) {
      const PageId page = pages[static_cast<std::size_t>(block * kPagesPerBlock + p)];
      TANDEM_CHECK(page != kNoPage, "a visible key has no KV page");
      keys[p] = c_.kv.keys<std::uint16_t>(spec_.kv_layer, page, task.kv_head);
      values[p] = c_.kv.values<std::uint16_t>(spec_.kv_layer, page, task.kv_head);
    }
    b.key_begin = key_begin;
    b.key_end = key_end;
    b.max = s.max + first;
    b.sum = s.sum + first;
    b.out = s.out + first * spec_.head_size;
    b.scores = s.scores;
    k_.attend_block(b);
  }
}

void AttentionOp::merge_task(const AttentionTask& task, const TaskScratch& s) {
  for (int i = 0; i < task.num_vectors; ++i) {
    float max = -std::numeric_limits<float>::infinity();
    float sum = 0.0F;
    for (int block = task.first_block; block < task.end_block; ++block) {
      const int offset = (block - task.first_block) * task.num_vectors + i;
      const float* part = c_.attention.partial(task.partial + offset);
      k_.merge_block(part, part[spec_.head_size], part[spec_.head_size + 1], spec_.head_size, &max,
                     &sum, s.out);
    }
    write_result(task, i, s.out, sum);
  }
}

void AttentionOp::write_result(const AttentionTask& task, int vector, const float* out, float sum) {
  const int v = task.first_vector + vector;
  const int r = task.run.first_row + v / heads_per_kv();
  const int head = task.kv_head * heads_per_kv() + v % heads_per_kv();
  float* dst = row_of(ws_.attended, r, q_cols()) + head * spec_.head_size;
  if (row(r).visible_end == 0) {
    std::fill_n(dst, spec_.head_size, 0.0F);
    return;
  }
  k_.scale(out, 1.0F / sum, spec_.head_size, dst);
}

}  // namespace

std::size_t attention_scratch_bytes(int head_size) {
  return TaskScratch::bytes(head_size);
}

void attention(Context& c, const AttentionWeights& w, const AttentionSpec& spec, Rows x) {
  if (x.rows > 0) AttentionOp(c, w, spec, x).run();
}

}  // namespace tandem::kernels::cpu
