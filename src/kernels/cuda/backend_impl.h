#pragma once

#include <cuda_runtime.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tandem/kernels/backend.h"
#include "tandem/kernels/cuda/attention.h"
#include "tandem/kernels/cuda/cuda_backend.h"
#include "tandem/kernels/cuda/cuda_weight.h"
#include "tandem/kernels/cuda/device_buffer.h"
#include "tandem/kernels/cuda/gemm.h"
#include "tandem/kernels/cuda/graph_cache.h"
#include "tandem/kernels/cuda/moe.h"
#include "tandem/kernels/cuda/ple_block.h"
#include "tandem/kernels/cuda/row_ops.h"
#include "tandem/kernels/cuda/sampler.h"
#include "tandem/kernels/cuda/step_block.h"
#include "tandem/kernels/cuda/step_sampling.h"
#include "tandem/kernels/cuda/token_ops.h"
#include "tandem/kernels/cuda/weight_memory.h"
#include "tandem/kernels/host_step.h"
#include "tandem/kernels/sampling.h"

namespace tandem::kernels::cuda {

/// Rows whose logits exist at once.
constexpr int kLogitRows = 64;

/// Workspace of attention over `blocks` key blocks at most (backend_plan.cc).
std::size_t attention_bytes(const Geometry& geometry, int blocks);
/// Partial sums of an operation's products; 0 where the geometry does not say how large they are.
std::size_t partial_bytes(const Geometry& geometry, int num_ctas);

/// Backend on one CUDA device. Residual stream in f32; the inputs of matrix products in fp16 with a
/// power-of-two scale per row; KV in fp16.
///
/// pack() multiplies the first weight of each shape and compares it with the file's values.
///
/// A step of decode spans alone is recorded when its StepSizes come the second time, as two graphs,
/// the target pass up to the accepted tokens and the drafts, and then replayed: its operations only
/// check their turn. Prompts run eagerly. The host waits once a step, at its end; where a row asks
/// for logprobs, also for its logits. It keeps a mirror of the slots (HostStep, no hidden rows).
class CudaBackend final : public Backend {
 public:
  static core::Result<std::unique_ptr<CudaBackend>> create(const CudaOptions& options);
  ~CudaBackend() override;

  core::Result<double> read_rate() override;
  bool runs_ahead() const override { return true; }
  std::string describe() const override { return description_; }
  core::Status configure(const Geometry& geometry) override;
  KvLayout kv_layout() const override { return kv_layout_; }
  std::optional<DeviceMemory> device_memory() const override;
  std::size_t packed_bytes(const WeightView& view, WeightRole role) const override;
  std::size_t workspace_bytes(const Geometry& geometry) const override;
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
  struct HalfBuffer {
    DeviceBuffer data, scale;
    HalfRows view;
  };
  enum class HalfUse {
    kNormed,
    kAttended,
    kGated,
    kPle,
    kPleGated,
    kDraftInput,
    kHead,
    kRounded,
    kRouter,
    kExperts,
    kExpertGated,
    kExpertRounded,
    kCodes  // InputForm::kE4m3Codes: never memory that has held fp16, whose padding would be no
            // zeros
  };
  /// What the device leaves for the host at the end of a step.
  struct Results {
    std::int32_t* broken = nullptr;  ///< [rows] not 0: met a value that is not finite
    TokenId* chosen = nullptr;       ///< [kept rows]
    TokenId* drafts = nullptr;       ///< [kMaxDraft, slots]
  };

  CudaBackend(std::string description, const CudaOptions& options)
      : description_(std::move(description)), tables_on_host_(options.tables_on_host) {}

  // Memory (backend_memory.cc).
  core::Status configure_kv();
  core::Status configure_rows();
  core::Status configure_results();
  core::Status reserve_attention(int blocks);
  void check(cudaError_t error);  ///< remembers the first failure for end_step()
  void check(const core::Status& status);
  void check_launch() { check(cudaGetLastError()); }
  /// Makes a workspace larger; its contents are lost and recorded steps void.
  void grow(DeviceBuffer& buffer, std::size_t bytes);

  // The step (backend_step.cc).
  StepSizes sizes_of(const StepPlan& plan, const StepShape& shape) const;
  void begin_part(GraphPart part);
  void end_part();
  bool is_replay() const { return graphs_.is_replay(); }
  /// Rows that an operation on x runs: those of the step's sizes when it is recorded.
  int count(const Rows& x) const;
  std::int32_t* results_at(const std::int32_t* host) const {
    return device_results_.as<std::int32_t>() + (host - results_.broken);
  }
  /// Where rows of a set are marked; values of the drafter cost acceptance only.
  std::int32_t* broken(RowSet set) const {
    return set == RowSet::kStep ? results_at(results_.broken) : broken_drafts_.as<std::int32_t>();
  }
  /// A token for every row of `input`, as sampling_ says.
  void sample(const Head& head, const HalfRows& input, int rows, TokenId* chosen);
  bool waits_for_host() const { return !sampling_.host_rows().empty(); }
  void choose_on_host(const Head& head, int cols);
  void accept_tokens(Rows h);

  // Operations (backend_ops.cc).
  /// Of max_rows rows, or of `entries` where experts have rows of their own.
  HalfRows half_rows(HalfUse use, int cols, int entries = 0);
  /// The buffer of `use`, or for codes theirs, to be filled as `form` says.
  HalfRows rows_of_form(InputForm form, HalfUse use, int cols);
  const GemmGroup& group(std::initializer_list<const Weight*> weights, bool whole_tiles = false);
  Partials multiply(const GemmGroup& g, const HalfRows& x, int rows);
  /// x as a product wants its inputs.
  HalfRows rounded_input(InputForm form, const HalfRows& x, int rows, int entries = 0);
  /// out[r] = row tokens[r * stride] of a table, times scale.
  void gather(const Weight* table, const std::int32_t* tokens, int stride, int rows, int cols,
              float scale, float* out);
  /// Adds what is pending to x and writes rms(x) * norm (null: x) as the next product's input.
  /// Rounded to e4m3 already where `form` has a scale a row.
  HalfRows next_input(HalfUse use, Rows x, const Weight* norm, InputForm form = InputForm::kHalf,
                      float* plain = nullptr);
  void settle(Rows x, const Weight* norm, const HalfRows& out, float* plain);
  /// Adds what is pending to its rows; other rows than the pending ones are about to be used.
  void flush_pending();
  /// The input of `down`: gelu_tanh(gate z) * (up z) of z, the input of gate_up for the rows x.
  HalfRows gated_input(const GemmGroup& gate_up, const GemmGroup& down, const HalfRows& z,
                       const FfnWeights& w, Rows x);
  /// A layer's experts (backend_moe.cc), with workspace for the largest step.
  ExpertArguments expert_arguments(const MoeWeights& w);
  void set_pending(const Partials& delta, const Weight* post_norm, float scale, bool replace,
                   Rows x);
  /// In `form`, if attention() can round to it.
  HalfRows attend(const AttentionSpec& spec, InputForm form, int rows, RowSet set, bool is_written);
  KvView kv_view(const AttentionSpec& spec) const;
  const DeviceRow* rows(RowSet set) const {
    return set == RowSet::kStep ? block_.rows() : draft_rows_.as<DeviceRow>();
  }
  const float2* rope(RowSet set, AttentionKind kind) const {
    return rope_[static_cast<std::size_t>(set)].table[static_cast<std::size_t>(kind)];
  }
  /// With workspace for both ways to choose tokens: what grows later voids recordings.
  const GemmGroup& head_group(const Head& head);
  /// The likeliest token of every row of `input`.
  void largest(const Head& head, const HalfRows& input, int rows, TokenId* tokens);
  /// The same for drafts, among the tokens of each row's best clusters.
  void largest_of_clusters(const DraftWeights& w, const HalfRows& y, int rows, TokenId* tokens);
  /// The head's inputs from row `first` on, a multiple of 8.
  static HalfRows rows_from(HalfRows x, int first);
  /// In logits_: the head's sums of the n rows of `input`, n <= kLogitRows, which finish_logits()
  /// or sample_rows() makes logits.
  LogitTiles logit_sums(const Head& head, const HalfRows& input, int n);
  /// A finished row of logits_ as [V].
  void copy_logits(int row, float* to, cudaMemcpyKind kind);
  const std::uint32_t* suppressed() const {
    return geometry_.suppressed.empty() ? nullptr : suppressed_.as<std::uint32_t>();
  }

  std::string description_;
  bool tables_on_host_ = false;
  /// Shapes of products that have been compared with the reference, the first of each at load.
  std::set<std::tuple<core::DType, BrickKind, InputForm, int, int>> checked_;
  WeightMemory weight_memory_;
  PackScratch pack_scratch_;  // until the first step
  cudaStream_t stream_ = nullptr;
  int num_ctas_ = 264;
  Geometry geometry_;
  HostStep host_;
  StepBlock block_;
  StepSizes sizes_;
  GraphCache graphs_;
  KvLayout kv_layout_;
  std::array<DeviceBuffer, kNumAttentionKinds> kv_pages_;
  std::vector<std::size_t> kv_layer_offsets_;
  std::array<DeviceBuffer, kNumAttentionKinds> frequencies_;
  std::array<RopeTables, 2> rope_;  // by RowSet
  std::vector<DeviceBuffer> rope_memory_;
  DeviceBuffer suppressed_;
  std::map<std::pair<HalfUse, int>, HalfBuffer> half_;
  std::map<std::vector<const Weight*>, GemmGroup> groups_;
  std::vector<DeviceBuffer> row_memory_;
  DeviceBuffer partials_, queries_, attention_sums_, attention_stats_;
  std::map<const Weight*, LayerExperts> layer_experts_;  // by the first expert's gate
  ExpertMemory experts_;
  DeviceBuffer keys_, logits_, embeddings_, cluster_order_, chosen_clusters_;
  DeviceBuffer hidden_, draft_hidden_, draft_rows_, broken_drafts_;
  DeviceBuffer device_results_;
  PinnedBuffer pinned_results_;
  Results results_;                    // in pinned memory
  std::vector<DeviceBuffer> retired_;  // outgrown workspaces, freed at the end of the step
  // What x still lacks: a sum, a whole block that begins with one, or the branches of a layer with
  // experts, so that the norm that follows is part of the same launch.
  Residual pending_;
  std::optional<PleBlock> pending_ple_;
  std::optional<ExpertMix> pending_mix_;
  Rows pending_x_;
  std::map<const Weight*, int> ple_block_rows_;  // by gate
  std::vector<TokenId> chosen_;
  StepSampling sampling_;
  SamplerShape sampler_;
  PinnedBuffer host_logits_;  // of one row
  SamplingScratch host_sampling_;
  bool is_verified_ = false;
  bool is_first_of_shape_ = false;  // a part of the step is not replayed, but will be
  int draft_steps_ = 0;
  core::Status failure_;
};

}  // namespace tandem::kernels::cuda
