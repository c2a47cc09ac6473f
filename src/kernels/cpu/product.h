#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "tandem/kernels/cpu/context.h"

namespace tandem::kernels::cpu {

/// The inputs of matrix products: dense f32 rows and the room for their other forms.
struct Operand {
  const ActivationBuffer* forms = nullptr;
  const float* x = nullptr;
  int cols = 0;

  /// Rows from `first` on.
  Activations rows(int first) const {
    return forms->rows(first, x + static_cast<std::ptrdiff_t>(first) * cols, cols);
  }
};

/// What both weights want together; a model's weights agree in their e4m3 group (cpu_backend.cc).
InputForms merged(const InputForms& a, const InputForms& b);

/// One phase of matrix products over one operand: out = x W^T for some weights. Tasks are ranges
/// of panels, claimed by the members; who takes which never changes a bit.
class ProductPhase {
 public:
  /// Room for three products.
  ProductPhase(const Context& c, const Operand& input);
  /// Products lie in `room`, which the caller keeps.
  ProductPhase(const Context& c, const Operand& input, std::span<Product> room);
  ProductPhase(const ProductPhase&) = delete;
  ProductPhase& operator=(const ProductPhase&) = delete;

  /// Rows [first_row, first_row + rows) of the input; out: [rows, ld], ld at least the weight's
  /// rows.
  void add(const PackedMatrix& w, float* out, int ld, int rows, int first_row = 0);

  /// What the weights read; prepare() does nothing where that is f32 alone.
  const InputForms& forms() const { return forms_; }
  bool needs_preparing() const { return forms_.codes || forms_.e4m3_group > 0; }
  /// Derives the forms of input row r, which must hold its f32 values.
  void prepare(int r) const;
  int num_tasks() const { return num_tasks_; }
  void run(int task) const;
  /// Claims tasks until none is left.
  void run_claimed(Member& m) const {
    for (int i = m.claim(); i < num_tasks_; i = m.claim()) run(i);
  }

 private:
  const Context* context_;
  Operand input_;
  std::array<Product, 3> own_room_;
  std::span<Product> products_;
  int num_products_ = 0;
  int num_tasks_ = 0;
  InputForms forms_;
};

/// Panels that make one task of a product of `rows` rows: about 30 us of work, and at least a few
/// tasks per member.
int panels_per_task(int panels, int rows, int cols, int members);

}  // namespace tandem::kernels::cpu
