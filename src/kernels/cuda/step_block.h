#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "tandem/kernels/backend.h"
#include "tandem/kernels/cuda/device_buffer.h"
#include "tandem/kernels/cuda/step_state.h"
#include "tandem/kernels/host_step.h"

namespace tandem::kernels::cuda {

/// The sizes a step's kernels are launched with. A step that is replayed is filled up to them with
/// rows, spans and tiles that change nothing; steps of equal sizes are one graph.
struct StepSizes {
  int rows = 0;       ///< of the target pass
  int spans = 0;      ///< with page tables; one more table is all padding
  int span_rows = 0;  ///< most rows of a span
  int blocks = 0;     ///< key blocks that a row sees at most, stride of the page tables
  int sampled = 0;    ///< spans that sample
  int draft_rows = 0;
  int draft_steps = 0;
  bool samples = false;  ///< a row's token is another than that of its largest sum
  bool is_filled_up = false;
};

/// What the host tells the device about a step, in one pinned block and one copy: rows, sampled
/// spans, attention tiles, page tables. Places are fixed by the capacities, so that a recorded
/// step finds them again. Thread: the backend's caller. The block may be written again once the
/// device has finished the step.
class StepBlock {
 public:
  core::Status configure(const Geometry& geometry, const KvLayout& kv);

  /// Fills the block; `host` has begun the plan. True if the block moved in memory: recordings are
  /// void.
  core::Result<bool> fill(const StepPlan& plan, const HostStep& host, const StepSizes& sizes);
  cudaError_t send(cudaStream_t stream);

  /// Attention tiles of a set with H / G query heads a KV head. A ratio that is asked for the first
  /// time is laid out and sent at once, later it is part of fill().
  struct Tiles {
    const AttentionTile* device = nullptr;
    int count = 0;
    int kept = 0;  ///< leading tiles of kept rows
  };
  Tiles tiles(int ratio, RowSet set, const HostStep& host, cudaStream_t stream, cudaError_t& error);

  const StepCounts* counts() const { return device_at<StepCounts>(0); }
  const DeviceRow* rows() const { return device_at<DeviceRow>(rows_at_); }
  const SampledSpan* sampled() const { return device_at<SampledSpan>(sampled_at_); }
  const PageId* tables(std::size_t kind) const {
    return device_at<PageId>(tables_at_) +
           kind * static_cast<std::size_t>((sizes_.spans + 1) * sizes_.blocks);
  }
  DeviceRow padding_row() const { return {sizes_.spans, max_sequences_, 0, 0, 1}; }

 private:
  static constexpr int kMaxRatios = 4;

  template <typename T>
  const T* device_at(std::size_t offset) const {
    return reinterpret_cast<const T*>(device_.as<std::byte>() + offset);
  }
  template <typename T>
  T* host_at(std::size_t offset) const {
    return reinterpret_cast<T*>(pinned_.data() + offset);
  }
  std::size_t tiles_at(int index) const;
  void fill_spans(const StepPlan& plan);
  void fill_tables(const HostStep& host);
  void fill_tiles(int ratio, const HostStep& host);

  int max_rows_ = 0, max_sequences_ = 0, num_spans_ = 0;
  std::array<PageId, kNumAttentionKinds> padding_page_ = {};
  std::size_t rows_at_ = 0, sampled_at_ = 0, draft_tiles_at_ = 0, tiles_at_ = 0, tables_at_ = 0,
              used_ = 0;
  std::vector<Position> first_positions_;  // of each span in this step
  std::map<int, int> ratios_;              // H / G to index of its list
  std::array<Tiles, kMaxRatios> lists_;
  StepSizes sizes_;
  PinnedBuffer pinned_;
  DeviceBuffer device_;
};

}  // namespace tandem::kernels::cuda
