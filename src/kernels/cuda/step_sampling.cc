#include "tandem/kernels/cuda/step_sampling.h"

#include <algorithm>
#include <cstddef>

#include "tandem/kernels/sampling_math.h"

namespace tandem::kernels::cuda {
namespace {

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}
std::size_t words(int vocab) {
  return size((vocab + 31) / 32);
}

template <typename T>
T* as(const PinnedBuffer& buffer) {
  return reinterpret_cast<T*>(buffer.data());
}

}  // namespace

std::size_t StepSampling::device_bytes(int rows, int vocab) {
  return kMaxChanges * sizeof(LogitChange) +
         size(rows) * (sizeof(RowSampling) + words(vocab) * sizeof(std::uint32_t));
}

core::Status StepSampling::configure(int rows, int vocab) {
  max_rows_ = rows;
  mask_words_ = static_cast<int>(words(vocab));
  const std::size_t row_bytes = size(rows) * sizeof(RowSampling);
  const std::size_t change_bytes = kMaxChanges * sizeof(LogitChange);
  const std::size_t mask_bytes = size(rows) * words(vocab) * sizeof(std::uint32_t);
  TANDEM_ASSIGN(rows_, PinnedBuffer::allocate(row_bytes));
  TANDEM_ASSIGN(changes_, PinnedBuffer::allocate(change_bytes));
  TANDEM_ASSIGN(masks_, PinnedBuffer::allocate(mask_bytes));
  TANDEM_ASSIGN(device_rows_, DeviceBuffer::allocate(row_bytes));
  TANDEM_ASSIGN(device_changes_, DeviceBuffer::allocate(change_bytes));
  TANDEM_ASSIGN(device_masks_, DeviceBuffer::allocate(mask_bytes));
  return {};
}

void StepSampling::fill(const HostStep& host) {
  num_masks_ = num_changes_ = 0;
  is_needed_ = false;
  host_rows_.clear();
  RowSampling greedy;
  greedy.params.temperature = 0.0F;
  auto* const rows = as<RowSampling>(rows_);
  std::fill(rows, rows + max_rows_, greedy);
  const auto sampled = host.sampled_rows();
  for (std::size_t i = 0; i < sampled.size(); ++i) {
    RowSampling row = greedy;
    if (sampled[i].rule != nullptr && !add_rule(*sampled[i].rule, row)) {
      host_rows_.push_back(i);
      continue;
    }
    row.params = *sampled[i].sampling;
    is_needed_ = is_needed_ || row.has_rule() || !is_greedy(row.params);
    rows[sampled[i].row] = row;
  }
}

/// False, and nothing added, where the row is the host's.
bool StepSampling::add_rule(const RowRule& rule, RowSampling& row) {
  const auto num_changes = static_cast<int>(rule.changes.size());
  if (rule.top_logprobs || num_changes > kMaxChanges - num_changes_) return false;
  if (num_changes > 0) {
    std::copy(rule.changes.begin(), rule.changes.end(), as<LogitChange>(changes_) + num_changes_);
    row.first_change = num_changes_;
    row.num_changes = num_changes;
    num_changes_ += num_changes;
  }
  if (!rule.mask.empty()) {
    std::copy(rule.mask.begin(), rule.mask.end(),
              as<std::uint32_t>(masks_) + size(num_masks_) * size(mask_words_));
    row.mask = num_masks_++;
  }
  return true;
}

cudaError_t StepSampling::send(cudaStream_t stream) {
  if (!is_needed_) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  const auto copy = [&](const DeviceBuffer& to, const PinnedBuffer& from, std::size_t bytes) {
    if (bytes == 0 || error != cudaSuccess) return;
    error = cudaMemcpyAsync(to.as<void>(), from.data(), bytes, cudaMemcpyHostToDevice, stream);
  };
  copy(device_rows_, rows_, rows_.size());
  copy(device_changes_, changes_, size(num_changes_) * sizeof(LogitChange));
  copy(device_masks_, masks_, size(num_masks_) * size(mask_words_) * sizeof(std::uint32_t));
  return error;
}

}  // namespace tandem::kernels::cuda
