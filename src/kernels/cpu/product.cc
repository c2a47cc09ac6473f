#include "tandem/kernels/cpu/product.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "tandem/core/check.h"
#include "tandem/core/checked_math.h"

namespace tandem::kernels::cpu {

int panels_per_task(int panels, int rows, int cols, int members) {
  // A core does about 10^5 multiply-adds in a microsecond; a claim costs 20 to 50 ns, and what a
  // task does for every row (the head's largest logit) is done less often in large ones.
  constexpr std::int64_t kTaskMacs = 3'000'000;
  const std::int64_t macs_per_panel = std::int64_t{16} * std::max(rows, 1) * cols;
  // While panels are used those behind them are fetched, in vain if another member takes them.
  constexpr int kFewest = 16;
  const auto by_work = std::max(
      kFewest, static_cast<int>(std::min<std::int64_t>(kTaskMacs / macs_per_panel, panels)));
  const int by_balance = core::ceil_div(panels, rows > 2 ? 4 * members : members);
  // The kernels take panels in pairs.
  return std::max(2, core::round_up(std::min(by_work, by_balance), 2));
}

InputForms merged(const InputForms& a, const InputForms& b) {
  TANDEM_CHECK(a.e4m3_group == 0 || b.e4m3_group == 0 || a.e4m3_group == b.e4m3_group,
               "one e4m3 group for all weights");
  return {a.codes || b.codes, std::max(a.e4m3_group, b.e4m3_group)};
}

void ProductPhase::prepare(int r) const {
  if (!needs_preparing()) return;
  context_->matmul->prepare_row(forms_, input_.x + static_cast<std::ptrdiff_t>(r) * input_.cols,
                                input_.cols, *input_.forms, r);
}

ProductPhase::ProductPhase(const Context& c, const Operand& input)
    : context_(&c), input_(input), products_(own_room_) {}

ProductPhase::ProductPhase(const Context& c, const Operand& input, std::span<Product> room)
    : context_(&c), input_(input), products_(room) {}

void ProductPhase::add(const PackedMatrix& w, float* out, int ld, int rows, int first_row) {
  TANDEM_CHECK(w.cols() == input_.cols, "a weight's inputs must match the width of the rows");
  TANDEM_CHECK(ld >= w.rows(), "the output is narrower than the weight's outputs");
  forms_ = merged(forms_, w.input_forms());
  if (rows == 0) return;
  Product& p = products_[static_cast<std::size_t>(num_products_++)];
  p.w = &w;
  p.out = out;
  p.ld = ld;
  p.first_row = first_row;
  p.rows = rows;
  p.panels_per_task = panels_per_task(w.panels(), rows, input_.cols, context_->team.size());
  p.first_task = num_tasks_;
  p.num_tasks = core::ceil_div(w.panels(), p.panels_per_task);
  num_tasks_ += p.num_tasks;
}

void ProductPhase::run(int task) const {
  const auto added = products_.first(static_cast<std::size_t>(num_products_));
  const auto after = std::upper_bound(added.begin(), added.end(), task,
                                      [](int t, const Product& p) { return t < p.first_task; });
  const Product& p = *std::prev(after);
  const int begin = (task - p.first_task) * p.panels_per_task;
  const int end = std::min(begin + p.panels_per_task, p.w->panels());
  context_->matmul->matmul(*p.w, input_.rows(p.first_row), p.rows, begin, end, p.out, p.ld);
}

}  // namespace tandem::kernels::cpu
