#pragma once

#include <cuda_runtime.h>

#include <array>
#include <map>

namespace tandem::kernels::cuda {

/// The parts of a step that are recorded apart: what lies between them may need the host.
enum class GraphPart { kTarget, kDraft };

/// Records sequences of launches as graphs and replays them. What is new runs eagerly, is recorded
/// when it comes again, and replayed from then on: nothing is allocated while it is recorded, since
/// the same launches have run before. Thread: the stream's user.
class GraphCache {
 public:
  using Key = std::array<int, 6>;  ///< part and sizes

  GraphCache() = default;
  ~GraphCache() { clear(); }
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  /// Begins a part. Recorded before: replays, and its launches must be left out. `may_record`
  /// false: runs eagerly.
  cudaError_t begin(const Key& key, bool may_record, cudaStream_t stream);
  /// Ends it: launches what was recorded, now or before. `is_whole` false: some launch was refused,
  /// and what was recorded now is neither kept nor launched.
  cudaError_t end(bool is_whole, cudaStream_t stream);

  bool is_replay() const { return mode_ == Mode::kReplay; }
  /// Forgets every recording: memory that they use has moved. What has run eagerly still has.
  void clear();

 private:
  enum class Mode { kEager, kFirst, kRecord, kReplay };  // kFirst: eager, to be remembered

  void remember();

  Mode mode_ = Mode::kEager;
  Key key_ = {};
  std::map<Key, cudaGraphExec_t> graphs_;  // null: has run eagerly
};

}  // namespace tandem::kernels::cuda
