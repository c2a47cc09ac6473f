// A step of the CUDA backend from its plan to its results.

#include <algorithm>
#include <utility>

#include "tandem/kernels/cuda/backend_impl.h"

namespace tandem::kernels::cuda {
namespace {

/// The next size that steps are recorded for: close for few rows, where each costs, and coarse for
/// many.
int rounded(int n) {
  if (n <= 2) return n;
  const int unit = n <= 4 ? 4 : n <= 32 ? 8 : n <= 128 ? 16 : 32;
  return (n + unit - 1) / unit * unit;
}
int power_of_two(int n) {
  int p = 4;
  while (p < n) p *= 2;
  return p;
}

}  // namespace

StepSizes CudaBackend::sizes_of(const StepPlan& plan, const StepShape& shape) const {
  StepSizes s;
  s.rows = shape.rows;
  s.spans = static_cast<int>(plan.spans.size());
  s.draft_rows = shape.draft_rows;
  s.draft_steps = shape.draft_steps;
  s.is_filled_up = geometry_.steps_repeat;
  Position end = 1;
  for (const RowInfo& row : host_.rows(RowSet::kStep)) end = std::max(end, row.visible_end);
  s.blocks = (end + kPageTokens - 1) / kPageTokens;
  s.samples = sampling_.is_needed();
  for (const Span& span : plan.spans) {
    if (!span.is_decode()) s.is_filled_up = false;
    if (span.is_decode() || span.keep == Keep::kLast) ++s.sampled;
    s.span_rows = std::max(s.span_rows, 1 + span.num_drafts);
  }
  if (!s.is_filled_up) return s;
  s.rows = std::min(rounded(s.rows), geometry_.max_kept_rows);
  s.spans = std::min(rounded(s.spans), geometry_.max_sequences);
  s.draft_rows = std::min(rounded(s.draft_rows), geometry_.max_sequences);
  s.sampled = s.spans;
  s.blocks = power_of_two(s.blocks);
  return s;
}

int CudaBackend::count(const Rows& x) const {
  if (!sizes_.is_filled_up) return x.rows;
  return x.set == RowSet::kStep ? sizes_.rows : sizes_.draft_rows;
}

Backend::StepShape CudaBackend::begin_step(const StepPlan& plan) {
  pack_scratch_ = {};
  const StepShape shape = host_.begin(plan);
  pending_ = {};
  pending_ple_.reset();
  pending_mix_.reset();
  draft_steps_ = 0;
  is_verified_ = false;
  is_first_of_shape_ = false;
  sampling_.fill(host_);
  sizes_ = sizes_of(plan, shape);
  check(reserve_attention(sizes_.blocks));
  const auto moved = block_.fill(plan, host_, sizes_);
  check(moved.status());
  if (moved.ok() && *moved) graphs_.clear();
  check(block_.send(stream_));
  check(sampling_.send(stream_));
  begin_part(GraphPart::kTarget);
  if (!is_replay()) {
    begin_rows(block_.rows(), sizes_.rows, rope_[0], broken(RowSet::kStep), stream_);
    check_launch();
  }
  return shape;
}

void CudaBackend::begin_part(GraphPart part) {
  const bool is_target = part == GraphPart::kTarget;
  const GraphCache::Key key = {static_cast<int>(part),
                               sizes_.spans,
                               sizes_.blocks,
                               is_target ? sizes_.rows : sizes_.draft_rows,
                               is_target ? sizes_.span_rows : sizes_.draft_steps,
                               is_target ? sizes_.samples + 2 * waits_for_host() : 0};
  check(graphs_.begin(key, sizes_.is_filled_up && failure_.ok(), stream_));
  if (sizes_.is_filled_up && !is_replay()) is_first_of_shape_ = true;
}

void CudaBackend::end_part() {
  check(graphs_.end(failure_.ok(), stream_));
}

void CudaBackend::verify(const Head& head, Rows h) {
  const bool samples = !host_.sampled_rows().empty();
  if (samples && !is_replay()) {
    const HalfRows input = next_input(HalfUse::kHead, h, nullptr);
    TokenId* const chosen = results_at(results_.chosen);
    if (sizes_.samples) {
      sample(head, input, count(h), chosen);
    } else {
      // A row's scale is positive: the largest sum is the largest logit, before and after the
      // softcap.
      largest(head, input, count(h), chosen);
    }
  }
  if (samples && !waits_for_host() && !is_replay()) accept_tokens(h);
  end_part();
  if (!samples) return;
  is_verified_ = true;
  if (waits_for_host()) {
    choose_on_host(head, h.cols);
    accept_tokens(h);
  }
  if (sizes_.draft_steps > 0) begin_part(GraphPart::kDraft);
}

void CudaBackend::accept_tokens(Rows h) {
  AcceptArguments a;
  a.counts = block_.counts();
  a.spans = block_.sampled();
  a.rows = block_.rows();
  a.chosen = results_at(results_.chosen);
  a.h = h.data;
  a.cols = h.cols;
  a.hidden = hidden_.as<float>();
  a.draft_rows = draft_rows_.as<DeviceRow>();
  a.draft_rope = rope_[1];
  a.padding = block_.padding_row();
  a.padding.visible_end = 0;
  a.acceptance = geometry_.acceptance;
  const int blocks = std::max(sizes_.sampled, sizes_.draft_rows);
  if (blocks == 0) return;  // all spans are scored
  accept(a, blocks, stream_);
  check_launch();
}

void CudaBackend::sample(const Head& head, const HalfRows& input, int rows, TokenId* chosen) {
  for (int first = 0; first < rows; first += kLogitRows) {
    const int n = std::min(kLogitRows, rows - first);
    SampleArguments a;
    a.logits = logit_sums(head, rows_from(input, first), n);
    a.shape = sampler_;
    a.rows = block_.rows() + first;
    a.sampling = sampling_.rows() + first;
    a.changes = sampling_.changes();
    a.masks = sampling_.masks();
    a.mask_words = sampling_.mask_words();
    a.chosen = chosen + first;
    sample_rows(a, n, stream_);
    check_launch();
  }
}

/// Chooses the tokens of the rows that are the host's, from their logits.
void CudaBackend::choose_on_host(const Head& head, int cols) {
  const std::span<const std::size_t> indices = sampling_.host_rows();
  const std::size_t bytes = static_cast<std::size_t>(host_.kept_rows()) * sizeof(TokenId);
  check(cudaMemcpyAsync(results_.chosen, results_at(results_.chosen), bytes, cudaMemcpyDeviceToHost,
                        stream_));
  const HalfRows input = half_rows(HalfUse::kHead, cols);
  const std::span<float> logits(reinterpret_cast<float*>(host_logits_.data()),
                                static_cast<std::size_t>(geometry_.vocab));
  int first = 0, end = 0;  // rows whose logits are there
  for (const std::size_t index : indices) {
    const HostStep::SampledRow& row = host_.sampled_rows()[index];
    if (row.row >= end) {
      first = row.row / 8 * 8;
      end = std::min(first + kLogitRows, host_.kept_rows());
      finish_logits(logit_sums(head, rows_from(input, first), end - first), end - first, stream_);
      check_launch();
    }
    copy_logits(row.row - first, logits.data(), cudaMemcpyDeviceToHost);
    check(cudaStreamSynchronize(stream_));
    results_.chosen[row.row] = kernels::sample(logits, *row.sampling, *row.rule, row.position,
                                               host_sampling_, host_.logprobs(index));
  }
  check(cudaMemcpyAsync(results_at(results_.chosen), results_.chosen, bytes, cudaMemcpyHostToDevice,
                        stream_));
}

core::Result<StepResult> CudaBackend::end_step() {
  end_part();
  check(cudaMemcpyAsync(pinned_results_.data(), device_results_.as<void>(), pinned_results_.size(),
                        cudaMemcpyDeviceToHost, stream_));
  check(cudaStreamSynchronize(stream_));
  retired_.clear();
  if (!failure_.ok()) return std::exchange(failure_, {});
  for (int r = 0; r < host_.num_rows(); ++r) {
    if (results_.broken[r] != 0) host_.set_broken(r);
  }
  if (is_verified_) {
    chosen_.clear();
    for (const HostStep::SampledRow& row : host_.sampled_rows())
      chosen_.push_back(results_.chosen[row.row]);
    host_.accept(chosen_, {});
  }
  for (int i = 0; i < draft_steps_; ++i) {
    for (int r = 0; r < host_.draft_rows(i); ++r) {
      host_.set_draft(
          i, r, results_.drafts[static_cast<std::ptrdiff_t>(i) * geometry_.max_sequences + r]);
    }
  }
  StepResult result = host_.take_result();
  result.is_first_of_shape = is_first_of_shape_;
  return result;
}

}  // namespace tandem::kernels::cuda
