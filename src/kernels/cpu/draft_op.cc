#include <algorithm>
#include <type_traits>

#include "tandem/core/check.h"
#include "tandem/kernels/cpu/centroid_head.h"
#include "tandem/kernels/cpu/head.h"
#include "tandem/kernels/cpu/ops.h"
#include "tandem/kernels/cpu/product.h"
#include "tandem/kernels/cpu/weights.h"

namespace tandem::kernels::cpu {

void draft_input(Context& c, const DraftWeights& w, int i, Rows x) {
  TANDEM_CHECK(x.rows == c.step.draft_rows(i), "one row per sequence that drafts this far");
  if (i == 0) c.rope.reset(RowSet::kDraft);
  if (x.rows == 0) return;
  Workspace& ws = c.workspace;
  const Gatherer gather(w.target_embedding);
  const int width = c.geometry.hidden;
  TANDEM_CHECK(gather.cols() == width, "the embedding must have the target's width");
  ProductPhase projection(c, {&ws.forms, ws.input.as<float>(), 2 * width});
  projection.add(matrix(w.pre_projection), x.data, x.cols, x.rows);

  auto job = [&](Member m) {
    const Range rows = share_of(m, x.rows);
    for (int r = rows.begin; r < rows.end; ++r) {
      float* input = row_of(ws.input, r, 2 * width);
      gather(c.step.draft_token(i, r), input);
      c.kernels->scale(input, w.embedding_scale, width, input);
      const std::span<const float> hidden = c.step.draft_hidden(r);
      std::copy(hidden.begin(), hidden.end(), input + width);
      projection.prepare(r);
    }
    m.barrier();
    projection.run_claimed(m);
  };
  run_team(c, job);
}

namespace {

/// y = rms(x) * norm of some rows, in the workspace's `input`, and its forms.
void normalize_rows(Context& c, const DraftWeights& w, Rows x, const Range& rows,
                    const InputForms& forms) {
  const float* norm = vector_data(w.head.norm, x.cols);
  for (int r = rows.begin; r < rows.end; ++r) {
    float* y = row_of(c.workspace.input, r, x.cols);
    c.kernels->rms_norm(row_of(x, r), norm, x.cols, c.eps(), y);
    c.matmul->prepare_row(forms, y, x.cols, c.workspace.forms, r);
  }
}

/// What a draft step leaves in the slots. `hidden`: [rows, E].
void store_draft(Context& c, int i, int r, TokenId token, const core::Arena& hidden) {
  c.step.set_draft(i, r, token);
  const int width = c.geometry.hidden;
  std::copy_n(row_of(hidden, r, width), width, c.step.draft_hidden(r).begin());
}

/// The step with either kind of head: HeadPhase or CentroidPhase.
template <typename HeadKind>
void run_draft_head(Context& c, const DraftWeights& w, int i, Rows x, HeadKind& head,
                    const ProductPhase& projection) {
  const InputForms forms = merged(projection.forms(), head.forms());
  auto job = [&](Member m) {
    const Range rows = share_of(m, x.rows);
    head.start(m);
    normalize_rows(c, w, x, rows, forms);
    m.barrier();
    if constexpr (std::is_same_v<HeadKind, CentroidPhase>) {
      head.scores().run_claimed(m);
      m.barrier();
      for (int r = rows.begin; r < rows.end; ++r) head.choose(r);
      m.barrier();
    }
    const int tasks = head.num_tasks() + projection.num_tasks();
    for (int t = m.claim(); t < tasks; t = m.claim()) {
      if (t < head.num_tasks()) {
        head.run(m, t);
      } else {
        projection.run(t - head.num_tasks());
      }
    }
    m.barrier();
    for (int r = rows.begin; r < rows.end; ++r) store_draft(c, i, r, head.best(r), c.workspace.c);
  };
  run_team(c, job);
}

}  // namespace

void draft_head(Context& c, const DraftWeights& w, int i, Rows x) {
  if (x.rows == 0) return;
  Workspace& ws = c.workspace;
  const Operand y = {&ws.forms, ws.input.as<float>(), x.cols};
  ProductPhase projection(c, y);
  projection.add(matrix(w.post_projection), ws.c.as<float>(), c.geometry.hidden, x.rows);
  if (w.centroids.centroids != nullptr) {
    CentroidPhase head(c, w, y, x.rows);
    run_draft_head(c, w, i, x, head, projection);
  } else {
    HeadPhase head(c, w.head, y, x.rows);
    run_draft_head(c, w, i, x, head, projection);
  }
}

}  // namespace tandem::kernels::cpu
