#include "tandem/kernels/reference/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "tandem/kernels/reference/backend_impl.h"

namespace tandem::kernels {
namespace reference {
namespace {

constexpr int kPageTokens = 32;
/// Rows whose logits exist at once in verify().
constexpr int kLogitRows = 8;

}  // namespace

// ---- memory and slots ---------------------------------------------------------------------------

core::Status ReferenceBackend::configure(const Geometry& geometry) {
  for (const KvLayerSpec& layer : geometry.kv_layers) {
    const auto& f = geometry.rope_frequencies[index_of(layer.kind)];
    if (layer.head_size != static_cast<int>(2 * f.size())) {
      return core::unimplemented("a KV layer has head size " + std::to_string(layer.head_size) +
                                 ", but its kind has " + std::to_string(f.size()) +
                                 " rotary frequencies; one head size per kind is supported");
    }
  }
  geometry_ = geometry;
  step_.configure(geometry);
  return kv_.configure(geometry, kPageTokens, sizeof(float));
}

core::Result<Rows> ReferenceBackend::allocate_rows(int max_rows, int cols, RowSet set) {
  const std::size_t bytes =
      static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(cols) * sizeof(float);
  TANDEM_ASSIGN(core::Arena arena, core::Arena::reserve(bytes, false));
  row_memory_.push_back(std::move(arena));
  return Rows{row_memory_.back().as<float>(), max_rows, cols, set};
}

void ReferenceBackend::read(const Rows& rows, std::span<float> host) {
  TANDEM_CHECK(host.size() == static_cast<std::size_t>(rows.rows) * rows.cols, "wrong size");
  if (!host.empty()) std::memcpy(host.data(), rows.data, host.size_bytes());
}

void ReferenceBackend::write(const Rows& rows, std::span<const float> host) {
  TANDEM_CHECK(host.size() == static_cast<std::size_t>(rows.rows) * rows.cols, "wrong size");
  if (!host.empty()) std::memcpy(rows.data, host.data(), host.size_bytes());
}

core::Result<StepResult> ReferenceBackend::end_step() {
  return step_.take_result();
}

// ---- parts that several operations share --------------------------------------------------------

Rows ReferenceBackend::normed(Rows x, const Weight* norm) {
  const Rows out = normed_.rows(x.rows, x.cols);
  for (int r = 0; r < x.rows; ++r) {
    std::copy_n(row(x, r).begin(), x.cols, row(out, r).begin());
  }
  norm_rows(out, norm);
  return out;
}

/// x = rms(x) * norm; without a norm's weight if that is null.
void ReferenceBackend::norm_rows(Rows x, const Weight* norm) {
  for (int r = 0; r < x.rows; ++r) {
    rms_normalize(row(x, r), norm != nullptr ? vector(norm) : std::span<const float>(),
                  geometry_.rms_eps);
  }
}

Rows ReferenceBackend::linear(const Weight* w, Rows x, Workspace& out) {
  const ReferenceWeight& m = weight(w);
  TANDEM_CHECK(m.cols() == x.cols, "the weight's inputs must match the width of the rows");
  const Rows y = out.rows(x.rows, static_cast<int>(m.rows()));
  m.multiply(x.data, x.rows, y.data);
  return y;
}

/// x = (x + rms(delta) * post_norm) * scale.
void ReferenceBackend::add_normed(Rows delta, const Weight* post_norm, float scale, Rows x) {
  for (int r = 0; r < delta.rows; ++r) {
    const std::span<float> d = row(delta, r);
    const std::span<float> out = row(x, r);
    rms_normalize(d, vector(post_norm), geometry_.rms_eps);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = (out[i] + d[i]) * scale;
  }
}

void ReferenceBackend::head_logits(const Head& head, Rows h, float* out) {
  const ReferenceWeight& table = weight(head.table);
  TANDEM_CHECK(table.cols() == h.cols, "the head must match the width of the rows");
  table.multiply(h.data, h.rows, out);
  for (int r = 0; r < h.rows; ++r) {
    const Rows all{out, h.rows, static_cast<int>(table.rows())};
    if (head.softcap > 0.0F) softcap(row(all, r), head.softcap);
    for (const TokenId id : geometry_.suppressed) {
      row(all, r)[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
    }
  }
}

// ---- target -------------------------------------------------------------------------------------

void ReferenceBackend::embed(const Weight& table, float scale, Rows x) {
  for (int r = 0; r < x.rows; ++r) {
    const RowInfo& info = step_.rows(x.set)[static_cast<std::size_t>(r)];
    weight(&table).gather(info.token, row(x, r));
    for (float& value : row(x, r)) value *= scale;
  }
}

void ReferenceBackend::ple_inputs(const PleInputWeights& w, Rows x, Rows ple) {
  const std::span<const float> norm = vector(w.norm);
  const auto width = norm.size();
  const float context_scale = 1.0F / std::sqrt(static_cast<float>(x.cols));
  const float token_scale = std::sqrt(static_cast<float>(width));
  constexpr float kSqrtHalf = 0.70710678F;
  const ReferenceWeight& projection = weight(w.projection);
  TANDEM_CHECK(projection.rows() == ple.cols && projection.cols() == x.cols,
               "wrong projection shape");
  projection.multiply(x.data, x.rows, ple.data);
  const Rows token_part = gate_.rows(1, ple.cols);
  for (int r = 0; r < x.rows; ++r) {
    const RowInfo& info = step_.rows(x.set)[static_cast<std::size_t>(r)];
    weight(w.table).gather(info.token, row(token_part, 0));
    for (std::size_t begin = 0; begin < static_cast<std::size_t>(ple.cols); begin += width) {
      const std::span<float> context = row(ple, r).subspan(begin, width);
      for (float& value : context) value *= context_scale;
      rms_normalize(context, norm, geometry_.rms_eps);
      for (std::size_t i = 0; i < width; ++i) {
        context[i] = (context[i] + row(token_part, 0)[begin + i] * token_scale) * kSqrtHalf;
      }
    }
  }
}

HeadCache ReferenceBackend::cache(const AttentionSpec& spec, const RowInfo& info,
                                  int kv_head) const {
  return {&kv_, spec.kv_layer, kv_head, step_.pages(info.span, spec.kind), spec.head_size};
}

void ReferenceBackend::write_kv(const AttentionWeights& w, const AttentionSpec& spec, Rows z) {
  const Rows k = linear(w.k, z, k_);
  const Rows v = w.v != nullptr ? linear(w.v, z, v_) : v_.rows(k.rows, k.cols);
  if (w.v == nullptr) std::copy_n(k.data, static_cast<std::size_t>(k.rows) * k.cols, v.data);
  const auto size = static_cast<std::size_t>(spec.head_size);
  for (int r = 0; r < z.rows; ++r) {
    const RowInfo& info = step_.rows(z.set)[static_cast<std::size_t>(r)];
    for (int g = 0; g < spec.kv_heads; ++g) {
      const HeadCache head = cache(spec, info, g);
      const std::span<float> key = row(k, r).subspan(static_cast<std::size_t>(g) * size, size);
      const std::span<float> value = row(v, r).subspan(static_cast<std::size_t>(g) * size, size);
      rms_normalize(key, vector(w.k_norm), geometry_.rms_eps);
      rotate(key, frequencies(spec.kind), info.position);
      rms_normalize(value, {}, geometry_.rms_eps);
      if (!all_finite(key) || !all_finite(value)) {
        step_.set_broken(r);
        std::ranges::fill(key, 0.0F);
        std::ranges::fill(value, 0.0F);
      }
      if (geometry_.kv_type == KvType::kInt8) {
        round_to_int8(key);
        round_to_int8(value);
      }
      std::copy(key.begin(), key.end(), head.key(info.position).begin());
      std::copy(value.begin(), value.end(), head.value(info.position).begin());
    }
  }
}

void ReferenceBackend::attend_row(const AttentionSpec& spec, const RowInfo& info,
                                  std::span<const float> q, std::span<float> out) {
  const auto size = static_cast<std::size_t>(spec.head_size);
  const Position begin =
      spec.kind == AttentionKind::kSliding ? std::max(0, info.position - geometry_.window + 1) : 0;
  const int heads_per_kv_head = spec.heads / spec.kv_heads;
  for (int head = 0; head < spec.heads; ++head) {
    const std::size_t offset = static_cast<std::size_t>(head) * size;
    attend(q.subspan(offset, size), cache(spec, info, head / heads_per_kv_head), begin,
           info.visible_end, scores_, out.subspan(offset, size));
  }
}

void ReferenceBackend::attention(const AttentionWeights& w, const AttentionSpec& spec, Rows x) {
  Rows z = normed(x, w.norm);
  z.set = x.set;
  if (w.k != nullptr) write_kv(w, spec, z);
  if (spec.last_kv_owner && x.set == RowSet::kStep) {
    z = z.prefix(std::min(x.rows, step_.kept_rows()));
  }
  const Rows q = linear(w.q, z, q_);
  const Rows attended = attended_.rows(q.rows, q.cols);
  const auto size = static_cast<std::size_t>(spec.head_size);
  for (int r = 0; r < q.rows; ++r) {
    const RowInfo& info = step_.rows(x.set)[static_cast<std::size_t>(r)];
    for (std::size_t begin = 0; begin < static_cast<std::size_t>(q.cols); begin += size) {
      const std::span<float> head = row(q, r).subspan(begin, size);
      rms_normalize(head, vector(w.q_norm), geometry_.rms_eps);
      rotate(head, frequencies(spec.kind), info.position);
    }
    attend_row(spec, info, row(q, r), row(attended, r));
  }
  add_normed(linear(w.out, attended, projected_), w.post_norm, 1.0F, x);
}

Rows ReferenceBackend::gated(const Weight* gate_weight, const Weight* up_weight,
                             const Weight* down_weight, Rows z) {
  const Rows gate = linear(gate_weight, z, gate_);
  const Rows up = linear(up_weight, z, up_);
  for (int r = 0; r < z.rows; ++r) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(gate.cols); ++i) {
      row(gate, r)[i] = gelu_tanh(row(gate, r)[i]) * row(up, r)[i];
    }
  }
  return linear(down_weight, gate, projected_);
}

void ReferenceBackend::ffn(const FfnWeights& w, float scale, Rows x) {
  add_normed(gated(w.gate, w.up, w.down, normed(x, w.norm)), w.post_norm, scale, x);
}

void ReferenceBackend::ple(const PleLayerWeights& w, Rows ple, int layer, float scale, Rows x) {
  const Rows gate = linear(w.gate, x, gate_);
  const std::size_t offset = static_cast<std::size_t>(layer) * static_cast<std::size_t>(gate.cols);
  for (int r = 0; r < x.rows; ++r) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(gate.cols); ++i) {
      row(gate, r)[i] = gelu_tanh(row(gate, r)[i]) * row(ple, r)[offset + i];
    }
  }
  add_normed(linear(w.projection, gate, projected_), w.post_norm, scale, x);
}

void ReferenceBackend::final_norm(const Head& head, Rows x, Rows h) {
  TANDEM_CHECK(x.rows == h.rows && x.cols == h.cols, "x and h must have one shape");
  const Rows y = normed(x, head.norm);
  std::copy_n(y.data, static_cast<std::size_t>(y.rows) * y.cols, h.data);
  for (int r = 0; r < h.rows; ++r) {
    if (!all_finite(row(h, r))) step_.set_broken(r);
  }
}

void ReferenceBackend::logits(const Head& head, Rows h, Rows out) {
  TANDEM_CHECK(h.rows == out.rows && out.cols == geometry_.vocab, "out must be [rows, V]");
  head_logits(head, h, out.data);
}

void ReferenceBackend::verify(const Head& head, Rows h) {
  const std::span<const HostStep::SampledRow> sampled = step_.sampled_rows();
  const Rows out = logits_.rows(kLogitRows, geometry_.vocab);
  chosen_.clear();
  while (chosen_.size() < sampled.size()) {
    const std::span<const HostStep::SampledRow> block = sampled.subspan(
        chosen_.size(), std::min<std::size_t>(kLogitRows, sampled.size() - chosen_.size()));
    const Rows picked = normed_.rows(static_cast<int>(block.size()), h.cols);
    for (int r = 0; r < picked.rows; ++r) {
      const std::span<float> source = row(h, block[static_cast<std::size_t>(r)].row);
      std::copy(source.begin(), source.end(), row(picked, r).begin());
    }
    head_logits(head, picked, out.data);
    for (int r = 0; r < picked.rows; ++r) {
      const HostStep::SampledRow& s = block[static_cast<std::size_t>(r)];
      chosen_.push_back(s.rule == nullptr ? sample(row(out, r), *s.sampling, s.position, sampling_)
                                          : sample(row(out, r), *s.sampling, *s.rule, s.position,
                                                   sampling_, step_.logprobs(chosen_.size())));
    }
  }
  step_.accept(chosen_, {h.data, static_cast<std::size_t>(h.rows) * h.cols});
}

}  // namespace reference

std::unique_ptr<Backend> make_reference_backend() {
  return std::make_unique<reference::ReferenceBackend>();
}

}  // namespace tandem::kernels
