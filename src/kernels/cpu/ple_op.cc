#include <cmath>

#include "tandem/core/check.h"
#include "tandem/kernels/cpu/ops.h"
#include "tandem/kernels/cpu/product.h"
#include "tandem/kernels/cpu/weights.h"

namespace tandem::kernels::cpu {

void embed(Context& c, const Weight& table, float scale, Rows x) {
  const Gatherer gather(&table);
  TANDEM_CHECK(gather.cols() == x.cols, "the table must match the width of the rows");
  const std::span<const RowInfo> info = c.step.rows(x.set);
  auto job = [&](Member m) {
    const Range rows = share_of(m, x.rows);
    for (int r = rows.begin; r < rows.end; ++r) {
      gather(info[static_cast<std::size_t>(r)].token, row_of(x, r));
      c.kernels->scale(row_of(x, r), scale, x.cols, row_of(x, r));
    }
  };
  run_team(c, job);
}

void ple_inputs(Context& c, const PleInputWeights& w, Rows x, Rows ple) {
  if (x.rows == 0) return;
  const Gatherer gather(w.table);
  TANDEM_CHECK(gather.cols() == ple.cols, "the table must match the width of the rows");
  const int width = static_cast<int>(w.norm->cols());
  const float* norm = vector_data(w.norm, width);
  const float context_scale = 1.0F / std::sqrt(static_cast<float>(x.cols));
  const float token_scale = std::sqrt(static_cast<float>(width));
  const std::span<const RowInfo> info = c.step.rows(x.set);
  ProductPhase projection(c, {&c.workspace.forms, x.data, x.cols});
  projection.add(matrix(w.projection), ple.data, ple.cols, x.rows);

  auto job = [&](Member m) {
    const Range rows = share_of(m, x.rows);
    for (int r = rows.begin; r < rows.end; ++r) projection.prepare(r);
    m.barrier();
    projection.run_claimed(m);
    m.barrier();
    for (int r = rows.begin; r < rows.end; ++r) {
      float* token_part = row_of(c.workspace.a, r, ple.cols);
      gather(info[static_cast<std::size_t>(r)].token, token_part);
      for (int i = 0; i < ple.cols; i += width) {
        c.kernels->ple_combine(token_part + i, norm, width, c.eps(), context_scale, token_scale,
                               row_of(ple, r) + i);
      }
    }
  };
  run_team(c, job);
}

void ple(Context& c, const PleLayerWeights& w, Rows ple, int layer, float scale, Rows x) {
  if (x.rows == 0) return;
  Workspace& ws = c.workspace;
  const PackedMatrix& gate = matrix(w.gate);
  const int width = static_cast<int>(gate.rows());
  const float* post_norm = vector_data(w.post_norm, x.cols);
  const int offset = layer * width;
  TANDEM_CHECK(offset + width <= ple.cols, "the per-layer embedding is narrower than its layers");

  ProductPhase gate_phase(c, {&ws.forms, x.data, x.cols});
  gate_phase.add(gate, ws.a.as<float>(), width, x.rows);
  ProductPhase projection(c, {&ws.forms, ws.a.as<float>(), width});
  projection.add(matrix(w.projection), ws.c.as<float>(), x.cols, x.rows);

  auto job = [&](Member m) {
    const RowKernels& k = *c.kernels;
    const Range rows = share_of(m, x.rows);
    for (int r = rows.begin; r < rows.end; ++r) gate_phase.prepare(r);
    m.barrier();
    gate_phase.run_claimed(m);
    m.barrier();
    for (int r = rows.begin; r < rows.end; ++r) {
      float* g = row_of(ws.a, r, width);
      k.gelu_mul(g, row_of(ple, r) + offset, width, g);
      projection.prepare(r);
    }
    m.barrier();
    projection.run_claimed(m);
    m.barrier();
    for (int r = rows.begin; r < rows.end; ++r) {
      k.add_rms_norm(row_of(ws.c, r, x.cols), post_norm, x.cols, c.eps(), scale, row_of(x, r));
    }
  };
  run_team(c, job);
}

}  // namespace tandem::kernels::cpu
