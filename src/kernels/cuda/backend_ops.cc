// The operations of the CUDA backend: each is a short chain of launches on one stream.

#include <algorithm>
#include <cmath>
#include <utility>

#include "tandem/kernels/cuda/backend_impl.h"
#include "tandem/kernels/cuda/centroid_head.h"
#include "tandem/kernels/cuda/gated_rows.h"
#include "tandem/kernels/cuda/pack.h"
#include "tandem/kernels/cuda/round_rows.h"

namespace tandem::kernels::cuda {
namespace {

const CudaWeight& weight(const Weight* w) {
  TANDEM_CHECK(w != nullptr, "a weight of this operation is missing");
  return static_cast<const CudaWeight&>(*w);
}
const float* vector(const Weight* w) {
  return w == nullptr ? nullptr : weight(w).vector();
}

}  // namespace

// ---- products -----------------------------------------------------------------------------------

HalfRows CudaBackend::half_rows(HalfUse use, int cols, int entries) {
  HalfBuffer& buffer = half_[{use, cols}];
  if (buffer.view.data == nullptr) {
    const int rows = entries > 0             ? entries
                     : use == HalfUse::kHead ? geometry_.max_kept_rows
                                             : geometry_.max_rows;
    // Whole row blocks of the largest GEMM schedule, which may begin at any tile of the head's
    // rows.
    const int tiles =
        (rows + kRowBlock - 1) / kRowBlock * (kRowBlock / 8) + (use == HalfUse::kHead ? 8 : 0);
    const int superblocks = (cols + kBrickCols - 1) / kBrickCols;
    auto data = DeviceBuffer::allocate(static_cast<std::size_t>(superblocks) * tiles * 8 *
                                       kBrickCols * sizeof(half));
    auto scale = DeviceBuffer::allocate(static_cast<std::size_t>(tiles) * 8 * sizeof(float));
    if (!data.ok() || !scale.ok()) {
      check(data.ok() ? scale.status() : data.status());
      return {};
    }
    buffer.data = *std::move(data);
    buffer.scale = *std::move(scale);
    buffer.view = {buffer.data.as<half>(), buffer.scale.as<float>(), tiles, cols};
  }
  return buffer.view;
}

HalfRows CudaBackend::rows_of_form(InputForm form, HalfUse use, int cols) {
  HalfRows out = half_rows(form == InputForm::kE4m3Codes ? HalfUse::kCodes : use, cols);
  out.form = form;
  return out;
}

const GemmGroup& CudaBackend::group(std::initializer_list<const Weight*> weights,
                                    bool whole_tiles) {
  std::vector<const Weight*> key(weights);
  auto found = groups_.find(key);
  if (found != groups_.end()) return found->second;
  std::vector<MatrixView> matrices;
  for (const Weight* w : weights) {
    if (w != nullptr) matrices.push_back(weight(w).matrix());
  }
  auto made = GemmGroup::create(matrices, num_ctas_, whole_tiles);
  if (!made.ok()) {
    check(made.status());
    made = GemmGroup();
  }
  if (!whole_tiles) {
    grow(partials_, static_cast<std::size_t>(made->slots()) *
                        static_cast<std::size_t>(geometry_.max_rows) * kTileRows * sizeof(float));
  }
  return groups_.emplace(std::move(key), *std::move(made)).first->second;
}

Partials CudaBackend::multiply(const GemmGroup& g, const HalfRows& x, int rows) {
  const Partials out = g.run(rounded_input(g.input(), x, rows), rows, partials_.as<float>(),
                             geometry_.max_rows, stream_);
  check_launch();
  return out;
}

HalfRows CudaBackend::rounded_input(InputForm form, const HalfRows& x, int rows, int entries) {
  if (form == x.form) return x;
  const HalfUse use = form == InputForm::kE4m3Codes ? HalfUse::kCodes
                      : entries > 0                 ? HalfUse::kExpertRounded
                                                    : HalfUse::kRounded;
  const HalfRows out = round_rows(x, rows, form, half_rows(use, x.cols, entries), stream_);
  check_launch();
  return out;
}

void CudaBackend::gather(const Weight* table, const std::int32_t* tokens, int stride, int n,
                         int cols, float scale, float* out) {
  const CudaWeight& w = weight(table);
  if (w.host_rows().rows != nullptr) {
    gather_host_rows(w.host_rows(), tokens, stride, n, cols, scale, out, stream_);
  } else {
    gather_rows(w.matrix(), tokens, stride, n, cols, scale, out, stream_);
  }
  check_launch();
}

void CudaBackend::set_pending(const Partials& delta, const Weight* post_norm, float scale,
                              bool replace, Rows x) {
  pending_ = {delta, 0, vector(post_norm), scale, replace};
  pending_x_ = x;
}

void CudaBackend::settle(Rows x, const Weight* norm, const HalfRows& out, float* plain) {
  const Residual residual = std::exchange(pending_, {});
  const std::optional<PleBlock> block = std::exchange(pending_ple_, std::nullopt);
  const std::optional<ExpertMix> mix = std::exchange(pending_mix_, std::nullopt);
  if (block) {
    ple_block(*block, x.data, count(x), x.cols, geometry_.rms_eps, vector(norm), out, plain,
              broken(x.set), stream_);
  } else if (mix) {
    mix_experts(*mix, x.data, count(x), geometry_.rms_eps, vector(norm), out, plain, broken(x.set),
                stream_);
  } else {
    residual_norm(residual, x.data, count(x), x.cols, geometry_.rms_eps, vector(norm), out, plain,
                  broken(x.set), stream_);
  }
  check_launch();
}

void CudaBackend::flush_pending() {
  if (pending_.delta.data != nullptr || pending_ple_ || pending_mix_)
    settle(pending_x_, nullptr, {}, nullptr);
}

HalfRows CudaBackend::next_input(HalfUse use, Rows x, const Weight* norm, InputForm form,
                                 float* plain) {
  if (pending_x_.data != x.data || pending_x_.rows != x.rows) flush_pending();
  if (!is_e4m3_rows(form) || pending_ple_) form = InputForm::kHalf;
  HalfRows out = plain == nullptr ? rows_of_form(form, use, x.cols) : HalfRows{};
  settle(x, norm, out, plain);
  return out;
}

// ---- target and drafter layers ------------------------------------------------------------------

void CudaBackend::embed(const Weight& table, float scale, Rows x) {
  if (is_replay()) return;
  gather(&table, &rows(x.set)->token, kRowStride, count(x), x.cols, scale, x.data);
}

void CudaBackend::ple_inputs(const PleInputWeights& w, Rows x, Rows ple) {
  if (is_replay()) return;
  const int width = static_cast<int>(w.norm->cols()), n = count(x);
  // Groups may grow the workspace: make them before their input is in flight.
  const GemmGroup& projection = group({w.projection});
  const Partials p =
      multiply(projection, next_input(HalfUse::kPle, x, nullptr, projection.input()), n);
  gather(w.table, &rows(x.set)->token, kRowStride, n, ple.cols,
         std::sqrt(static_cast<float>(width)), ple.data);
  combine_ple(p, vector(w.norm), 1.0F / std::sqrt(static_cast<float>(x.cols)), geometry_.rms_eps, n,
              ple.cols / width, width, ple.data, stream_);
  check_launch();
}

KvView CudaBackend::kv_view(const AttentionSpec& spec) const {
  const auto kind = static_cast<std::size_t>(spec.kind);
  return {kv_pages_[kind].as<std::uint8_t>(), kv_layout_.page_bytes[kind],
          kv_layer_offsets_[static_cast<std::size_t>(spec.kv_layer)], block_.tables(kind),
          sizes_.blocks};
}

void CudaBackend::attention(const AttentionWeights& w, const AttentionSpec& spec, Rows x) {
  if (is_replay()) return;
  const bool writes_kv = w.k != nullptr;
  const GemmGroup& qkv = group({w.q, w.k, w.v});
  const GemmGroup& out = group({w.out});
  const int n = count(x);
  const bool leaves = x.set == RowSet::kStep && spec.last_kv_owner && !sizes_.is_filled_up;
  const int kept = leaves ? host_.kept_rows() : n;
  grow(queries_, static_cast<std::size_t>(geometry_.max_rows) *
                     static_cast<std::size_t>(spec.heads * spec.head_size) * sizeof(half));
  HeadInputs heads;
  heads.sums = multiply(qkv, next_input(HalfUse::kNormed, x, w.norm, qkv.input()), n);
  heads.layout = {spec.heads, spec.kv_heads, spec.head_size, -1, -1, w.v == nullptr};
  if (writes_kv) heads.layout.k_tile = qkv.first_tile(1);
  if (writes_kv && w.v != nullptr) heads.layout.v_tile = qkv.first_tile(2);
  heads.q_norm = vector(w.q_norm);
  heads.k_norm = vector(w.k_norm);
  heads.rope = rope(x.set, spec.kind);
  heads.eps = geometry_.rms_eps;
  heads.broken = broken(x.set);
  qkv_finish(heads, rows(x.set), n, kept, kv_view(spec), queries_.as<half>(), stream_);
  check_launch();
  if (kept == 0) return;
  const HalfRows attended = attend(spec, out.input(), kept, x.set, writes_kv);
  set_pending(multiply(out, attended, kept), w.post_norm, 1.0F, false,
              x.prefix(std::min(kept, x.rows)));
}

HalfRows CudaBackend::attend(const AttentionSpec& spec, InputForm form, int n, RowSet set,
                             bool is_written) {
  cudaError_t error = cudaSuccess;
  const StepBlock::Tiles tiles =
      block_.tiles(spec.heads / spec.kv_heads, set, host_, stream_, error);
  check(error);
  // Draft rows have a tile each; of the step's rows, all or the kept ones attend.
  const bool all = n == host_.num_rows() || sizes_.is_filled_up;
  const int num_tiles = set == RowSet::kDraft ? n : all ? tiles.count : tiles.kept;
  AttentionArguments a;
  a.q = queries_.as<half>();
  a.rows = rows(set);
  a.tiles = tiles.device;
  a.kv = kv_view(spec);
  a.heads = spec.heads;
  a.kv_heads = spec.kv_heads;
  a.head_size = spec.head_size;
  a.window = spec.kind == AttentionKind::kSliding ? geometry_.window : 0;
  a.is_written = is_written;
  a.partial_sums = attention_sums_.as<float>();
  a.partial_stats = attention_stats_.as<float2>();
  // The rows of a tile begin at most 15 positions apart.
  const int window_blocks = (geometry_.window + 15 + kPageTokens - 1) / kPageTokens + 1;
  const int max_blocks = a.window > 0 ? std::min(sizes_.blocks, window_blocks) : sizes_.blocks;
  const std::size_t unit_bytes = attention_block_bytes(spec.head_size) *
                                 static_cast<std::size_t>(max_blocks) *
                                 static_cast<std::size_t>(spec.kv_heads);
  if (!is_e4m3_rows(form) || !rounds_output(a, max_blocks)) form = InputForm::kHalf;
  const HalfRows out = rows_of_form(form, HalfUse::kAttended, spec.heads * spec.head_size);
  const int batch = std::clamp(static_cast<int>(attention_sums_.size() / unit_bytes), 1, num_tiles);
  for (int first = 0; first < num_tiles; first += batch) {
    cuda::attention(a, first, std::min(batch, num_tiles - first), max_blocks, out, stream_);
  }
  check_launch();
  return out;
}

HalfRows CudaBackend::gated_input(const GemmGroup& gate_up, const GemmGroup& down,
                                  const HalfRows& z, const FfnWeights& w, Rows x) {
  const int width = static_cast<int>(w.gate->rows()), n = count(x);
  const Partials p = multiply(gate_up, z, n);
  const bool is_rounded = is_e4m3_rows(down.input()) && width <= kMostGatedCols;
  const HalfRows gated =
      rows_of_form(is_rounded ? down.input() : InputForm::kHalf, HalfUse::kGated, width);
  if (is_rounded) {
    gated_rows(p, gate_up.first_tile(1), nullptr, 0, n, width, gated, broken(x.set), stream_);
  } else {
    geglu(p, gate_up.first_tile(1), n, width, gated, broken(x.set), stream_);
  }
  check_launch();
  return gated;
}

void CudaBackend::ffn(const FfnWeights& w, float scale, Rows x) {
  if (is_replay()) return;
  const GemmGroup& gate_up = group({w.gate, w.up});
  const GemmGroup& down = group({w.down});
  const HalfRows z = next_input(HalfUse::kNormed, x, w.norm, gate_up.input());
  const HalfRows gated = gated_input(gate_up, down, z, w, x);
  set_pending(multiply(down, gated, count(x)), w.post_norm, scale, false, x);
}

void CudaBackend::ple(const PleLayerWeights& w, Rows ple, int layer, float scale, Rows x) {
  if (is_replay()) return;
  const MatrixView &gate = weight(w.gate).matrix(), &projection = weight(w.projection).matrix();
  const float* inputs = ple.data + static_cast<std::ptrdiff_t>(layer) * gate.rows;
  // Both ways have what they need before a step with other rows is recorded.
  const GemmGroup& gate_group = group({w.gate});
  const GemmGroup& projection_group = group({w.projection});
  const InputForm form = projection_group.input();
  const bool is_rounded = is_e4m3_rows(form);
  const HalfRows gated =
      rows_of_form(is_rounded ? form : InputForm::kHalf, HalfUse::kPleGated, gate.rows);
  half_rows(HalfUse::kPle, x.cols);
  const auto [most_rows, is_new] = ple_block_rows_.emplace(w.gate, 0);
  if (is_new) most_rows->second = ple_block_rows(gate, projection);
  const int n = count(x);
  if (n <= most_rows->second) {
    const bool is_of_x = pending_x_.data == x.data && pending_x_.rows == x.rows;
    if (!is_of_x || pending_ple_ || pending_mix_) flush_pending();
    pending_ple_ = PleBlock{std::exchange(pending_, {}), gate, projection, inputs, ple.cols,
                            vector(w.post_norm),         scale};
    pending_x_ = x;
    return;
  }
  const Partials p =
      multiply(gate_group, next_input(HalfUse::kPle, x, nullptr, gate_group.input()), n);
  if (is_rounded) {
    gated_rows(p, 0, inputs, ple.cols, n, gate.rows, gated, broken(x.set), stream_);
  } else {
    gated_ple(p, inputs, ple.cols, n, gate.rows, gated, broken(x.set), stream_);
  }
  check_launch();
  set_pending(multiply(projection_group, gated, n), w.post_norm, scale, false, x);
}

// ---- head ---------------------------------------------------------------------------------------

void CudaBackend::final_norm(const Head& head, Rows x, Rows h) {
  if (is_replay()) return;
  next_input(HalfUse::kNormed, x, head.norm, InputForm::kHalf, h.data);
}

const GemmGroup& CudaBackend::head_group(const Head& head) {
  const GemmGroup& table = group({head.table}, /*whole_tiles=*/true);
  const std::size_t rows =
      static_cast<std::size_t>(std::max(geometry_.max_kept_rows, geometry_.max_sequences));
  grow(keys_, (rows + kRowBlock - 1) / kRowBlock * kRowBlock *
                  static_cast<std::size_t>(table.keys_per_row()) * sizeof(unsigned long long));
  return table;
}

void CudaBackend::largest(const Head& head, const HalfRows& input, int n, TokenId* tokens) {
  const GemmGroup& table = head_group(head);
  auto* keys = keys_.as<unsigned long long>();
  table.run_largest(rounded_input(table.input(), input, n), n,
                    {keys, suppressed(), geometry_.vocab}, stream_);
  largest_tokens(keys, table.keys_per_row(), n, geometry_.vocab, tokens, stream_);
  check_launch();
}

HalfRows CudaBackend::rows_from(HalfRows x, int first) {
  x.data += static_cast<std::ptrdiff_t>(first) * kBrickCols;
  x.scale += first;
  return x;
}

LogitTiles CudaBackend::logit_sums(const Head& head, const HalfRows& input, int n) {
  const GemmGroup& table = head_group(head);
  const Partials sums = table.run(rounded_input(table.input(), input, n), n, logits_.as<float>(),
                                  kLogitRows, stream_);
  check_launch();
  LogitTiles out;
  out.sums = sums;
  out.data = logits_.as<float>();
  out.vocab = geometry_.vocab;
  out.softcap = head.softcap;
  out.inverse_softcap = head.softcap > 0.0F ? 1.0F / head.softcap : 0.0F;
  out.suppressed = suppressed();
  return out;
}

void CudaBackend::copy_logits(int row, float* to, cudaMemcpyKind kind) {
  // Whole tiles, then what the vocabulary has of the last one.
  const auto vocab = static_cast<std::size_t>(geometry_.vocab);
  const std::size_t tile_bytes = kTileRows * sizeof(float), tiles = vocab / kTileRows;
  const float* const from = logits_.as<float>() + static_cast<std::size_t>(row) * kTileRows;
  const std::size_t step = kLogitRows * tile_bytes;
  if (tiles > 0) {
    check(cudaMemcpy2DAsync(to, tile_bytes, from, step, tile_bytes, tiles, kind, stream_));
  }
  check(cudaMemcpyAsync(to + tiles * kTileRows, from + tiles * step / sizeof(float),
                        vocab % kTileRows * sizeof(float), kind, stream_));
}

void CudaBackend::logits(const Head& head, Rows h, Rows out) {
  for (int first = 0; first < h.rows; first += kLogitRows) {
    const int n = std::min(kLogitRows, h.rows - first);
    const Rows part = {h.data + static_cast<std::ptrdiff_t>(first) * h.cols, n, h.cols, h.set};
    finish_logits(logit_sums(head, next_input(HalfUse::kHead, part, nullptr), n), n, stream_);
    check_launch();
    for (int r = 0; r < n; ++r) {
      copy_logits(r, out.data + static_cast<std::ptrdiff_t>(first + r) * out.cols,
                  cudaMemcpyDeviceToDevice);
    }
  }
}

// ---- drafter ------------------------------------------------------------------------------------

void CudaBackend::draft_input(const DraftWeights& w, int i, Rows x) {
  draft_steps_ = i + 1;
  if (is_replay()) return;
  const int n = count(x);
  const TokenId* tokens = i == 0 ? &rows(RowSet::kDraft)->token
                                 : results_at(results_.drafts) +
                                       static_cast<std::ptrdiff_t>(i - 1) * geometry_.max_sequences;
  const GemmGroup& pre = group({w.pre_projection});
  gather(w.target_embedding, tokens, i == 0 ? kRowStride : 1, n, geometry_.hidden,
         w.embedding_scale, embeddings_.as<float>());
  const HalfRows input = half_rows(HalfUse::kDraftInput, 2 * geometry_.hidden);
  concat_draft_input(embeddings_.as<float>(), (i == 0 ? hidden_ : draft_hidden_).as<float>(),
                     rows(RowSet::kDraft), n, geometry_.hidden, input, stream_);
  check_launch();
  set_pending(multiply(pre, input, n), nullptr, 1.0F, true, x);
}

void CudaBackend::draft_head(const DraftWeights& w, int i, Rows x) {
  if (is_replay()) return;
  const int n = count(x);
  const GemmGroup& post = group({w.post_projection});
  TokenId* tokens =
      results_at(results_.drafts) + static_cast<std::ptrdiff_t>(i) * geometry_.max_sequences;
  const HalfRows y = next_input(HalfUse::kNormed, x, w.head.norm);
  const Partials hidden = multiply(post, y, n);
  store_hidden(hidden, rows(RowSet::kDraft), n, geometry_.hidden, draft_hidden_.as<float>(),
               stream_);
  if (w.centroids.centroids == nullptr) {
    largest(w.head, y, n, tokens);
  } else {
    largest_of_clusters(w, y, n, tokens);
  }
}

void CudaBackend::largest_of_clusters(const DraftWeights& w, const HalfRows& y, int n,
                                      TokenId* tokens) {
  const GemmGroup& centroids = group({w.centroids.centroids});
  const CudaWeight& table = weight(w.head.table);
  CentroidArguments a;
  a.clusters = static_cast<int>(w.centroids.centroids->rows());
  a.top = w.centroids.top_clusters;
  const auto rows = static_cast<std::size_t>(geometry_.max_sequences);
  const int keys = centroid_keys(table.matrix().rows, a.clusters, a.top);
  grow(keys_, rows * static_cast<std::size_t>(keys) * sizeof(unsigned long long));
  grow(cluster_order_, rows * static_cast<std::size_t>(a.clusters) * sizeof(unsigned long long));
  grow(chosen_clusters_, rows * static_cast<std::size_t>(a.top) * sizeof(std::int32_t));
  a.scores = multiply(centroids, y, n);
  a.table = table.matrix();
  a.ids = weight(w.centroids.tokens).token_ids();
  a.suppressed = suppressed();
  a.order = cluster_order_.as<unsigned long long>();
  a.chosen = chosen_clusters_.as<std::int32_t>();
  a.keys = keys_.as<unsigned long long>();
  centroid_head(a, rounded_input(a.table.input, y, n), n, stream_);
  largest_tokens(a.keys, keys, n, geometry_.vocab, tokens, stream_);
  check_launch();
}

}  // namespace tandem::kernels::cuda
