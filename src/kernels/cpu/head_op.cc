#include <algorithm>
#include <limits>

#include "tandem/core/check.h"
#include "tandem/core/checked_math.h"
#include "tandem/kernels/cpu/head.h"
#include "tandem/kernels/cpu/ops.h"
#include "tandem/kernels/cpu/weights.h"

namespace tandem::kernels::cpu {
namespace {

/// Writes -inf over the suppressed ids of logits [begin, begin + count).
void suppress(const Context& c, int begin, int count, float* values) {
  for (const TokenId id : c.geometry.suppressed) {
    if (id >= begin && id < begin + count) {
      values[id - begin] = -std::numeric_limits<float>::infinity();
    }
  }
}

/// Whether the row's token is its largest logit, so that no other logit need exist.
bool is_largest(const HostStep::SampledRow& row) {
  return row.sampling->temperature == 0.0F && row.rule == nullptr;
}

/// Rows [begin, end) of the sampled rows whose logits fit the workspace at once.
Range next_chunk(const Context& c, std::span<const HostStep::SampledRow> sampled, int begin) {
  int end = begin;
  int logit_rows = 0;
  for (; end < static_cast<int>(sampled.size()); ++end) {
    if (is_largest(sampled[static_cast<std::size_t>(end)])) continue;
    if (logit_rows == c.logit_rows) break;
    ++logit_rows;
  }
  return {begin, end};
}

}  // namespace

HeadPhase::HeadPhase(Context& c, const Head& head, const Operand& input, int rows)
    : context_(&c),
      table_(&matrix(head.table)),
      softcap_(head.softcap),
      input_(input),
      rows_(rows) {
  TANDEM_CHECK(table_->cols() == input.cols && table_->rows() == c.geometry.vocab,
               "the head must match the rows and the vocabulary");
  // A task's logits fit the member's scratch.
  const int by_scratch = std::max(1, kScratchFloats / 16 / std::max(rows, 1));
  panels_per_task_ =
      std::min(by_scratch, panels_per_task(table_->panels(), rows, input.cols, c.team.size()));
  num_tasks_ = core::ceil_div(table_->panels(), panels_per_task_);
}

InputForms HeadPhase::forms() const {
  return table_->input_forms();
}

void HeadPhase::prepare(int r) const {
  context_->matmul->prepare_row(forms(), input_.x + static_cast<std::ptrdiff_t>(r) * input_.cols,
                                input_.cols, *input_.forms, r);
}

void HeadPhase::start(const Member& m) const {
  std::vector<RowMax>& best = context_->members[static_cast<std::size_t>(m.index())].best;
  std::fill_n(best.begin(), rows_, RowMax{});
}

void HeadPhase::run(const Member& m, int task) const {
  MemberScratch& scratch = context_->members[static_cast<std::size_t>(m.index())];
  const int first = task * panels_per_task_;
  const int end = std::min(first + panels_per_task_, table_->panels());
  const int begin = first * 16;
  const int ld = (end - first) * 16;
  const int count = std::min(ld, context_->geometry.vocab - begin);
  float* values = scratch.floats.as<float>();
  // The product addresses outputs by their column in the whole row.
  context_->matmul->matmul(*table_, input_.rows(0), rows_, first, end, values - begin, ld);
  for (int r = 0; r < rows_; ++r) {
    finish_row(scratch, r, begin, count, values + static_cast<std::ptrdiff_t>(r) * ld);
  }
}

void HeadPhase::finish_row(MemberScratch& scratch, int row, int begin, int count,
                           float* values) const {
  const RowKernels& k = *context_->kernels;
  float* full = full_logits_.empty() ? nullptr : full_logits_[static_cast<std::size_t>(row)];
  if (full != nullptr) {
    if (softcap_ > 0.0F) k.softcap(values, count, softcap_);
    suppress(*context_, begin, count, values);
    std::copy_n(values, count, full + begin);
    return;
  }
  // The softcap is monotonic: the largest logit is the largest before it, too.
  suppress(*context_, begin, count, values);
  RowMax top = k.argmax(values, count);
  top.index += begin;
  keep_larger(scratch.best[static_cast<std::size_t>(row)], top);
}

void keep_larger(RowMax& best, const RowMax& other) {
  if (other.index < 0) return;
  const bool ties_lower = other.value == best.value && other.index < best.index;
  if (best.index < 0 || other.value > best.value || ties_lower) best = other;
}

TokenId best_token(const Context& c, int row) {
  RowMax best;
  for (const MemberScratch& member : c.members) {
    keep_larger(best, member.best[static_cast<std::size_t>(row)]);
  }
  return std::max(best.index, 0);
}

void final_norm(Context& c, const Head& head, Rows x, Rows h) {
  TANDEM_CHECK(x.rows == h.rows && x.cols == h.cols, "x and h must have one shape");
  const float* norm = vector_data(head.norm, x.cols);
  auto job = [&](Member m) {
    const Range rows = share_of(m, x.rows);
    for (int r = rows.begin; r < rows.end; ++r) {
      // A sum of squares that overflows would give a finite row of zeros.
      const float squares = c.kernels->rms_norm(row_of(x, r), norm, x.cols, c.eps(), row_of(h, r));
      const bool is_finite = squares <= std::numeric_limits<float>::max();
      if (!is_finite || !c.kernels->all_finite(row_of(h, r), x.cols)) {
        c.step.set_broken(r);
      }
    }
  };
  run_team(c, job);
}

void logits(Context& c, const Head& head, Rows h, Rows out) {
  if (h.rows == 0) return;
  TANDEM_CHECK(h.rows == out.rows && out.cols == c.geometry.vocab, "out must be [rows, V]");
  ProductPhase product(c, {&c.workspace.forms, h.data, h.cols});
  product.add(matrix(head.table), out.data, out.cols, h.rows);
  auto job = [&](Member m) {
    const Range rows = share_of(m, h.rows);
    for (int r = rows.begin; r < rows.end; ++r) product.prepare(r);
    m.barrier();
    product.run_claimed(m);
    m.barrier();
    for (int r = rows.begin; r < rows.end; ++r) {
      if (head.softcap > 0.0F) c.kernels->softcap(row_of(out, r), out.cols, head.softcap);
      suppress(c, 0, out.cols, row_of(out, r));
    }
  };
  run_team(c, job);
}

namespace {

/// Chooses the tokens of the sampled rows of a range.
void choose_tokens(Context& c, const Head& head, Rows h,
                   std::span<const HostStep::SampledRow> all_sampled, Range range) {
  const auto sampled = all_sampled.subspan(static_cast<std::size_t>(range.begin),
                                           static_cast<std::size_t>(range.end - range.begin));
  const std::span<TokenId> chosen =
      std::span(c.chosen).subspan(static_cast<std::size_t>(range.begin));
  Workspace& ws = c.workspace;
  const int num_rows = static_cast<int>(sampled.size());
  HeadPhase phase(c, head, {&ws.forms, ws.input.as<float>(), h.cols}, num_rows);
  c.full_logits.assign(sampled.size(), nullptr);
  int logit_row = 0;
  for (std::size_t i = 0; i < sampled.size(); ++i) {
    if (!is_largest(sampled[i])) {
      c.full_logits[i] = row_of(c.logits, logit_row++, c.geometry.vocab);
    }
  }
  phase.keep_logits(c.full_logits);

  auto job = [&](Member m) {
    phase.start(m);
    const Range rows = share_of(m, num_rows);
    for (int r = rows.begin; r < rows.end; ++r) {
      const float* source = row_of(h, sampled[static_cast<std::size_t>(r)].row);
      float* z = row_of(ws.input, r, h.cols);
      std::copy_n(source, h.cols, z);
      phase.prepare(r);
    }
    m.barrier();
    phase.run_claimed(m);
    m.barrier();
    SamplingScratch& scratch = c.members[static_cast<std::size_t>(m.index())].sampling;
    for (int r = m.claim(); r < num_rows; r = m.claim()) {
      const auto i = static_cast<std::size_t>(r);
      const HostStep::SampledRow& row = sampled[i];
      if (c.full_logits[i] == nullptr) {
        chosen[i] = phase.best(r);
        continue;
      }
      const std::span logits(c.full_logits[i], static_cast<std::size_t>(c.geometry.vocab));
      chosen[i] = row.rule == nullptr
                      ? sample(logits, *row.sampling, row.position, scratch)
                      : sample(logits, *row.sampling, *row.rule, row.position, scratch,
                               c.step.logprobs(static_cast<std::size_t>(range.begin) + i));
    }
  };
  run_team(c, job);
}

}  // namespace

void verify(Context& c, const Head& head, Rows h) {
  const std::span<const HostStep::SampledRow> sampled = c.step.sampled_rows();
  c.chosen.resize(sampled.size());
  for (int begin = 0; begin < static_cast<int>(sampled.size());) {
    const Range chunk = next_chunk(c, sampled, begin);
    choose_tokens(c, head, h, sampled, chunk);
    begin = chunk.end;
  }
  c.step.accept(c.chosen, {h.data, static_cast<std::size_t>(h.rows) * h.cols});
}

}  // namespace tandem::kernels::cpu
