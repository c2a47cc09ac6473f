#pragma once

#include <array>

#include "tandem/kernels/cpu/context.h"

namespace tandem::kernels::cpu {

/// The inputs of matrix products, rows [0, n): f32 in `x` and, if a weight wants them, codes.
struct Operand {
  const ActivationBuffer* codes = nullptr;
  const float* x = nullptr;
  int cols = 0;
};

/// One phase of matrix products over one operand: out = x W^T for up to three weights. Tasks are
/// ranges of panels, claimed by the members; who takes which never changes a bit.
class ProductPhase {
 public:
  ProductPhase(const Context& c, const Operand& input);

  /// out: [rows, ld], ld at least the weight's rows.
  void add(const PackedMatrix& w, float* out, int ld, int rows);

  /// True when some weight reads int8 codes.
  bool wants_codes() const { return wants_codes_; }
  int num_tasks() const { return num_tasks_; }
  void run(int task) const;
  /// Claims tasks until none is left.
  void run_claimed(Member& m) const {
    for (int i = m.claim(); i < num_tasks_; i = m.claim()) run(i);
  }

 private:
  struct Product {
    const PackedMatrix* w = nullptr;
    float* out = nullptr;
    int ld = 0;
    int rows = 0;
    int panels_per_task = 0;
    int first_task = 0;
    int num_tasks = 0;
  };

  const Context* context_;
  Operand input_;
  std::array<Product, 3> products_;
  int num_products_ = 0;
  int num_tasks_ = 0;
  bool wants_codes_ = false;
};

/// Panels that make one task of a product of `rows` rows: about 10 us of work, and at least a few
/// tasks per member.
int panels_per_task(int panels, int rows, int cols, int members);

}  // namespace tandem::kernels::cpu
