#include "tandem/kernels/cpu/product.h"

#include <algorithm>
#include <cstdint>

#include "tandem/core/check.h"
#include "tandem/core/checked_math.h"

namespace tandem::kernels::cpu {

int panels_per_task(int panels, int rows, int cols, int members) {
  // A core does about 10^5 multiply-adds in a microsecond; a claim costs 20 to 50 ns.
  constexpr std::int64_t kTaskMacs = 1'000'000;
  const std::int64_t macs_per_panel = std::int64_t{16} * std::max(rows, 1) * cols;
  const auto by_work = static_cast<int>(std::min<std::int64_t>(kTaskMacs / macs_per_panel, panels));
  const int by_balance = core::ceil_div(panels, rows > 2 ? 4 * members : members);
  // The kernels take panels in pairs.
  return std::max(2, core::round_up(std::min(by_work, by_balance), 2));
}

ProductPhase::ProductPhase(const Context& c, const Operand& input) : context_(&c), input_(input) {}

void ProductPhase::add(const PackedMatrix& w, float* out, int ld, int rows) {
  TANDEM_CHECK(w.cols() == input_.cols, "a weight's inputs must match the width of the rows");
  TANDEM_CHECK(ld >= w.rows(), "the output is narrower than the weight's outputs");
  wants_codes_ = wants_codes_ || w.wants_codes();
  if (rows == 0) return;
  Product& p = products_[static_cast<std::size_t>(num_products_++)];
  p.w = &w;
  p.out = out;
  p.ld = ld;
  p.rows = rows;
  p.panels_per_task = panels_per_task(w.panels(), rows, input_.cols, context_->team.size());
  p.first_task = num_tasks_;
  p.num_tasks = core::ceil_div(w.panels(), p.panels_per_task);
  num_tasks_ += p.num_tasks;
}

void ProductPhase::run(int task) const {
  std::size_t i = 0;
  while (task >= products_[i].first_task + products_[i].num_tasks) ++i;
  const Product& p = products_[i];
  const int begin = (task - p.first_task) * p.panels_per_task;
  const int end = std::min(begin + p.panels_per_task, p.w->panels());
  context_->matmul->matmul(*p.w, *input_.codes, input_.x, input_.cols, p.rows, begin, end, p.out,
                           p.ld);
}

}  // namespace tandem::kernels::cpu
