// The operations of the CUDA backend: each is a short chain of launches on one stream.

#include <algorithm>
#include <cmath>
#include <utility>

#include "tandem/kernels/cuda/backend_impl.h"
#include "tandem/kernels/cuda/pack.h"

namespace tandem::kernels::cuda {
namespace {

const CudaWeight& weight(const Weight* w) {
  TANDEM_CHECK(w != nullptr, "a weight of this operation is missing");
  return static_cast<const CudaWeight&>(*w);
}
const float* vector(const Weight* w) { return w == nullptr ? nullptr : weight(w).vector(); }

constexpr std::size_t kAttentionWorkspace = std::size_t{96} << 20;

}  // namespace

// ---- products -----------------------------------------------------------------------------------

HalfRows CudaBackend::half_rows(HalfUse use, int cols) {
  HalfBuffer& buffer = half_[{use, cols}];
  if (buffer.view.data == nullptr) {
    const int rows = use == HalfUse::kHead ? kLogitRows : geometry_.max_rows;
    const int tiles = (rows + 63) / 64 * 8;  // whole row blocks of the largest GEMM schedule
    const int superblocks = (cols + kBrickCols - 1) / kBrickCols;
    auto data = DeviceBuffer::allocate(static_cast<std::size_t>(superblocks) * tiles * 8 * kBrickCols * sizeof(half));
    auto scale = DeviceBuffer::allocate(static_cast<std::size_t>(tiles) * 8 * sizeof(float));
    if (!data.ok() || !scale.ok()) {
      if (failure_.ok()) failure_ = data.ok() ? scale.status() : data.status();
      return {};
    }
    buffer.data = *std::move(data);
    buffer.scale = *std::move(scale);
    buffer.view = {buffer.data.as<half>(), buffer.scale.as<float>(), tiles, cols};
  }
  return buffer.view;
}

const GemmGroup& CudaBackend::group(std::initializer_list<const Weight*> weights, bool whole_tiles) {
  std::vector<const Weight*> key(weights);
  auto found = groups_.find(key);
  if (found != groups_.end()) return found->second;
  std::vector<MatrixView> matrices;
  for (const Weight* w : weights) {
    if (w != nullptr) matrices.push_back(weight(w).matrix());
  }
  auto made = GemmGroup::create(matrices, num_ctas_, whole_tiles);
  TANDEM_CHECK(made.ok(), made.status().message().c_str());
  const std::size_t rows = static_cast<std::size_t>(whole_tiles ? kLogitRows : geometry_.max_rows);
  const std::size_t needed = static_cast<std::size_t>(made->slots()) * rows * kTileRows * sizeof(float);
  DeviceBuffer& workspace = whole_tiles ? logit_partials_ : partials_;
  if (workspace.size() < needed) {
    auto grown = DeviceBuffer::allocate(needed);
    if (grown.ok()) {
      retired_.push_back(std::exchange(workspace, *std::move(grown)));  // still read by this step
    } else if (failure_.ok()) {
      failure_ = grown.status();
    }
  }
  return groups_.emplace(std::move(key), *std::move(made)).first->second;
}

Partials CudaBackend::multiply(const GemmGroup& g, const HalfRows& x, int rows) {
  const Partials out = g.run(x, rows, partials_.as<float>(), geometry_.max_rows, stream_);
  check_launch();
  return out;
}

void CudaBackend::set_pending(const Partials& delta, const Weight* post_norm, float scale, bool replace, Rows x) {
  pending_ = {delta, 0, vector(post_norm), scale, replace};
  pending_x_ = x;
}

void CudaBackend::flush_pending() {
  if (pending_.delta.data == nullptr) return;
  residual_norm(std::exchange(pending_, {}), pending_x_.data, pending_x_.rows, pending_x_.cols, geometry_.rms_eps,
                nullptr, {}, nullptr, fault_.as<int>(), stream_);
  check_launch();
}

HalfRows CudaBackend::next_input(HalfUse use, Rows x, const Weight* norm, float* plain) {
  if (pending_x_.data != x.data) flush_pending();
  const Residual residual = std::exchange(pending_, {});
  const HalfRows out = plain == nullptr ? half_rows(use, x.cols) : HalfRows{};
  residual_norm(residual, x.data, x.rows, x.cols, geometry_.rms_eps, vector(norm), out, plain, fault_.as<int>(),
                stream_);
  check_launch();
  return out;
}

// ---- target and drafter layers ------------------------------------------------------------------

void CudaBackend::embed(const Weight& table, float scale, Rows x) {
  gather_rows(weight(&table).matrix(), tables(x.set).tokens.device(), x.rows, 0, x.cols, scale, x.data, stream_);
  check_launch();
}

void CudaBackend::ple_inputs(const PleInputWeights& w, Rows x, Rows ple) {
  const int width = static_cast<int>(w.norm->cols());
  // Groups may grow the workspace: make them before their input is in flight.
  const GemmGroup& projection = group({w.projection});
  const Partials p = multiply(projection, next_input(HalfUse::kPle, x, nullptr), x.rows);
  gather_rows(weight(w.table).matrix(), tables(x.set).tokens.device(), x.rows, 0, ple.cols,
              std::sqrt(static_cast<float>(width)), ple.data, stream_);
  combine_ple(p, vector(w.norm), 1.0F / std::sqrt(static_cast<float>(x.cols)), geometry_.rms_eps, x.rows,
              ple.cols / width, width, ple.data, stream_);
  check_launch();
}

KvView CudaBackend::kv_view(const AttentionSpec& spec) const {
  const auto kind = static_cast<std::size_t>(spec.kind);
  return {kv_pages_[kind].as<std::uint8_t>(), kv_layout_.page_bytes[kind],
          kv_layer_offsets_[static_cast<std::size_t>(spec.kv_layer)], page_tables_[kind].device(), table_stride_[kind]};
}

void CudaBackend::attention(const AttentionWeights& w, const AttentionSpec& spec, Rows x) {
  const bool writes_kv = w.k != nullptr;
  const GemmGroup& qkv = group({w.q, w.k, w.v});
  const GemmGroup& out = group({w.out});
  const int kept = x.set == RowSet::kStep && spec.last_kv_owner ? host_.kept_rows() : x.rows;
  const std::size_t query_bytes = static_cast<std::size_t>(geometry_.max_rows) * spec.heads * spec.head_size * 2;
  if (queries_.size() < query_bytes) {
    auto grown = DeviceBuffer::allocate(query_bytes);
    if (grown.ok()) queries_ = *std::move(grown);
    else check(cudaErrorMemoryAllocation);
  }
  const Partials p = multiply(qkv, next_input(HalfUse::kNormed, x, w.norm), x.rows);
  const RowTables& t = tables(x.set);
  HeadLayout layout = {spec.heads, spec.kv_heads, spec.head_size, -1, -1, w.v == nullptr};
  if (writes_kv) layout.k_tile = qkv.first_tile(1);
  if (writes_kv && w.v != nullptr) layout.v_tile = qkv.first_tile(2);
  qkv_finish(p, layout, vector(w.q_norm), vector(w.k_norm), t.rope[static_cast<std::size_t>(spec.kind)].as<float2>(),
             t.rows.device(), x.rows, kept, kv_view(spec), geometry_.rms_eps, queries_.as<half>(), stream_);
  check_launch();
  if (kept == 0) return;
  const HalfRows attended = half_rows(HalfUse::kAttended, spec.heads * spec.head_size);
  attend(spec, attended, kept, x.set);
  set_pending(multiply(out, attended, kept), w.post_norm, 1.0F, false, x);
}

int CudaBackend::upload_tiles(int ratio, RowSet set, int rows) {
  RowTables& t = tables(set);
  Upload<AttentionTile>& tiles = t.tiles[ratio];
  if (tiles.host().empty()) {
    const int per_tile = std::max(1, 16 / ratio);
    int kept = 0;
    for (const RowRun& run : host_.runs(set)) {
      for (int first = 0; first < run.num_rows; first += per_tile) {
        tiles.host().push_back({run.span, run.first_row + first, std::min(per_tile, run.num_rows - first)});
      }
      if (run.first_row < host_.kept_rows()) kept = static_cast<int>(tiles.host().size());
    }
    t.kept_tiles[ratio] = kept;
    const std::vector<AttentionTile> made = tiles.host();
    const core::Status reserved = tiles.reserve(made.size());
    if (failure_.ok()) failure_ = reserved;
    tiles.host() = made;
    check(tiles.send(stream_));
  }
  const bool all = rows == static_cast<int>(host_.rows(set).size());
  return all ? static_cast<int>(tiles.host().size()) : t.kept_tiles[ratio];
}

void CudaBackend::attend(const AttentionSpec& spec, const HalfRows& out, int rows, RowSet set) {
  const int ratio = spec.heads / spec.kv_heads;
  const int num_tiles = upload_tiles(ratio, set, rows);
  RowTables& t = tables(set);
  AttentionArguments a;
  a.q = queries_.as<half>();
  a.rows = t.rows.device();
  a.tiles = t.tiles[ratio].device();
  a.kv = kv_view(spec);
  a.heads = spec.heads;
  a.kv_heads = spec.kv_heads;
  a.head_size = spec.head_size;
  a.window = spec.kind == AttentionKind::kSliding ? geometry_.window : 0;
  int max_blocks = 1;
  for (const AttentionTile& tile : t.tiles[ratio].host()) {
    const DeviceRow& begin = t.rows.host()[static_cast<std::size_t>(tile.first_row)];
    const DeviceRow& end = t.rows.host()[static_cast<std::size_t>(tile.first_row + tile.num_rows - 1)];
    const int oldest = a.window > 0 ? std::max(0, begin.position - a.window + 1) : 0;
    max_blocks = std::max(max_blocks, (end.visible_end + kPageTokens - 1) / kPageTokens - oldest / kPageTokens);
  }
  const std::size_t unit_bytes = attention_block_bytes(spec.head_size) * static_cast<std::size_t>(max_blocks) *
                                 static_cast<std::size_t>(spec.kv_heads);
  const int batch = std::clamp(static_cast<int>(kAttentionWorkspace / unit_bytes), 1, num_tiles);
  const std::size_t needed = unit_bytes * static_cast<std::size_t>(batch);
  const std::size_t stats = static_cast<std::size_t>(batch) * spec.kv_heads * max_blocks * 16 * sizeof(float2);
  for (const auto& [buffer, size] : {std::pair{&attention_sums_, needed}, std::pair{&attention_stats_, stats}}) {
    if (buffer->size() >= size) continue;
    auto grown = DeviceBuffer::allocate(size);
    if (!grown.ok()) return check(cudaErrorMemoryAllocation);
    check(cudaStreamSynchronize(stream_));
    *buffer = *std::move(grown);
  }
  a.partial_sums = attention_sums_.as<float>();
  a.partial_stats = attention_stats_.as<float2>();
  for (int first = 0; first < num_tiles; first += batch) {
    cuda::attention(a, first, std::min(batch, num_tiles - first), max_blocks, out, stream_);
  }
  check_launch();
}

void CudaBackend::ffn(const FfnWeights& w, float scale, Rows x) {
  const GemmGroup& gate_up = group({w.gate, w.up});
  const GemmGroup& down = group({w.down});
  const int width = static_cast<int>(w.gate->rows());
  const Partials p = multiply(gate_up, next_input(HalfUse::kNormed, x, w.norm), x.rows);
  const HalfRows gated = half_rows(HalfUse::kGated, width);
  geglu(p, gate_up.first_tile(1), x.rows, width, gated, fault_.as<int>(), stream_);
  check_launch();
  set_pending(multiply(down, gated, x.rows), w.post_norm, scale, false, x);
}

void CudaBackend::ple(const PleLayerWeights& w, Rows ple, int layer, float scale, Rows x) {
  const GemmGroup& gate = group({w.gate});
  const GemmGroup& projection = group({w.projection});
  const int width = static_cast<int>(w.gate->rows());
  const Partials p = multiply(gate, next_input(HalfUse::kPle, x, nullptr), x.rows);
  const HalfRows gated = half_rows(HalfUse::kPleGated, width);
  gated_ple(p, ple.data + static_cast<std::ptrdiff_t>(layer) * width, ple.cols, x.rows, width, gated, fault_.as<int>(),
            stream_);
  check_launch();
  set_pending(multiply(projection, gated, x.rows), w.post_norm, scale, false, x);
}

// ---- head ---------------------------------------------------------------------------------------

void CudaBackend::final_norm(const Head& head, Rows x, Rows h) {
  next_input(HalfUse::kNormed, x, head.norm, h.data);
}

void CudaBackend::compute_logits(const Head& head, const HalfRows& input, int n) {
  const GemmGroup& table = group({head.table}, /*whole_tiles=*/true);
  const Partials p = table.run(input, n, logit_partials_.as<float>(), kLogitRows, stream_);
  finish_logits(p, n, geometry_.vocab, head.softcap,
                geometry_.suppressed.empty() ? nullptr : suppressed_.as<std::uint32_t>(), logits_.as<float>(), stream_);
  check_launch();
}

void CudaBackend::logits(const Head& head, Rows h, Rows out) {
  for (int first = 0; first < h.rows; first += kLogitRows) {
    const int n = std::min(kLogitRows, h.rows - first);
    const Rows part = {h.data + static_cast<std::ptrdiff_t>(first) * h.cols, n, h.cols, h.set};
    compute_logits(head, next_input(HalfUse::kHead, part, nullptr), n);
    check(cudaMemcpyAsync(out.data + static_cast<std::ptrdiff_t>(first) * out.cols, logits_.as<void>(),
                          static_cast<std::size_t>(n) * static_cast<std::size_t>(out.cols) * sizeof(float),
                          cudaMemcpyDeviceToDevice, stream_));
  }
}

void CudaBackend::choose(const HostStep::SampledRow* sampled, int first, int n) {
  const auto vocab = static_cast<std::size_t>(geometry_.vocab);
  std::vector<TokenId> greedy(static_cast<std::size_t>(n));
  argmax_rows(logits_.as<float>(), n, geometry_.vocab, tokens_.as<TokenId>(), stream_);
  check(cudaMemcpyAsync(greedy.data(), tokens_.as<void>(), greedy.size() * sizeof(TokenId), cudaMemcpyDeviceToHost,
                        stream_));
  bool any_sampled = false;
  top_k_.host().assign(static_cast<std::size_t>(n), 1);
  for (int i = 0; i < n; ++i) {
    const SamplingParams& params = *sampled[first + i].sampling;
    any_sampled |= params.temperature > 0;
    if (params.temperature > 0) top_k_.host()[static_cast<std::size_t>(i)] = std::max(params.top_k, 1);
  }
  if (any_sampled) {
    check(top_k_.send(stream_));
    top_candidates(logits_.as<float>(), top_k_.device(), n, geometry_.vocab, candidates_.as<Candidates>(), stream_);
    check(cudaMemcpyAsync(host_candidates_.data(), candidates_.as<void>(),
                          static_cast<std::size_t>(n) * sizeof(Candidates), cudaMemcpyDeviceToHost, stream_));
  }
  check_launch();
  check(cudaStreamSynchronize(stream_));
  for (int i = 0; i < n; ++i) {
    const HostStep::SampledRow& row = sampled[first + i];
    const Candidates& c = host_candidates_[static_cast<std::size_t>(i)];
    if (row.rule == nullptr && !(row.sampling->temperature > 0)) {
      chosen_.push_back(greedy[static_cast<std::size_t>(i)]);
    } else if (row.rule == nullptr && row.sampling->top_k > 0 && c.count <= kMaxCandidates) {
      chosen_.push_back(sample_candidates(c, *row.sampling, row.position));
    } else {
      host_logits_.resize(vocab);
      check(cudaMemcpyAsync(host_logits_.data(), logits_.as<float>() + static_cast<std::size_t>(i) * vocab,
                            vocab * sizeof(float), cudaMemcpyDeviceToHost, stream_));
      check(cudaStreamSynchronize(stream_));
      chosen_.push_back(row.rule == nullptr
                            ? sample(host_logits_, *row.sampling, row.position, sampling_)
                            : sample(host_logits_, *row.sampling, *row.rule, row.position, sampling_,
                                     host_.logprobs(static_cast<std::size_t>(first + i))));
    }
  }
}

TokenId CudaBackend::sample_candidates(const Candidates& c, const SamplingParams& params, Position position) {
  // In the order of ids, so that ties break as they do over the whole vocabulary.
  candidate_order_.resize(static_cast<std::size_t>(c.count));
  for (std::size_t i = 0; i < candidate_order_.size(); ++i) candidate_order_[i] = {c.ids[i], c.logits[i]};
  std::sort(candidate_order_.begin(), candidate_order_.end());
  host_logits_.clear();
  for (const auto& [id, logit] : candidate_order_) host_logits_.push_back(logit);
  return candidate_order_[static_cast<std::size_t>(sample(host_logits_, params, position, sampling_))].first;
}

void CudaBackend::verify(const Head& head, Rows h) {
  const auto sampled = host_.sampled_rows();
  chosen_.clear();
  for (std::size_t first = 0; first < sampled.size();) {
    // Sampled rows are kept rows in order; a run of them is one matrix.
    std::size_t n = 1;
    while (n < kLogitRows && first + n < sampled.size() &&
           sampled[first + n].row == sampled[first].row + static_cast<int>(n)) {
      ++n;
    }
    const Rows part = {h.data + static_cast<std::ptrdiff_t>(sampled[first].row) * h.cols, static_cast<int>(n), h.cols,
                       h.set};
    compute_logits(head, next_input(HalfUse::kHead, part, nullptr), static_cast<int>(n));
    choose(sampled.data(), static_cast<int>(first), static_cast<int>(n));
    first += n;
  }
  host_.accept(chosen_, {});
  copy_from_.host().clear();
  copy_to_.host().clear();
  std::size_t base = 0;
  for (const SpanResult& result : host_.result().spans) {
    if (result.num_tokens == 0) continue;
    copy_from_.host().push_back(sampled[base + static_cast<std::size_t>(result.num_tokens) - 1].row);
    copy_to_.host().push_back(result.slot);
    base += static_cast<std::size_t>(result.num_drafted) + 1;
  }
  check(copy_from_.send(stream_));
  check(copy_to_.send(stream_));
  const int copies = static_cast<int>(copy_to_.host().size());
  if (copies > 0) {
    copy_rows(h.data, copy_from_.device(), hidden_.as<float>(), copy_to_.device(), copies, h.cols, stream_);
  }
  upload_rows(RowSet::kDraft);
}

// ---- drafter ------------------------------------------------------------------------------------

void CudaBackend::draft_input(const DraftWeights& w, int i, Rows x) {
  const RowTables& t = tables(RowSet::kDraft);
  const TokenId* tokens =
      i == 0 ? t.tokens.device() : draft_tokens_.as<TokenId>() + static_cast<std::ptrdiff_t>(i - 1) * geometry_.max_sequences;
  const GemmGroup& pre = group({w.pre_projection});
  gather_rows(weight(w.target_embedding).matrix(), tokens, x.rows, 0, geometry_.hidden, w.embedding_scale,
              embeddings_.as<float>(), stream_);
  const HalfRows input = half_rows(HalfUse::kDraftInput, 2 * geometry_.hidden);
  concat_draft_input(embeddings_.as<float>(), (i == 0 ? hidden_ : draft_hidden_).as<float>(), t.rows.device(), x.rows,
                     geometry_.hidden, input, stream_);
  check_launch();
  set_pending(multiply(pre, input, x.rows), nullptr, 1.0F, true, x);
}

void CudaBackend::draft_head(const DraftWeights& w, int i, Rows x) {
  const GemmGroup& post = group({w.post_projection});
  TokenId* tokens = draft_tokens_.as<TokenId>() + static_cast<std::ptrdiff_t>(i) * geometry_.max_sequences;
  const HalfRows y = next_input(HalfUse::kNormed, x, w.head.norm);
  const Partials hidden = multiply(post, y, x.rows);
  store_hidden(hidden, tables(RowSet::kDraft).rows.device(), x.rows, geometry_.hidden, draft_hidden_.as<float>(), stream_);
  for (int first = 0; first < x.rows; first += kLogitRows) {
    const int n = std::min(kLogitRows, x.rows - first);
    HalfRows part = y;
    part.data += static_cast<std::ptrdiff_t>(first / 8) * 8 * kBrickCols;
    part.scale += first;
    compute_logits(w.head, part, n);
    argmax_rows(logits_.as<float>(), n, geometry_.vocab, tokens + first, stream_);
  }
  check_launch();
  draft_steps_ = i + 1;
}

}  // namespace tandem::kernels::cuda
