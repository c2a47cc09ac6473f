#include "tandem/kernels/cuda/graph_cache.h"

#include <cstddef>
#include <utility>

namespace tandem::kernels::cuda {
namespace {

// Far more than a server meets; a bound on memory, not a working set.
constexpr std::size_t kMaxGraphs = 256;

}  // namespace

cudaError_t GraphCache::begin(const Key& key, bool may_record, cudaStream_t stream) {
  mode_ = Mode::kEager;
  if (!may_record) return cudaSuccess;
  key_ = key;
  const auto known = graphs_.find(key);
  if (known == graphs_.end()) {
    mode_ = Mode::kFirst;
    return cudaSuccess;
  }
  if (known->second != nullptr) {
    mode_ = Mode::kReplay;
    return cudaSuccess;
  }
  mode_ = Mode::kRecord;
  return cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
}

cudaError_t GraphCache::end(bool is_whole, cudaStream_t stream) {
  const Mode mode = std::exchange(mode_, Mode::kEager);
  if (mode == Mode::kEager) return cudaSuccess;
  if (mode == Mode::kFirst) {
    if (is_whole) remember();
    return cudaSuccess;
  }
  if (mode == Mode::kReplay) return cudaGraphLaunch(graphs_.at(key_), stream);
  cudaGraph_t graph = nullptr;
  cudaError_t error = cudaStreamEndCapture(stream, &graph);
  if (error != cudaSuccess) return error;
  cudaGraphExec_t executable = nullptr;
  if (is_whole) error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  if (executable == nullptr) return error;
  graphs_.insert_or_assign(key_, executable);
  return cudaGraphLaunch(executable, stream);
}

void GraphCache::remember() {
  if (graphs_.size() >= kMaxGraphs) {
    clear();
    graphs_.clear();
  }
  graphs_.emplace(key_, nullptr);
}

void GraphCache::clear() {
  for (auto& [key, executable] : graphs_) {
    if (executable != nullptr) cudaGraphExecDestroy(std::exchange(executable, nullptr));
  }
}

}  // namespace tandem::kernels::cuda
