#include "op_rig.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "tandem/core/check.h"
#include "tandem/core/half.h"
#include "tandem/formats/dequantize.h"
#include "tandem/kernels/cpu/cpu_backend.h"
#include "tandem/kernels/cuda/cuda_backend.h"
#include "tandem/kernels/reference/reference_backend.h"

namespace tandem::test {
namespace {

using core::DType;
using kernels::AttentionKind;
using MadeBackend = core::Result<std::unique_ptr<kernels::Backend>>;

/// Where a block format keeps its f16 scale and, if it has one, the f16 offset; and the offset
/// that centres the codes, in scales.
struct BlockScales {
  int scale_at = 0;
  int offset_at = -1;
  float offset_ratio = 0.0F;
};

BlockScales block_scales(DType dtype) {
  switch (dtype) {
    case DType::kQ4_1:
      return {0, 2, -7.5F};
    case DType::kQ5_1:
      return {0, 2, -15.5F};
    case DType::kQ2_K:
      return {80, 82, 1.5F};
    case DType::kQ3_K:
      return {108};
    case DType::kQ4_K:
      return {0, 2, 7.5F};
    case DType::kQ5_K:
      return {0, 2, 15.5F};
    case DType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

/// Scales of MXFP4 and NVFP4 blocks near 1, the rest random.
void set_fp4_scales(OwnedTensor& tensor, float scale) {
  const bool is_mx = tensor.view.dtype == DType::kMXFP4;
  const auto block_bytes = static_cast<std::size_t>(core::traits(tensor.view.dtype).block_bytes);
  const int exponent = static_cast<int>(std::lround(std::log2(scale)));
  for (std::size_t begin = 0; begin < tensor.bytes.size(); begin += block_bytes) {
    if (is_mx) tensor.bytes[begin] = static_cast<std::byte>(127 + exponent);
    for (std::size_t i = 0; !is_mx && i < 4; ++i) {
      const float varied = scale * (0.75F + 0.125F * static_cast<float>((begin + i) % 5));
      tensor.bytes[begin + i] = std::byte{formats::f32_to_e4m3(varied)};
    }
  }
}

void put_f16(std::byte* at, float value) {
  const std::uint16_t half = core::f32_to_f16(value);
  std::memcpy(at, &half, sizeof(half));
}

void set_scales(OwnedTensor& tensor, float scale) {
  const DType dtype = tensor.view.dtype;
  if (dtype == DType::kMXFP4 || dtype == DType::kNVFP4) return set_fp4_scales(tensor, scale);
  const BlockScales where = block_scales(tensor.view.dtype);
  const auto block_bytes = static_cast<std::size_t>(core::traits(tensor.view.dtype).block_bytes);
  for (std::size_t begin = 0; begin < tensor.bytes.size(); begin += block_bytes) {
    put_f16(&tensor.bytes[begin] + where.scale_at, scale);
    if (where.offset_at >= 0) {
      put_f16(&tensor.bytes[begin] + where.offset_at, scale * where.offset_ratio);
    }
  }
}

float root_mean_square(const OwnedTensor& tensor) {
  std::vector<float> row(static_cast<std::size_t>(tensor.view.cols()));
  double sum = 0.0;
  for (std::int64_t r = 0; r < tensor.view.rows(); ++r) {
    formats::dequantize_row(tensor.view.dtype, tensor.view.row(r), tensor.view.cols(), row.data());
    for (const float x : row) sum += static_cast<double>(x) * static_cast<double>(x);
  }
  return static_cast<float>(std::sqrt(sum / static_cast<double>(tensor.view.elements())));
}

void put_value(OwnedTensor& tensor, std::size_t i, float value) {
  switch (tensor.view.dtype) {
    case DType::kF32:
      std::memcpy(&tensor.bytes[4 * i], &value, 4);
      return;
    case DType::kF16:
      put_f16(&tensor.bytes[2 * i], value);
      return;
    case DType::kBF16: {
      const std::uint16_t half = core::f32_to_bf16(value);
      std::memcpy(&tensor.bytes[2 * i], &half, sizeof(half));
      return;
    }
    default:
      TANDEM_CHECK(false, "not a plain float type");
  }
}

/// Frequencies as spec/model.md section 5.2: all pairs of sliding layers, a quarter of full ones.
std::vector<float> rope_frequencies(AttentionKind kind, int head_size) {
  std::vector<float> f(static_cast<std::size_t>(head_size / 2));
  const bool is_full = kind == AttentionKind::kFull;
  const double base = is_full ? 1e6 : 1e4;
  const std::size_t rotated = is_full ? f.size() / 4 : f.size();
  for (std::size_t i = 0; i < rotated; ++i) {
    f[i] = static_cast<float>(std::pow(base, -2.0 * static_cast<double>(i) / head_size));
  }
  return f;
}

}  // namespace

const std::vector<BackendFactory>& backend_factories() {
  static const std::vector<BackendFactory> factories = [] {
    std::vector<BackendFactory> list = {{"reference", [] {
                                           return MadeBackend(kernels::make_reference_backend());
                                         }}};
    for (const kernels::CpuOptions& options :
         {kernels::CpuOptions{2, "scalar"}, kernels::CpuOptions{2, "avx2"},
          kernels::CpuOptions{1, "avx512"}, kernels::CpuOptions{2, "avx512"},
          kernels::CpuOptions{1, "neon"}, kernels::CpuOptions{2, "neon"}}) {
      if (!kernels::make_cpu_backend(options).ok()) continue;
      list.push_back({"cpu_" + options.isa + "_" + std::to_string(options.threads), [options] {
                        return kernels::make_cpu_backend(options);
                      }});
    }
    // Built with the preset `cuda` and run on a machine with a GPU; elsewhere the object does not
    // open.
    if (kernels::open_cuda_backend({}).ok()) {
      list.push_back({"cuda", [] {
                        return kernels::open_cuda_backend({});
                      }});
    }
    return list;
  }();
  return factories;
}

OwnedTensor random_tensor(DType dtype, int rows, int cols, std::uint32_t seed, float rms,
                          float mean) {
  OwnedTensor tensor;
  tensor.view.dtype = dtype;
  tensor.view.rank = 2;
  tensor.view.shape = {rows, cols, 1, 1};
  tensor.bytes.resize(tensor.view.bytes());
  tensor.view.data = tensor.bytes.data();
  std::mt19937 random(seed);
  if (core::is_block_quantized(dtype)) {
    for (std::byte& b : tensor.bytes) b = static_cast<std::byte>(random() & 0xFF);
    set_scales(tensor, 1.0F / 64);
    set_scales(tensor, rms / 64 / root_mean_square(tensor));
  } else {
    std::normal_distribution<float> normal(mean, rms);
    for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.view.elements()); ++i) {
      put_value(tensor, i, normal(random));
    }
  }
  return tensor;
}

std::vector<float> random_values(std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& x : values) x = normal(random);
  return values;
}

OpRig::OpRig(const BackendFactory& factory, const Dims& dims) : dims_(dims) {
  auto backend = factory.make();
  TANDEM_CHECK(backend.ok(), backend.status().message().c_str());
  backend_ = std::move(backend).value();

  kernels::Geometry g;
  g.max_sequences = dims.max_sequences;
  g.max_rows = dims.max_rows;
  g.steps_repeat = dims.steps_repeat;
  g.max_kept_rows = dims.max_rows;
  g.hidden = dims.hidden;
  g.vocab = dims.vocab;
  g.window = dims.window;
  for (int i = 0; i < 2; ++i) {
    for (const AttentionKind kind : kernels::kAttentionKinds) {
      const std::size_t k = index_of(kind);
      g.kv_layers.push_back({kind, dims.kv_heads, dims.head_size[k]});
      g.rope_frequencies[k] = rope_frequencies(kind, dims.head_size[k]);
    }
  }
  g.suppressed = {3, dims.vocab - 1};
  g.kv_memory_bytes = std::size_t{256} << 20;
  const core::Status status = backend_->configure(g);
  TANDEM_CHECK(status.ok(), status.message().c_str());

  tables_.resize(static_cast<std::size_t>(dims.max_sequences));
  for (std::size_t kind = 0; kind < free_pages_.size(); ++kind) {
    free_pages_[kind].resize(
        static_cast<std::size_t>(std::min(backend_->kv_layout().max_pages[kind], 1000)));
    std::iota(free_pages_[kind].begin(), free_pages_[kind].end(), 0);
    std::shuffle(free_pages_[kind].begin(), free_pages_[kind].end(), std::mt19937(7));
  }
}

const kernels::Weight* OpRig::pack(const kernels::WeightView& view, kernels::WeightRole role) {
  auto weight = backend_->pack(view, role, "test");
  TANDEM_CHECK(weight.ok(), weight.status().message().c_str());
  weights_.push_back(std::move(weight).value());
  return weights_.back().get();
}

const kernels::Weight* OpRig::pack(OwnedTensor tensor, kernels::WeightRole role) {
  tensors_.push_back(std::make_unique<OwnedTensor>(std::move(tensor)));
  return pack(tensors_.back()->view, role);
}

const kernels::Weight* OpRig::linear(DType dtype, int rows, int cols, std::uint32_t seed,
                                     kernels::WeightRole role) {
  const float rms = 1.0F / std::sqrt(static_cast<float>(cols));
  if (dtype != DType::kF8E4M3 && dtype != DType::kU8) {
    return pack(random_tensor(dtype, rows, cols, seed, rms), role);
  }
  scaled_.push_back(std::make_unique<OwnedWeight>(
      dtype == DType::kU8  ? random_nvfp4(rows, cols, seed, rms)
      : !dims_.e4m3_blocks ? random_e4m3(rows, cols, 1, cols, cols, seed, rms)
                           : random_e4m3(rows, cols, 128, 128, 128, seed, rms)));
  return pack(scaled_.back()->view, role);
}

const kernels::Weight* OpRig::norm(int size, std::uint32_t seed, float scale) {
  OwnedTensor tensor = random_tensor(DType::kF32, 1, size, seed, 0.2F * scale, scale);
  tensor.view.rank = 1;
  tensor.view.shape = {size, 1, 1, 1};
  return pack(std::move(tensor), kernels::WeightRole::kVector);
}

const kernels::Weight* OpRig::table(DType dtype, int rows, int cols, std::uint32_t seed,
                                    kernels::WeightRole role, float rms) {
  const bool is_scaled = dtype == DType::kF8E4M3 || dtype == DType::kU8;
  return pack(random_tensor(is_scaled ? DType::kBF16 : dtype, rows, cols, seed, rms), role);
}

const kernels::Weight* OpRig::table(std::span<const float> values, int rows, int cols) {
  OwnedTensor tensor = random_tensor(DType::kF32, rows, cols, 1, 1.0F);
  TANDEM_CHECK(tensor.bytes.size() == values.size_bytes(), "a value for every element");
  std::memcpy(tensor.bytes.data(), values.data(), values.size_bytes());
  return pack(std::move(tensor), kernels::WeightRole::kTableAndHead);
}

kernels::Rows OpRig::rows(int num_rows, int cols, kernels::RowSet set) {
  auto result = backend_->allocate_rows(num_rows, cols, set);
  TANDEM_CHECK(result.ok(), result.status().message().c_str());
  return *result;
}

kernels::Rows OpRig::random_rows(int num_rows, int cols, kernels::RowSet set, std::uint32_t seed) {
  const kernels::Rows out = rows(num_rows, cols, set);
  backend_->write(out, random_values(static_cast<std::size_t>(num_rows * cols), seed));
  return out;
}

std::vector<float> OpRig::read(const kernels::Rows& rows) {
  std::vector<float> values(static_cast<std::size_t>(rows.rows * rows.cols));
  backend_->read(rows, values);
  return values;
}

kernels::AttentionWeights OpRig::attention_weights(DType dtype, AttentionKind kind, int hidden,
                                                   bool owns_kv, bool value_is_key,
                                                   std::uint32_t seed) {
  const int size = dims_.head_size[index_of(kind)];
  kernels::AttentionWeights w;
  w.norm = norm(hidden, seed);
  w.q = linear(dtype, dims_.heads * size, hidden, seed + 1);
  w.q_norm = norm(size, seed + 2, 2.0F / std::sqrt(static_cast<float>(size)));
  if (owns_kv) {
    w.k = linear(dtype, dims_.kv_heads * size, hidden, seed + 3);
    w.k_norm = norm(size, seed + 4);
    if (!value_is_key) w.v = linear(dtype, dims_.kv_heads * size, hidden, seed + 5);
  }
  w.out = linear(dtype, hidden, dims_.heads * size, seed + 6);
  w.post_norm = norm(hidden, seed + 7);
  return w;
}

kernels::AttentionSpec OpRig::attention_spec(AttentionKind kind, int index) const {
  return {kind,
          dims_.heads,
          dims_.kv_heads,
          dims_.head_size[index_of(kind)],
          2 * index + static_cast<int>(kind),
          false};
}

kernels::FfnWeights OpRig::ffn_weights(DType dtype, int hidden, int ffn, std::uint32_t seed) {
  return {norm(hidden, seed), linear(dtype, ffn, hidden, seed + 1),
          linear(dtype, ffn, hidden, seed + 2), linear(dtype, hidden, ffn, seed + 3),
          norm(hidden, seed + 4)};
}

void OpRig::reserve_pages(int slot, Position end) {
  const int page_tokens = backend_->kv_layout().page_tokens;
  for (std::size_t kind = 0; kind < free_pages_.size(); ++kind) {
    std::vector<PageId>& table = tables_[static_cast<std::size_t>(slot)][kind];
    while (static_cast<Position>(table.size()) * page_tokens < end) {
      TANDEM_CHECK(!free_pages_[kind].empty(), "the test needs more pages");
      table.push_back(free_pages_[kind].back());
      free_pages_[kind].pop_back();
    }
  }
}

void OpRig::drop_pages_before_window(int slot, Position first) {
  const int page_tokens = backend_->kv_layout().page_tokens;
  std::vector<PageId>& table = tables_[static_cast<std::size_t>(slot)][0];
  for (std::size_t i = 0; i < table.size(); ++i) {
    const Position page_end = static_cast<Position>(i + 1) * page_tokens;
    if (page_end <= first - dims_.window + 1) table[i] = kNoPage;
  }
}

kernels::CentroidHead OpRig::centroid_head(DType dtype, int width, int clusters, int top,
                                           std::uint32_t seed) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(dims_.vocab));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  OwnedTensor ids;
  ids.bytes.resize(order.size() * sizeof(order[0]));
  std::memcpy(ids.bytes.data(), order.data(), ids.bytes.size());
  ids.view = {ids.bytes.data(), DType::kI32, 1, {dims_.vocab, 1, 1, 1}};
  return {linear(dtype, clusters, width, seed + 1),
          pack(std::move(ids), kernels::WeightRole::kTokenIds), top};
}

kernels::MoeWeights OpRig::moe_weights(DType dtype, DType down_dtype, std::uint32_t seed) {
  const int hidden = dims_.hidden;
  kernels::MoeWeights w;
  w.shared = ffn_weights(dtype, hidden, dims_.ffn, seed);
  w.shared_post_norm = norm(hidden, seed + 10);
  w.router = linear(DType::kF32, dims_.experts, hidden, seed + 11);
  w.router_scale = norm(hidden, seed + 12, std::sqrt(static_cast<float>(hidden)));
  w.expert_scale = norm(dims_.experts, seed + 13);
  w.experts_norm = norm(hidden, seed + 14);
  w.experts_post_norm = norm(hidden, seed + 15);
  for (int e = 0; e < dims_.experts; ++e) {
    const auto at = seed + 20 + 3 * static_cast<std::uint32_t>(e);
    const auto role = kernels::WeightRole::kExpert;
    w.experts.push_back({linear(dtype, dims_.expert_ffn, hidden, at, role),
                         linear(dtype, dims_.expert_ffn, hidden, at + 1, role),
                         linear(down_dtype, hidden, dims_.expert_ffn, at + 2, role)});
  }
  w.top_k = dims_.top_k;
  return w;
}

kernels::Span OpRig::prompt(int slot, std::span<const TokenId> tokens, Position first,
                            kernels::Keep keep, int next_drafts) {
  reserve_pages(slot, first + static_cast<Position>(tokens.size()));
  kernels::Span span;
  span.slot = slot;
  span.prompt = tokens;
  span.first_position = first;
  span.keep = keep;
  span.next_drafts = next_drafts;
  std::ranges::copy(tables_[static_cast<std::size_t>(slot)], span.pages.begin());
  return span;
}

kernels::Span OpRig::decode(int slot, int num_drafts, int next_drafts) {
  reserve_pages(slot, backend_->read_slot(slot).position + 1 + num_drafts);
  kernels::Span span;
  span.slot = slot;
  span.num_drafts = num_drafts;
  span.next_drafts = next_drafts;
  std::ranges::copy(tables_[static_cast<std::size_t>(slot)], span.pages.begin());
  return span;
}

}  // namespace tandem::test
