#include "tandem/kernels/cuda/step_block.h"

#include <algorithm>
#include <limits>

#include "tandem/core/check.h"
#include "tandem/kernels/cuda/layouts.cuh"

namespace tandem::kernels::cuda {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr int kFirstBlocks = 64;  // of a table, until a longer text comes

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int num_sampled(const Span& span) {
  if (span.is_decode()) return 1 + span.num_drafts;
  return span.keep == Keep::kLast ? 1 : 0;
}
int num_kept(const Span& span) {
  return !span.is_decode() && span.keep == Keep::kAll ? static_cast<int>(span.prompt.size())
                                                      : num_sampled(span);
}

}  // namespace

core::Status StepBlock::configure(const Geometry& geometry, const KvLayout& kv) {
  max_rows_ = geometry.max_rows;
  max_sequences_ = geometry.max_sequences;
  padding_page_ = {kv.max_pages[0], kv.max_pages[1]};
  const auto rows = static_cast<std::size_t>(max_rows_),
             sequences = static_cast<std::size_t>(max_sequences_);
  rows_at_ = aligned(sizeof(StepCounts));
  sampled_at_ = rows_at_ + aligned(rows * sizeof(DeviceRow));
  draft_tiles_at_ = sampled_at_ + aligned(sequences * sizeof(SampledSpan));
  tiles_at_ = draft_tiles_at_ + aligned(sequences * sizeof(AttentionTile));
  tables_at_ = tiles_at(kMaxRatios);
  const std::size_t bytes = tables_at_ + (sequences + 1) * 2 * kFirstBlocks * sizeof(PageId);
  TANDEM_ASSIGN(pinned_, PinnedBuffer::allocate(bytes));
  TANDEM_ASSIGN(device_, DeviceBuffer::allocate(bytes));
  return {};
}

std::size_t StepBlock::tiles_at(int index) const {
  return tiles_at_ + static_cast<std::size_t>(index) *
                         aligned(static_cast<std::size_t>(max_rows_) * sizeof(AttentionTile));
}

core::Result<bool> StepBlock::fill(const StepPlan& plan, const HostStep& host,
                                   const StepSizes& sizes) {
  sizes_ = sizes;
  num_spans_ = static_cast<int>(plan.spans.size());
  used_ = tables_at_ + static_cast<std::size_t>(sizes.spans + 1) * 2 *
                           static_cast<std::size_t>(sizes.blocks) * sizeof(PageId);
  const bool moves = used_ > pinned_.size();
  if (moves) {
    TANDEM_ASSIGN(pinned_, PinnedBuffer::allocate(2 * used_));
    TANDEM_ASSIGN(device_, DeviceBuffer::allocate(2 * used_));
  }
  DeviceRow* row = host_at<DeviceRow>(rows_at_);
  first_positions_.assign(plan.spans.size(), std::numeric_limits<Position>::max());
  for (const RowInfo& info : host.rows(RowSet::kStep)) {
    Position& first = first_positions_[static_cast<std::size_t>(info.span)];
    first = std::min(first, info.position);
    *row++ = {info.span, info.slot, info.token, info.position, info.visible_end};
  }
  std::fill(row,
            host_at<DeviceRow>(rows_at_) +
                std::max(sizes.rows, static_cast<int>(row - host_at<DeviceRow>(rows_at_))),
            padding_row());
  fill_spans(plan);
  fill_tables(host);
  for (const auto& [ratio, index] : ratios_) fill_tiles(ratio, host);
  return moves;
}

// Draft rows: the longest draft first, in the plan's order among equals, as HostStep::accept() lays
// them out.
void StepBlock::fill_spans(const StepPlan& plan) {
  SampledSpan* out = host_at<SampledSpan>(sampled_at_);
  AttentionTile* draft_tiles = host_at<AttentionTile>(draft_tiles_at_);
  StepCounts counts = {};
  int first_kept = 0;
  for (int i = 0; i < num_spans_; ++i) {
    const Span& span = plan.spans[static_cast<std::size_t>(i)];
    if (num_sampled(span) > 0)
      out[counts.sampled_spans++] = {i, span.slot, first_kept, num_sampled(span), -1};
    first_kept += num_kept(span);
  }
  for (int length = kMaxDraft; length > 0; --length) {
    for (int i = 0; i < counts.sampled_spans; ++i) {
      if (plan.spans[static_cast<std::size_t>(out[i].span)].next_drafts != length) continue;
      draft_tiles[counts.draft_rows] = {out[i].span, counts.draft_rows, 1, 0};
      out[i].draft_row = counts.draft_rows++;
    }
  }
  std::fill(draft_tiles + counts.draft_rows,
            draft_tiles + std::max(counts.draft_rows, sizes_.draft_rows), AttentionTile{});
  *host_at<StepCounts>(0) = counts;
}

void StepBlock::fill_tables(const HostStep& host) {
  PageId* out = host_at<PageId>(tables_at_);
  const auto stride = static_cast<std::size_t>(sizes_.blocks);
  for (std::size_t kind = 0; kind < kNumAttentionKinds; ++kind) {
    for (int s = 0; s <= sizes_.spans; ++s, out += stride) {
      std::size_t known = 0;
      if (s < num_spans_) {
        const auto pages = host.pages(s, static_cast<AttentionKind>(kind));
        known = std::min(pages.size(), stride);
        std::copy_n(pages.begin(), known, out);
      }
      std::fill(out + known, out + stride, padding_page_[kind]);
    }
  }
}

void StepBlock::fill_tiles(int ratio, const HostStep& host) {
  const int index = ratios_.at(ratio), per_tile = std::max(1, 16 / ratio);
  AttentionTile* const begin = host_at<AttentionTile>(tiles_at(index));
  Tiles& list = lists_[static_cast<std::size_t>(index)];
  list = {device_at<AttentionTile>(tiles_at(index)), 0, 0};
  for (const RowRun& run : host.runs(RowSet::kStep)) {
    for (int first = 0; first < run.num_rows; first += per_tile) {
      begin[list.count++] = {run.span, run.first_row + first,
                             std::min(per_tile, run.num_rows - first),
                             first_positions_[static_cast<std::size_t>(run.span)]};
    }
    if (run.first_row < host.kept_rows()) list.kept = list.count;
  }
  if (!sizes_.is_filled_up) return;
  const int full =
      std::min(max_rows_, sizes_.spans * ((sizes_.span_rows + per_tile - 1) / per_tile));
  std::fill(begin + list.count, begin + std::max(list.count, full), AttentionTile{});
  list.count = list.kept = std::max(list.count, full);
}

cudaError_t StepBlock::send(cudaStream_t stream) {
  return cudaMemcpyAsync(device_.as<void>(), pinned_.data(), used_, cudaMemcpyHostToDevice, stream);
}

StepBlock::Tiles StepBlock::tiles(int ratio, RowSet set, const HostStep& host, cudaStream_t stream,
                                  cudaError_t& error) {
  error = cudaSuccess;
  if (set == RowSet::kDraft) {
    return {device_at<AttentionTile>(draft_tiles_at_), sizes_.draft_rows, sizes_.draft_rows};
  }
  const auto [at, is_new] = ratios_.emplace(ratio, static_cast<int>(ratios_.size()));
  TANDEM_CHECK(at->second < kMaxRatios, "a model has few ratios of query heads to KV heads");
  if (is_new) {
    fill_tiles(ratio, host);
    const std::size_t offset = tiles_at(at->second);
    error = cudaMemcpyAsync(device_.as<std::byte>() + offset, pinned_.data() + offset,
                            tiles_at(1) - tiles_at(0), cudaMemcpyHostToDevice, stream);
  }
  return lists_[static_cast<std::size_t>(at->second)];
}

}  // namespace tandem::kernels::cuda
