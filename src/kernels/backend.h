#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/kernels/op_weights.h"
#include "tandem/kernels/step.h"
#include "tandem/kernels/synthetic_acceptance.h"
#include "tandem/kernels/weight.h"

namespace tandem::kernels {

// Dimension letters: T rows of a step, R kept rows (R <= T), S sequences, L layers, H query heads,
// G KV heads, D head size, E model width, F ffn width, V vocabulary, P per-layer-embedding width,
// K draft length, X experts. rms(x) = x / sqrt(mean(x^2) + eps), computed in f32.

/// Which rows a buffer's rows stand for.
enum class RowSet : std::uint8_t {
  kStep,   ///< the rows of the target pass: kept rows first, then the other prompt rows
  kDraft,  ///< one row per sequence that drafts, longest draft first
};

/// f32 activations [rows, cols] in backend memory, row-major, owned by the backend.
struct Rows {
  float* data = nullptr;
  int rows = 0;
  int cols = 0;
  RowSet set = RowSet::kStep;

  Rows prefix(int n) const { return {data, n, cols, set}; }  ///< the first n rows
};

/// One KV-owning layer of the target, in layer order. Its index is the "kv layer".
struct KvLayerSpec {
  AttentionKind kind = AttentionKind::kSliding;
  int kv_heads = 0;   ///< G
  int head_size = 0;  ///< D
};

/// How the cache holds a value. A backend may keep kF16 otherwise if that is as exact: the
/// reference as f32, the CPU as 16-bit integers with an f32 scale for each key, and each value, of
/// a head.
enum class KvType : std::uint8_t {
  kF16,
  kInt8,  ///< with the same scales
};

/// What a backend must know before the first weight is packed.
struct Geometry {
  int max_sequences = 1;  ///< slots
  int max_rows = 1;       ///< T of the largest step
  int max_kept_rows = 1;  ///< R of the largest step
  int hidden = 0;         ///< E of the target: width of a slot's hidden row
  int vocab = 0;          ///< V
  std::vector<KvLayerSpec> kv_layers;
  int window = 0;  ///< W of the sliding layers, own position included
  /// RoPE frequency f_i of pair (i, i + D/2), i < D/2, by AttentionKind; 0: not rotated.
  std::array<std::vector<float>, kNumAttentionKinds> rope_frequencies;
  std::vector<TokenId> suppressed;  ///< logits forced to -inf, in target and drafter
  float rms_eps = 1e-6F;
  std::size_t kv_memory_bytes = 0;  ///< budget over both kinds of pages
  KvType kv_type = KvType::kF16;
  // What bounds the workspace; 0: not known, it grows as needed.
  int max_context = 0;  ///< positions of a sequence
  int max_inputs = 0;   ///< of a product
  int max_outputs = 0;  ///< of all products of an operation together, but for the head
  int top_experts = 0;  ///< of a row
  int expert_ffn = 0;   ///< F of an expert
  /// True if steps of equal shape call the same ops in the same order on the same weights and rows,
  /// as a model's forward pass does: a device may then record a step once and replay it.
  bool steps_repeat = false;
  SyntheticAcceptance acceptance;  ///< for speed work only
};

/// Memory of a device that is not the process's own.
struct DeviceMemory {
  std::size_t total = 0;
  std::size_t free = 0;    ///< of every process
  std::size_t driver = 0;  ///< about what the driver and recorded steps take beside everything else
};

/// How the backend pages the KV cache. One page of a kind holds page_tokens positions of K and V
/// of all kv layers of that kind. Page ids of a kind run from 0 to max_pages - 1; all pages of both
/// kinds may be more than the budget, within which the engine keeps the sum.
struct KvLayout {
  int page_tokens = 0;
  std::array<std::size_t, kNumAttentionKinds> page_bytes = {};
  std::array<int, kNumAttentionKinds> max_pages = {};
};

/// State of one slot as the host may read it back, for tests and diagnosis.
struct SlotSnapshot {
  TokenId token = 0;      ///< next input token
  Position position = 0;  ///< its position = tokens in the cache
  std::vector<TokenId> drafts;
  std::vector<float> hidden;        ///< [E] the drafter's input hidden u
  std::vector<float> draft_hidden;  ///< [E] u after the last draft step
};

/// The coarse operations that a forward pass is made of; the only virtual interface to compute.
///
/// Slots. Per-sequence state (next token, position, drafts, the drafter's hidden row, sampling)
/// lives in backend memory, so that a device can run step after step without the host: verify()
/// and draft_head() write it, begin_step() reads it.
///
/// Batch invariance. A row's result is the same bits whatever other rows are in the step, however
/// a prompt is cut into chunks, and whether a token came as prompt, decode or draft row.
///
/// Order of calls: configure, pack*, then per step: begin_step, target ops, verify, draft ops,
/// end_step. An op may return before it is done; end_step waits and reports a device fault.
/// Thread: one caller (the engine thread).
class Backend {
 public:
  virtual ~Backend() = default;

  /// Bytes a second at which a sweep reads the memory that weights lie in; 0: it cannot say.
  virtual core::Result<double> read_rate() { return 0.0; }

  /// Whether operations return before they are done, so that the caller has time of its own until
  /// it calls end_step().
  virtual bool runs_ahead() const { return false; }

  virtual std::string describe() const = 0;  ///< "cpu (avx512, 2 threads)", for logs

  /// Reserves slots, workspace and KV address space. Fails with kResourceExhausted or, for a shape
  /// that the backend cannot run, kUnimplemented. Called once.
  virtual core::Status configure(const Geometry& geometry) = 0;
  virtual KvLayout kv_layout() const = 0;

  // ---- planning, before configure(): what will be taken of the device's memory ------------------
  /// None: the backend works in the process's memory, and the rest of this section means nothing.
  virtual std::optional<DeviceMemory> device_memory() const { return std::nullopt; }
  /// Of a weight that pack() takes, by type and shape; 0 for a table that stays in host memory. One
  /// whose values a compact form cannot hold may take more: that shows only when it is packed.
  virtual std::size_t packed_bytes(const WeightView& view, WeightRole) const {
    return view.bytes();
  }
  /// At most, beside weights, allocate_rows() and KV.
  virtual std::size_t workspace_bytes(const Geometry&) const { return 0; }

  /// Packs a weight that passes WeightView::check; `name` is for messages. kTable weights may refer
  /// to the view's bytes for ever, all others copy. May use all compute threads. Fails with
  /// kUnimplemented for a dtype or scales that it cannot run.
  virtual core::Result<std::unique_ptr<Weight>> pack(const WeightView& view, WeightRole role,
                                                     std::string_view name) = 0;

  /// Zeroed rows in backend memory, alive as long as the backend.
  virtual core::Result<Rows> allocate_rows(int max_rows, int cols, RowSet set) = 0;
  /// Copies rows to or from host memory [rows, cols]; waits for pending ops.
  virtual void read(const Rows& rows, std::span<float> host) = 0;
  virtual void write(const Rows& rows, std::span<const float> host) = 0;

  virtual void set_slot(int slot, const SamplingParams& sampling) = 0;  ///< starts a sequence
  virtual SlotSnapshot read_slot(int slot) = 0;

  // ---- one step --------------------------------------------------------------------------------
  struct StepShape {
    int rows = 0;         ///< T
    int kept_rows = 0;    ///< R; rows [0, R) are the kept ones
    int draft_rows = 0;   ///< sequences that draft
    int draft_steps = 0;  ///< longest next_drafts
  };
  /// Lays the plan's rows out (all kept rows first, span by span in the plan's order, then the
  /// other prompt rows) and resolves tokens and positions from the slots. Copies what it needs.
  virtual StepShape begin_step(const StepPlan& plan) = 0;

  /// x[r] = table[token of row r] * scale. x: [T, E].
  virtual void embed(const Weight& table, float scale, Rows x) = 0;

  /// Per-layer embeddings of all rows, spec/model.md section 4: per layer l
  /// ple[r, l*P..] = (rms_P((projection x[r])_l * E^-0.5) * norm + table[token][l] * sqrt(P)) /
  /// sqrt(2). x: [T, E] embedded; ple: [T, L*P].
  virtual void ple_inputs(const PleInputWeights& w, Rows x, Rows ple) = 0;

  /// x += rms(out * attention(rms(x) * norm)) * post_norm, spec/model.md section 5: q and k are
  /// normed per head and rotated, v is normed without weight, K and V are written to the cache
  /// first (as KvType says), scores have scale 1. A kStep row at position p sees keys j <= p, a
  /// kDraft row with position p keys j < p; sliding layers only j > p - W. With spec.last_kv_owner
  /// only kept rows of x are updated. x: [rows, E].
  virtual void attention(const AttentionWeights& w, const AttentionSpec& spec, Rows x) = 0;

  /// x = (x + rms(down(gelu_tanh(gate z) * (up z))) * post_norm) * scale, z = rms(x) * norm.
  virtual void ffn(const FfnWeights& w, float scale, Rows x) = 0;

  /// x = (x + rms(a + b) * shared.post_norm) * scale, spec/model.md section 7, r = x:
  /// a = rms(down(gelu_tanh(gate z) * (up z))) * shared_post_norm, z = rms(r) * shared.norm;
  /// p = softmax(router . (rms(r) * router_scale * E^-0.5)); the top_k largest, the lower id first
  /// on ties, weigh w_e = p_e / (sum of theirs) * expert_scale[e]; b = rms(sum_e w_e *
  /// down_e(gelu_tanh(gate_e y) * (up_e y))) * experts_post_norm, the sum in ascending e, y =
  /// rms(r) * experts_norm. x: [rows, E].
  virtual void moe(const MoeWeights& w, float scale, Rows x) = 0;

  /// x = (x + rms(projection(gelu_tanh(gate x) * ple[:, layer*P ..])) * post_norm) * scale.
  virtual void ple(const PleLayerWeights& w, Rows ple, int layer, float scale, Rows x) = 0;

  /// h = rms(x) * head.norm: the LM head's and the drafter's input. x, h: [rows, width].
  virtual void final_norm(const Head& head, Rows x, Rows h) = 0;

  /// out[r] = softcapped logits of h[r], suppressed ids at -inf. For scoring and tests; serving
  /// uses verify(). h: [rows, E], out: [rows, V].
  virtual void logits(const Head& head, Rows h, Rows out) = 0;

  /// Chooses a token for every sampled row of h [R, E] by its slot's SamplingParams, accepts drafts
  /// while they equal the chosen token, and updates the slot: token, position, and hidden = the h
  /// row that predicted the token. Exact: the law of the output is the target's, and greedy
  /// output does not depend on the drafts. Bounded workspace: logits of all rows need not exist
  /// at once.
  virtual void verify(const Head& head, Rows h) = 0;

  // ---- drafter, step i of a round: draft_input, layers, draft_head --------------------------

  /// x[r] = pre_projection . concat(target_embedding[token] * scale, hidden), token and hidden from
  /// the slot (i = 0) or from draft step i - 1. x: [rows drafting more than i tokens, d].
  virtual void draft_input(const DraftWeights& w, int i, Rows x) = 0;

  /// y = rms(x) * norm; draft i = argmax(table y), lowest id on ties, suppressed ids never, with
  /// w.centroids only over the ids of its best clusters; hidden = post_projection y.
  virtual void draft_head(const DraftWeights& w, int i, Rows x) = 0;

  /// Waits for the step. Values that are not finite break the spans they are met in, see
  /// SpanResult, and never reach the cache. kInternal: device fault; the engine fails the
  /// running requests and stops.
  virtual core::Result<StepResult> end_step() = 0;
};

}  // namespace tandem::kernels
