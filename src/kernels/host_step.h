#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tandem/core/units.h"
#include "tandem/kernels/backend.h"

namespace tandem::kernels {

/// A row of the running step: which sequence it belongs to and which keys it may see.
struct RowInfo {
  std::int32_t span = 0;  ///< index into the plan's spans
  std::int32_t slot = 0;
  TokenId token = 0;
  Position position = 0;     ///< for RoPE and the window
  Position visible_end = 0;  ///< keys j < visible_end: position + 1 (kStep) or position (kDraft)
};

/// Consecutive rows of one sequence at consecutive positions: the unit of attention work.
struct RowRun {
  std::int32_t span = 0;
  std::int32_t first_row = 0;
  std::int32_t num_rows = 0;
};

/// Slots and row bookkeeping of a backend whose memory is the host's (reference, cpu).
///
/// Row layout of a step: the kept rows of all spans in the plan's order (decode spans 1 +
/// num_drafts rows, kLast prompt spans their last row, kAll prompt spans all rows), then the other
/// prompt rows in the plan's order. So a kLast prompt span of more than one row has two runs.
///
/// Vectors keep their capacity from step to step: after warm-up only take_result() hands memory
/// out. Thread: the backend's caller.
class HostStep {
 public:
  void configure(const Geometry& geometry);
  void set_slot(int slot, const SamplingParams& sampling);
  SlotSnapshot read_slot(int slot) const;

  /// Copies what it needs of the plan (page tables included) and resolves every row. CHECKs that
  /// the plan keeps to the geometry: slots, one span per slot, row counts, token ids, drafts held.
  Backend::StepShape begin(const StepPlan& plan);

  std::span<const RowInfo> rows(RowSet set) const { return rows_[index(set)]; }
  /// Runs in row order; no run crosses from the kept rows to the others.
  std::span<const RowRun> runs(RowSet set) const { return runs_[index(set)]; }
  int num_rows() const { return static_cast<int>(rows_[index(RowSet::kStep)].size()); }
  int kept_rows() const { return kept_rows_; }
  /// Page table of a span.
  std::span<const PageId> pages(int span, AttentionKind kind) const;

  /// A row to sample: the rows of decode spans, the last row of kLast spans, and the rows of scored
  /// spans, whose rules give the token. Index = row of h.
  struct SampledRow {
    std::int32_t row = 0;
    /// Of the token to be chosen = row's position + 1; keys the random number.
    Position position = 0;
    const SamplingParams* sampling = nullptr;
    const RowRule* rule = nullptr;  ///< the plan's; null: none
  };
  std::span<const SampledRow> sampled_rows() const { return sampled_; }
  /// Where the logprobs of a sampled row go whose rule asks for them, before accept(). Different
  /// rows may be written by different threads.
  TokenLogprobs& logprobs(std::size_t sampled_row) { return logprobs_[sampled_row]; }

  /// The row met a value that is not finite: its span's result is broken. Different rows may be
  /// marked by different threads.
  void set_broken(int step_row) { broken_[static_cast<std::size_t>(step_row)] = 1; }

  /// Applies the chosen tokens (one per sampled row) span by span, spec/mtp.md sections 6 and 7:
  /// accepts drafts while they equal the chosen token, fills the result, advances the slots and
  /// copies hidden = h[row that predicted the next token] (`h` is [R, E]). Then lays out the draft
  /// rows, longest draft first, in the plan's order among equals.
  void accept(std::span<const TokenId> chosen, std::span<const float> h);

  /// Number of draft rows that draft more than i tokens.
  int draft_rows(int i) const { return draft_counts_[static_cast<std::size_t>(i)]; }
  /// Input of draft step i for draft row r.
  TokenId draft_token(int i, int r) const;
  std::span<float> draft_hidden(int r);  ///< [E], read by draft_input, overwritten by draft_head
  void set_draft(int i, int r, TokenId token);

  /// What accept() found; valid until take_result().
  const StepResult& result() const { return result_; }
  /// The result with the drafts that were set since.
  StepResult take_result();

 private:
  struct Slot {
    SamplingParams sampling;
    TokenId token = 0;
    Position position = 0;
    std::int32_t num_drafts = 0;
    std::array<TokenId, kMaxDraft> drafts = {};
    std::vector<float> hidden;        // [E] u of the next round
    std::vector<float> draft_hidden;  // [E] u of the running draft step
    std::uint64_t last_step = 0;      // the step that used the slot last
  };
  struct PageRange {
    std::size_t begin = 0;
    std::size_t size = 0;
  };
  struct SpanState {
    std::int32_t slot = 0;
    std::int32_t num_rows = 0;
    std::int32_t num_kept = 0;  // the span's last rows
    std::int32_t first_kept = 0;
    std::int32_t num_sampled = 0;
    bool is_scored = false;        // the sampled rows' tokens are given
    std::int32_t next_drafts = 0;  // 0 for spans that sample nothing
    std::array<PageRange, kNumAttentionKinds> pages;
  };

  static std::size_t index(RowSet set) { return static_cast<std::size_t>(set); }
  const Slot& slot(int i) const;
  Slot& slot(int i) { return const_cast<Slot&>(std::as_const(*this).slot(i)); }
  SpanState make_span_state(const Span& span);
  void add_run(const Span& span, int span_index, int first_offset, int num_rows);
  void add_sampled_rows(const Span& span, const SpanState& state);
  void take_logprobs(std::size_t first_sampled, std::int32_t count, SpanResult& result);
  void add_draft_row(int span_index);

  SyntheticAcceptance acceptance_;
  int hidden_ = 0;
  int vocab_ = 0;
  int max_rows_ = 0;
  int max_kept_rows_ = 0;
  int kept_rows_ = 0;
  std::uint64_t step_ = 0;
  std::vector<Slot> slots_;
  std::vector<SpanState> spans_;
  std::vector<PageId> pages_;
  std::array<std::vector<RowInfo>, 2> rows_;
  std::array<std::vector<RowRun>, 2> runs_;
  std::vector<SampledRow> sampled_;
  std::vector<TokenLogprobs> logprobs_;  // [sampled rows]
  std::vector<std::uint8_t> broken_;     // [T]
  std::array<int, kMaxDraft + 1> draft_counts_ = {};
  StepResult result_;
};

}  // namespace tandem::kernels
