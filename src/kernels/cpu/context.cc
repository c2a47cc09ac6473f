#include "tandem/kernels/cpu/context.h"

#include <algorithm>

namespace tandem::kernels::cpu {
namespace {

core::Result<core::Arena> reserve_floats(int rows, int cols) {
  const std::size_t count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols);
  return core::Arena::reserve(count * sizeof(float), /*huge_pages=*/true);
}

}  // namespace

core::Status Workspace::reserve(int max_rows, int max_inputs, int max_outputs) {
  TANDEM_ASSIGN(input, reserve_floats(max_rows, max_inputs));
  TANDEM_ASSIGN(attended, reserve_floats(max_rows, max_inputs));
  TANDEM_ASSIGN(a, reserve_floats(max_rows, max_outputs));
  TANDEM_ASSIGN(b, reserve_floats(max_rows, max_outputs));
  TANDEM_ASSIGN(c, reserve_floats(max_rows, max_outputs));
  TANDEM_ASSIGN(forms, ActivationBuffer::create(max_rows, max_inputs));
  return {};
}

core::Status MoeWorkspace::fit(int inputs, int outputs) {
  if (inputs <= max_inputs && outputs <= max_outputs) return {};
  max_inputs = std::max(inputs, max_inputs);
  max_outputs = std::max(outputs, max_outputs);
  const int width = std::max(max_inputs, max_outputs);
  TANDEM_ASSIGN(input, reserve_floats(kRoutedRows, width));
  TANDEM_ASSIGN(gate, reserve_floats(kRoutedRows, width));
  TANDEM_ASSIGN(up, reserve_floats(kRoutedRows, width));
  TANDEM_ASSIGN(down, reserve_floats(kRoutedRows, width));
  TANDEM_ASSIGN(logits, reserve_floats(kRoutedRows, kMaxExperts));
  TANDEM_ASSIGN(forms, ActivationBuffer::create(kRoutedRows, width));
  experts.resize(kRoutedRows);
  weights.resize(kRoutedRows);
  places.resize(kRoutedRows);
  ends.resize(kMaxExperts);
  products.resize(3 * kMaxExperts);
  return {};
}

core::Status RopeTables::configure(const Geometry& geometry) {
  for (const AttentionKind kind : kAttentionKinds) {
    std::vector<float>& f = frequencies_[index_of(kind)];
    f = geometry.rope_frequencies[index_of(kind)];
    while (!f.empty() && f.back() == 0.0F) f.pop_back();
    for (const RowSet set : {RowSet::kStep, RowSet::kDraft}) {
      const int rows = set == RowSet::kStep ? geometry.max_rows : geometry.max_sequences;
      TANDEM_ASSIGN(tables_[at(set, kind)], reserve_floats(rows, 2 * pairs(kind)));
    }
  }
  return {};
}

void RopeTables::reset(RowSet set) {
  for (const AttentionKind kind : kAttentionKinds) ready_[at(set, kind)] = false;
}

void RopeTables::fill(const RowKernels& kernels, RowSet set, AttentionKind kind, int row,
                      Position position) {
  const int n = pairs(kind);
  if (n == 0) return;
  float* cosines = row_of(tables_[at(set, kind)], row, 2 * n);
  kernels.rope_table(position, frequencies_[index_of(kind)].data(), n, cosines, cosines + n);
}

const float* RopeTables::cosines(RowSet set, AttentionKind kind, int row) const {
  return row_of(tables_[at(set, kind)], row, 2 * pairs(kind));
}

}  // namespace tandem::kernels::cpu
