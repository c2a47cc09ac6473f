#pragma once

#include <cuda_runtime.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tandem/kernels/backend.h"
#include "tandem/kernels/cuda/attention.h"
#include "tandem/kernels/cuda/device_buffer.h"
#include "tandem/kernels/cuda/gemm.h"
#include "tandem/kernels/cuda/row_ops.h"
#include "tandem/kernels/cuda/token_ops.h"
#include "tandem/kernels/host_step.h"
#include "tandem/kernels/sampling.h"

namespace tandem::kernels::cuda {

/// Rows whose logits exist at once.
constexpr int kLogitRows = 32;

/// A weight in device memory: bricks of a matrix, or f32 values of a vector.
class CudaWeight final : public Weight {
 public:
  CudaWeight(DeviceBuffer memory, MatrixView view) : memory_(std::move(memory)), view_(view) {}

  std::int64_t rows() const override { return view_.rows; }
  std::int64_t cols() const override { return view_.cols; }
  std::size_t bytes() const override { return memory_.size(); }
  const MatrixView& matrix() const { return view_; }
  const float* vector() const { return memory_.as<float>(); }

 private:
  DeviceBuffer memory_;
  MatrixView view_;
};

/// A host array and its device copy.
template <typename T>
class Upload {
 public:
  core::Status reserve(std::size_t n) {
    TANDEM_ASSIGN(device_, DeviceBuffer::allocate(n * sizeof(T)));
    host_.reserve(n);
    return {};
  }
  std::vector<T>& host() { return host_; }
  T* device() const { return device_.as<T>(); }
  /// Enqueues the copy. The runtime has taken pageable memory over when this returns.
  cudaError_t send(cudaStream_t stream) {
    if (host_.empty()) return cudaSuccess;
    return cudaMemcpyAsync(device_.as<void>(), host_.data(), host_.size() * sizeof(T), cudaMemcpyHostToDevice, stream);
  }
  std::size_t capacity() const { return device_.size() / sizeof(T); }

 private:
  std::vector<T> host_;
  DeviceBuffer device_;
};

/// Backend on one CUDA device. Residual stream in f32; the inputs of matrix products in fp16 with a power-of-two
/// scale per row; KV in fp16. The host keeps a mirror of the slots (HostStep with no hidden rows) and waits for
/// the device twice a step: for the chosen tokens and for the drafts.
class CudaBackend final : public Backend {
 public:
  static core::Result<std::unique_ptr<CudaBackend>> create(int device);
  ~CudaBackend() override;

  std::string describe() const override { return description_; }
  core::Status configure(const Geometry& geometry) override;
  KvLayout kv_layout() const override { return kv_layout_; }
  core::Result<std::unique_ptr<Weight>> pack(const WeightView& view, WeightRole role,
                                             std::string_view name) override;
  core::Result<Rows> allocate_rows(int max_rows, int cols, RowSet set) override;
  void read(const Rows& rows, std::span<float> host) override;
  void write(const Rows& rows, std::span<const float> host) override;
  void set_slot(int slot, const SamplingParams& sampling) override;
  SlotSnapshot read_slot(int slot) override;

  StepShape begin_step(const StepPlan& plan) override;
  void embed(const Weight& table, float scale, Rows x) override;
  void ple_inputs(const PleInputWeights& w, Rows x, Rows ple) override;
  void attention(const AttentionWeights& w, const AttentionSpec& spec, Rows x) override;
  void ffn(const FfnWeights& w, float scale, Rows x) override;
  void moe(const MoeWeights& w, float scale, Rows x) override;
  void ple(const PleLayerWeights& w, Rows ple, int layer, float scale, Rows x) override;
  void final_norm(const Head& head, Rows x, Rows h) override;
  void logits(const Head& head, Rows h, Rows out) override;
  void verify(const Head& head, Rows h) override;
  void draft_input(const DraftWeights& w, int i, Rows x) override;
  void draft_head(const DraftWeights& w, int i, Rows x) override;
  core::Result<StepResult> end_step() override;

 private:
  /// Rows of one set as the device sees them.
  struct RowTables {
    Upload<DeviceRow> rows;
    Upload<TokenId> tokens;
    std::array<DeviceBuffer, kNumAttentionKinds> rope;
    std::map<int, Upload<AttentionTile>> tiles;  // by H / G, of the running step
    std::map<int, int> kept_tiles;               // leading tiles of kept rows
  };
  struct HalfBuffer {
    DeviceBuffer data, scale;
    HalfRows view;
  };
  enum class HalfUse { kNormed, kAttended, kGated, kPle, kPleGated, kDraftInput, kHead };

  explicit CudaBackend(std::string description) : description_(std::move(description)) {}

  core::Status configure_kv();
  core::Status configure_rows();
  void check(cudaError_t error);  ///< remembers the first failure for end_step()
  void check_launch() { check(cudaGetLastError()); }

  HalfRows half_rows(HalfUse use, int cols);
  const GemmGroup& group(std::initializer_list<const Weight*> weights, bool whole_tiles = false);
  Partials multiply(const GemmGroup& g, const HalfRows& x, int rows);
  /// Adds what is pending to x and writes rms(x) * norm (null: x) as the next product's input.
  HalfRows next_input(HalfUse use, Rows x, const Weight* norm, float* plain = nullptr);
  /// Adds what is pending to its rows; other rows than the pending ones are about to be used.
  void flush_pending();
  void set_pending(const Partials& delta, const Weight* post_norm, float scale, bool replace, Rows x);
  void attend(const AttentionSpec& spec, const HalfRows& out, int rows, RowSet set);
  KvView kv_view(const AttentionSpec& spec) const;
  void upload_rows(RowSet set);
  void upload_tables();
  int upload_tiles(int ratio, RowSet set, int rows);
  /// logits_ [n, V] of the rows of `input`.
  void compute_logits(const Head& head, const HalfRows& input, int n);
  void choose(const HostStep::SampledRow* sampled, int first, int n);
  TokenId sample_candidates(const Candidates& c, const SamplingParams& params, Position position);
  RowTables& tables(RowSet set) { return row_tables_[static_cast<std::size_t>(set)]; }

  std::string description_;
  cudaStream_t stream_ = nullptr;
  int num_ctas_ = 264;
  Geometry geometry_;
  HostStep host_;
  KvLayout kv_layout_;
  std::array<DeviceBuffer, kNumAttentionKinds> kv_pages_;
  std::vector<std::size_t> kv_layer_offsets_;
  std::array<Upload<PageId>, kNumAttentionKinds> page_tables_;
  std::array<int, kNumAttentionKinds> table_stride_ = {};
  std::array<DeviceBuffer, kNumAttentionKinds> frequencies_;
  DeviceBuffer suppressed_;
  std::array<RowTables, 2> row_tables_;
  std::map<std::pair<HalfUse, int>, HalfBuffer> half_;
  std::map<std::vector<const Weight*>, GemmGroup> groups_;
  std::vector<DeviceBuffer> row_memory_;
  DeviceBuffer partials_, queries_, attention_sums_, attention_stats_;
  DeviceBuffer logit_partials_, logits_, tokens_, candidates_, embeddings_;
  DeviceBuffer hidden_, draft_hidden_, draft_tokens_, fault_;
  Upload<std::int32_t> copy_from_, copy_to_, top_k_;
  std::vector<DeviceBuffer> retired_;  // outgrown workspaces, freed at the end of the step
  Residual pending_;
  Rows pending_x_;
  std::vector<TokenId> chosen_;
  std::vector<Candidates> host_candidates_;
  std::vector<float> host_logits_;
  std::vector<std::pair<TokenId, float>> candidate_order_;
  SamplingScratch sampling_;
  int draft_steps_ = 0;
  core::Status failure_;
};

}  // namespace tandem::kernels::cuda
