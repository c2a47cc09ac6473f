#pragma once

#include <cuda_runtime.h>

#include <array>
#include <map>

namespace tandem::kernels::cuda {

/// The parts of a step that are recorded apart: what lies between them may need the host.
enum class GraphPart { kTarget, kDraft };

/// Records sequences of launches as graphs and replays them. A part runs eagerly until it has run
/// once in full, so that nothing is allocated while it is recorded. Thread: the stream's user.
class GraphCache {
 public:
  using Key = std::array<int, 6>;  ///< part and sizes

  GraphCache() = default;
  ~GraphCache() { clear(); }
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  /// Begins a part. Recorded before: replays, and its launches must be left out. `may_record`
  /// false: runs eagerly.
  cudaError_t begin(GraphPart part, const Key& key, bool may_record, cudaStream_t stream);
  /// Ends it: launches what was recorded.
  cudaError_t end(cudaStream_t stream);
  /// All operations of a part have run eagerly: from now on it may be recorded.
  void set_warm(GraphPart part) { is_warm_[static_cast<std::size_t>(part)] = true; }
  bool is_warm(GraphPart part) const { return is_warm_[static_cast<std::size_t>(part)]; }

  bool is_replay() const { return mode_ == Mode::kReplay; }
  bool is_eager() const { return mode_ == Mode::kEager; }
  /// Forgets every recording: memory that they use has moved.
  void clear();

 private:
  enum class Mode { kEager, kRecord, kReplay };

  Mode mode_ = Mode::kEager;
  Key key_ = {};
  std::array<bool, 2> is_warm_ = {};
  std::map<Key, cudaGraphExec_t> graphs_;
};

}  // namespace tandem::kernels::cuda
