#pragma once

#include <array>
#include <span>
#include <vector>

#include "tandem/core/units.h"
#include "tandem/kernels/backend.h"

namespace tandem::kernels {

/// A row of the running step: which sequence it belongs to and which keys it may see.
struct RowInfo {
  std::int32_t span = 0;      ///< index into the plan's spans
  std::int32_t slot = 0;
  TokenId token = 0;
  Position position = 0;      ///< for RoPE and the window
  Position visible_end = 0;   ///< keys j < visible_end: position + 1 (kStep) or position (kDraft)
};

/// Consecutive rows of one sequence at consecutive positions: the unit of attention work.
struct RowRun {
  std::int32_t span = 0;
  std::int32_t first_row = 0;
  std::int32_t num_rows = 0;
};

/// Slots and row bookkeeping of a backend whose memory is the host's (reference, cpu).
/// Thread: the backend's caller.
class HostStep {
 public:
  void configure(const Geometry& geometry);
  void set_slot(int slot, const SamplingParams& sampling);
  SlotSnapshot read_slot(int slot) const;

  /// Copies the plan (tokens and block tables included) and resolves every row.
  Backend::StepShape begin(const StepPlan& plan);

  std::span<const RowInfo> rows(RowSet set) const;
  std::span<const RowRun> runs(RowSet set) const;
  int kept_rows() const { return kept_rows_; }
  /// Block table of a span.
  std::span<const PageId> pages(int span, AttentionKind kind) const;

  /// Rows to sample: every kept row of a span that samples. Index = row of h.
  struct SampledRow {
    std::int32_t row = 0;
    Position position = 0;  ///< of the token to be chosen = row's position + 1; keys the random number
    const SamplingParams* sampling = nullptr;
  };
  std::span<const SampledRow> sampled_rows() const { return sampled_; }

  /// Applies the chosen tokens (one per sampled row) span by span: accepts drafts, fills the
  /// result, advances the slots and copies hidden = h[row] (`h` is [R, E]). Then lays out the
  /// draft rows, longest draft first.
  void accept(std::span<const TokenId> chosen, std::span<const float> h);

  /// Number of draft rows that draft more than i tokens.
  int draft_rows(int i) const;
  /// Input of draft step i for draft row r.
  TokenId draft_token(int i, int r) const;
  std::span<float> draft_hidden(int r);  ///< [E], read by draft_input, overwritten by draft_head
  void set_draft(int i, int r, TokenId token);

  StepResult take_result();

 private:
  struct Slot {
    SamplingParams sampling;
    TokenId token = 0;
    Position position = 0;
    std::int32_t num_drafts = 0;
    std::array<TokenId, kMaxDraft> drafts = {};
    std::vector<float> hidden;
    std::vector<float> draft_hidden;
  };
  struct SpanState {
    Span span;  // its `prompt` and `pages` point into tokens_ and pages_
    std::int32_t first_kept = 0;
    std::int32_t num_kept = 0;
  };

  int hidden_ = 0;
  int kept_rows_ = 0;
  std::vector<Slot> slots_;
  std::vector<SpanState> spans_;
  std::vector<TokenId> tokens_;
  std::vector<PageId> pages_;
  std::array<std::vector<RowInfo>, 2> rows_;
  std::array<std::vector<RowRun>, 2> runs_;
  std::vector<SampledRow> sampled_;
  StepResult result_;
};

}  // namespace tandem::kernels
