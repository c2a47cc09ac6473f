#include "tandem/kernels/cpu/ops.h"
#include "tandem/kernels/cpu/product.h"
#include "tandem/kernels/cpu/weights.h"

namespace tandem::kernels::cpu {

void ffn(Context& c, const FfnWeights& w, float scale, Rows x) {
  if (x.rows == 0) return;
  Workspace& ws = c.workspace;
  const PackedMatrix& gate = matrix(w.gate);
  const PackedMatrix& down = matrix(w.down);
  const int width = static_cast<int>(gate.rows());
  const float* norm = vector_data(w.norm, x.cols);
  const float* post_norm = vector_data(w.post_norm, x.cols);

  ProductPhase gate_up(c, {&ws.forms, ws.input.as<float>(), x.cols});
  gate_up.add(gate, ws.a.as<float>(), width, x.rows);
  gate_up.add(matrix(w.up), ws.b.as<float>(), width, x.rows);
  ProductPhase down_phase(c, {&ws.forms, ws.a.as<float>(), width});
  down_phase.add(down, ws.c.as<float>(), x.cols, x.rows);

  auto job = [&](Member m) {
    const RowKernels& k = *c.kernels;
    const Range rows = share_of(m, x.rows);
    for (int r = rows.begin; r < rows.end; ++r) {
      float* z = row_of(ws.input, r, x.cols);
      k.rms_norm(row_of(x, r), norm, x.cols, c.eps(), z);
      gate_up.prepare(r);
    }
    m.barrier();
    gate_up.run_claimed(m);
    m.barrier();
    for (int r = rows.begin; r < rows.end; ++r) {
      float* g = row_of(ws.a, r, width);
      k.gelu_mul(g, row_of(ws.b, r, width), width, g);
      down_phase.prepare(r);
    }
    m.barrier();
    down_phase.run_claimed(m);
    m.barrier();
    for (int r = rows.begin; r < rows.end; ++r) {
      k.add_rms_norm(row_of(ws.c, r, x.cols), post_norm, x.cols, c.eps(), scale, row_of(x, r));
    }
  };
  run_team(c, job);
}

}  // namespace tandem::kernels::cpu
