#include "tandem/app/self_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tandem/kernels/reference/reference_backend.h"

namespace tandem::app {
namespace {

using kernels::AttentionKind;
using kernels::Backend;
using kernels::Rows;
using kernels::RowSet;
using kernels::Weight;

constexpr int kWidth = 64;    // E
constexpr int kWindow = 40;   // W
constexpr int kHistory = 75;  // positions before the compared rows: two pages, beyond the window
constexpr int kRows = 5;
constexpr double kTolerance = 2e-2;  // f16 keys and values are off by 1e-3

/// What the kernels of attention depend on.
struct Shape {
  AttentionKind kind = AttentionKind::kSliding;
  int heads = 0, kv_heads = 0, head_size = 0;
  bool value_is_key = false;

  auto key() const { return std::tuple(kind, heads, kv_heads, head_size, value_is_key); }
  bool operator<(const Shape& other) const { return key() < other.key(); }
};

std::vector<float> random_values(std::size_t size, std::uint32_t seed, float rms, float mean) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(mean, rms);
  std::vector<float> values(size);
  for (float& value : values) value = normal(random);
  return values;
}

/// One backend that is set up for one shape.
class Rig {
 public:
  static core::Result<std::vector<float>> run(std::unique_ptr<Backend> backend, const Shape& shape,
                                              const std::vector<float>& frequencies) {
    Rig rig(std::move(backend));
    TANDEM_TRY(rig.configure(shape, frequencies));
    TANDEM_TRY(rig.attend(shape, 0, kHistory).status());
    return rig.attend(shape, kHistory, kRows);
  }

 private:
  explicit Rig(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  core::Status configure(const Shape& shape, const std::vector<float>& frequencies);
  core::Status pack(int rows, int cols, float rms, float mean, const Weight*& out);
  /// The rows [first, first + count) of one sequence after the layer.
  core::Result<std::vector<float>> attend(const Shape& shape, int first, int count);

  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Weight>> storage_;
  kernels::AttentionWeights weights_;
};

core::Status Rig::pack(int rows, int cols, float rms, float mean, const Weight*& out) {
  const auto seed = static_cast<std::uint32_t>(storage_.size());
  const auto values = random_values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols),
                                    seed, rms, mean);
  const bool is_vector = rows == 1;
  core::TensorView view = {
      reinterpret_cast<const std::byte*>(values.data()), core::DType::kF32, 2, {rows, cols, 1, 1}};
  TANDEM_ASSIGN(
      auto weight,
      backend_->pack(view, is_vector ? kernels::WeightRole::kVector : kernels::WeightRole::kLinear,
                     "the self-test"));
  storage_.push_back(std::move(weight));
  out = storage_.back().get();
  return {};
}

core::Status Rig::configure(const Shape& shape, const std::vector<float>& frequencies) {
  kernels::Geometry g;
  g.max_rows = kHistory;
  g.max_kept_rows = kHistory;
  g.hidden = kWidth;
  g.vocab = 1;
  g.kv_layers = {{shape.kind, shape.kv_heads, shape.head_size}};
  g.window = kWindow;
  g.rope_frequencies[static_cast<std::size_t>(shape.kind)] = frequencies;
  g.kv_memory_bytes = std::size_t{32} << 20;
  TANDEM_TRY(backend_->configure(g));
  const int q = shape.heads * shape.head_size, kv = shape.kv_heads * shape.head_size;
  const float rms = 1.0F / std::sqrt(static_cast<float>(kWidth));
  // Scores that spread by about 2, so that the softmax neither picks one key nor averages.
  const float head = std::sqrt(2.0F) / std::pow(static_cast<float>(shape.head_size), 0.25F);
  TANDEM_TRY(pack(1, kWidth, 0.2F, 1.0F, weights_.norm));
  TANDEM_TRY(pack(q, kWidth, rms, 0.0F, weights_.q));
  TANDEM_TRY(pack(kv, kWidth, rms, 0.0F, weights_.k));
  if (!shape.value_is_key) TANDEM_TRY(pack(kv, kWidth, rms, 0.0F, weights_.v));
  TANDEM_TRY(pack(1, shape.head_size, 0.2F * head, head, weights_.q_norm));
  TANDEM_TRY(pack(1, shape.head_size, 0.2F * head, head, weights_.k_norm));
  TANDEM_TRY(pack(kWidth, q, 1.0F / std::sqrt(static_cast<float>(q)), 0.0F, weights_.out));
  return pack(1, kWidth, 0.2F, 1.0F, weights_.post_norm);
}

core::Result<std::vector<float>> Rig::attend(const Shape& shape, int first, int count) {
  const int page_tokens = backend_->kv_layout().page_tokens;
  std::vector<PageId> pages(static_cast<std::size_t>((first + count - 1) / page_tokens + 1));
  std::iota(pages.begin(), pages.end(), 0);
  const std::vector<TokenId> tokens(static_cast<std::size_t>(count), 0);
  kernels::Span span;
  span.prompt = tokens;
  span.first_position = first;
  span.keep = kernels::Keep::kAll;
  span.pages = {pages, pages};
  if (first == 0) backend_->set_slot(0, {});
  backend_->begin_step({{span}});
  TANDEM_ASSIGN(const Rows x, backend_->allocate_rows(count, kWidth, RowSet::kStep));
  std::vector<float> values = random_values(static_cast<std::size_t>(count * kWidth),
                                            1000U + static_cast<std::uint32_t>(first), 1.0F, 0.0F);
  backend_->write(x, values);
  kernels::AttentionSpec spec;
  spec.kind = shape.kind;
  spec.heads = shape.heads;
  spec.kv_heads = shape.kv_heads;
  spec.head_size = shape.head_size;
  backend_->attention(weights_, spec, x);
  backend_->read(x, values);
  TANDEM_TRY(backend_->end_step().status());
  return values;
}

double relative_error(const std::vector<float>& actual, const std::vector<float>& expected) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i], a = actual[i];
    error += (a - e) * (a - e);
    size += e * e;
  }
  return std::sqrt(error / size);
}

void add_shapes(const model::ModelConfig& config, std::set<Shape>& shapes) {
  for (const model::LayerConfig& layer : config.layers) {
    shapes.insert({layer.kind, layer.heads, layer.kv_heads, layer.head_size, layer.value_is_key});
  }
}

}  // namespace

core::Status check_attention(const MakeBackend& make, const model::ModelConfig& target,
                             const model::ModelConfig* drafter) {
  std::set<Shape> shapes;
  add_shapes(target, shapes);
  if (drafter != nullptr) add_shapes(*drafter, shapes);
  for (const Shape& shape : shapes) {
    const auto& frequencies = target.rope_frequencies[static_cast<std::size_t>(shape.kind)];
    TANDEM_ASSIGN(const auto expected,
                  Rig::run(kernels::make_reference_backend(), shape, frequencies));
    TANDEM_ASSIGN(auto backend, make());
    const std::string device = backend->describe();
    TANDEM_ASSIGN(const auto actual, Rig::run(std::move(backend), shape, frequencies));
    const double error = relative_error(actual, expected);
    if (error <= kTolerance) continue;  // not a number is wrong, too
    return core::internal_error(fmt::format(
        "{} computes {} attention of {} query heads over {} KV heads of {} wrongly (relative error "
        "{:.2g}); report it, and use --device cpu",
        device, shape.kind == AttentionKind::kFull ? "full" : "sliding", shape.heads,
        shape.kv_heads, shape.head_size, error));
  }
  return {};
}

}  // namespace tandem::app
