#include "tandem/engine/measure_steps.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace tandem::engine {
namespace {

constexpr int kPromptTokens = 4;
constexpr TokenId kToken = 2;  // every vocabulary has it
constexpr std::array kSequences = {1, 8, 1 << 20};
constexpr std::array kDrafts = {0, 1, 2, 4};
constexpr int kStepsOfEach = 2;
constexpr int kMostTries = 6;

/// Sequences in slots [0, n), each on a page of its own.
class Batch {
 public:
  Batch(model::StepRunner& runner, int n) : runner_(runner) {
    for (int slot = 0; slot < n; ++slot) {
      kernels::Span& span = plan_.spans.emplace_back();
      span.slot = slot;
      pages_.push_back(slot);
      runner.set_slot(slot, {.temperature = 0.0F});
    }
    for (std::size_t i = 0; i < pages_.size(); ++i) {
      plan_.spans[i].pages.fill(std::span(pages_).subspan(i, 1));
    }
  }

  core::Status run_prompts(int page_tokens) {
    const std::array<TokenId, kPromptTokens> prompt = {kToken, kToken, kToken, kToken};
    for (kernels::Span& span : plan_.spans) {
      span.prompt = prompt;
      span.keep = kernels::Keep::kLast;
    }
    left_ = page_tokens - kPromptTokens;
    TANDEM_TRY(runner_.step(plan_).status());
    for (kernels::Span& span : plan_.spans) span.prompt = {};
    return {};
  }

  /// Verifies the drafts that every sequence holds and makes k more; the page must have room.
  /// Whether steps of this kind will take as long.
  core::Result<bool> decode(int k) {
    for (kernels::Span& span : plan_.spans) {
      span.num_drafts = held_;
      span.next_drafts = k;
    }
    left_ -= 1 + held_;
    TANDEM_ASSIGN(const kernels::StepResult result, runner_.step(plan_));
    const bool has_verified_all = held_ == k;
    held_ = k;
    for (const auto& span : result.spans) held_ = std::min(held_, span.num_next_drafts);
    return has_verified_all && !result.is_first_of_shape;
  }
  bool has_room() const { return 1 + held_ <= left_; }

 private:
  model::StepRunner& runner_;
  std::vector<PageId> pages_;
  kernels::StepPlan plan_;
  int held_ = 0;
  int left_ = 0;  // positions of a page, if all drafts are accepted
};

/// Sequences that limits and pages allow, of the number wished for.
int fitting(const model::StepRunner::Limits& limits, int wished) {
  std::size_t page_bytes = 0;
  int pages = limits.max_sequences;
  for (std::size_t kind = 0; kind < limits.kv.page_bytes.size(); ++kind) {
    if (limits.kv.page_bytes[kind] == 0) continue;
    page_bytes += limits.kv.page_bytes[kind];
    pages = std::min(pages, limits.kv.max_pages[kind]);
  }
  if (page_bytes == 0) return 0;
  const int by_memory = static_cast<int>(
      std::min<std::size_t>(limits.kv_memory_bytes / page_bytes, static_cast<std::size_t>(pages)));
  return std::min({wished, by_memory, limits.max_rows / kPromptTokens, limits.max_kept_rows});
}

/// The steps of n sequences, appended to `out`.
core::Status measure(model::StepRunner& runner, int n, const std::function<double()>& clock,
                     double end, std::vector<StepMeasurement>& out) {
  const model::StepRunner::Limits& limits = runner.limits();
  for (const int k : kDrafts) {
    if (k > limits.max_draft || n * (1 + k) > limits.max_kept_rows) break;
    Batch batch(runner, n);
    TANDEM_TRY(batch.run_prompts(limits.kv.page_tokens));
    int left = kStepsOfEach;
    for (int i = 0; i < kMostTries && left > 0 && batch.has_room(); ++i) {
      const double start = clock();
      if (start >= end) return {};
      TANDEM_ASSIGN(const bool is_usual, batch.decode(k));
      const double seconds = clock() - start;
      if (i == 0 || !is_usual || seconds <= 0) continue;
      out.push_back({StepWork::steady(n, k), seconds});
      --left;
    }
  }
  return {};
}

}  // namespace

core::Result<std::vector<StepMeasurement>> measure_steps(model::StepRunner& runner,
                                                         const std::function<double()>& clock,
                                                         double budget_seconds) {
  std::vector<StepMeasurement> out;
  const double end = clock() + budget_seconds;
  int last = 0;
  for (const int wished : kSequences) {
    const int n = fitting(runner.limits(), wished);
    if (n <= last) break;
    last = n;
    TANDEM_TRY(measure(runner, n, clock, end, out));
    if (clock() >= end) break;
  }
  return out;
}

}  // namespace tandem::engine
