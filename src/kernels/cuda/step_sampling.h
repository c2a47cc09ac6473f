#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/kernels/cuda/device_buffer.h"
#include "tandem/kernels/cuda/step_state.h"
#include "tandem/kernels/host_step.h"

namespace tandem::kernels::cuda {

/// How the kept rows of a step are sampled: their parameters, changes of logits and masks, in
/// pinned memory and a copy on the device, at fixed places. Thread: the backend's caller. May be
/// filled again once the device has finished the step.
class StepSampling {
 public:
  /// Changes of all rows together.
  static constexpr int kMaxChanges = 1 << 16;
  /// At most, with `rows` kept rows.
  static std::size_t device_bytes(int rows, int vocab);

  core::Status configure(int rows, int vocab);

  /// Takes the sampled rows of the step that `host` has begun; other rows are greedy.
  void fill(const HostStep& host);
  cudaError_t send(cudaStream_t stream);

  /// Whether a row's token is another than that of its largest sum.
  bool is_needed() const { return is_needed_; }
  /// Indices of the sampled rows whose tokens the host chooses: they ask for logprobs, or there was
  /// no room for their changes.
  std::span<const std::size_t> host_rows() const { return host_rows_; }

  const RowSampling* rows() const { return device_rows_.as<RowSampling>(); }
  const LogitChange* changes() const { return device_changes_.as<LogitChange>(); }
  const std::uint32_t* masks() const { return device_masks_.as<std::uint32_t>(); }
  int mask_words() const { return mask_words_; }  ///< of a row's mask

 private:
  bool add_rule(const RowRule& rule, RowSampling& row);

  int max_rows_ = 0, mask_words_ = 0, num_masks_ = 0, num_changes_ = 0;
  bool is_needed_ = false;
  std::vector<std::size_t> host_rows_;
  PinnedBuffer rows_, changes_, masks_;
  DeviceBuffer device_rows_, device_changes_, device_masks_;
};

}  // namespace tandem::kernels::cuda
