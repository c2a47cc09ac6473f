// Memory, slots and steps of the CUDA backend; its operations are in backend_ops.cc.

#include <algorithm>
#include <cstring>

#include "tandem/formats/dequantize.h"
#include "tandem/kernels/cuda/backend_impl.h"
#include "tandem/kernels/cuda/cuda_backend.h"
#include "tandem/kernels/cuda/pack.h"

namespace tandem::kernels::cuda {
namespace {

constexpr std::array<int, 5> kHeadSizes = {32, 64, 128, 256, 512};
constexpr int kOldestMajor = 9;
// The two kinds of pages share the budget; a device allocates for good, so it is cut here.
constexpr double kSlidingShare = 0.45;

std::size_t position_bytes(const KvLayerSpec& layer) {
  return std::size_t{2} * static_cast<std::size_t>(layer.kv_heads) * static_cast<std::size_t>(layer.head_size) *
         sizeof(half);
}

}  // namespace

core::Result<std::unique_ptr<CudaBackend>> CudaBackend::create(int device) {
  TANDEM_CUDA(cudaSetDevice(device));
  cudaDeviceProp properties = {};
  TANDEM_CUDA(cudaGetDeviceProperties(&properties, device));
  if (properties.major < kOldestMajor) {
    return core::unimplemented(std::string(properties.name) + " has compute capability " +
                               std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                               "; this build needs 9.0 or later; use --device cpu");
  }
  std::unique_ptr<CudaBackend> backend(new CudaBackend(
      "cuda (" + std::string(properties.name) + ", " + std::to_string(properties.multiProcessorCount) + " SMs)"));
  backend->num_ctas_ = 2 * properties.multiProcessorCount;
  TANDEM_CUDA(cudaStreamCreateWithFlags(&backend->stream_, cudaStreamNonBlocking));
  return core::Result<std::unique_ptr<CudaBackend>>(std::move(backend));
}

CudaBackend::~CudaBackend() {
  if (stream_ != nullptr) {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
}

core::Status CudaBackend::configure(const Geometry& geometry) {
  for (const KvLayerSpec& layer : geometry.kv_layers) {
    if (std::find(kHeadSizes.begin(), kHeadSizes.end(), layer.head_size) == kHeadSizes.end()) {
      return core::unimplemented("head size " + std::to_string(layer.head_size) +
                                 " is not built for CUDA (32, 64, 128, 256 and 512 are); use --device cpu");
    }
  }
  geometry_ = geometry;
  Geometry mirror = geometry;
  mirror.hidden = 0;  // hidden rows stay on the device
  host_.configure(mirror);
  TANDEM_TRY(configure_kv());
  return configure_rows();
}

core::Status CudaBackend::configure_kv() {
  kv_layout_.page_tokens = kPageTokens;
  for (const KvLayerSpec& layer : geometry_.kv_layers) {
    std::size_t& page = kv_layout_.page_bytes[static_cast<std::size_t>(layer.kind)];
    kv_layer_offsets_.push_back(page);
    page += kPageTokens * position_bytes(layer);
  }
  for (std::size_t kind = 0; kind < kNumAttentionKinds; ++kind) {
    const std::size_t page = kv_layout_.page_bytes[kind];
    if (page == 0) continue;
    const bool alone = kv_layout_.page_bytes[1 - kind] == 0;
    const double share = alone ? 1.0 : kind == 0 ? kSlidingShare : 1.0 - kSlidingShare;
    const auto pages = static_cast<std::size_t>(static_cast<double>(geometry_.kv_memory_bytes) * share) / page;
    if (pages < 2) {
      return core::invalid_argument("--kv-memory holds fewer than two pages of " + std::to_string(page) +
                                    " bytes; raise it");
    }
    kv_layout_.max_pages[kind] = static_cast<int>(std::min<std::size_t>(pages, 1 << 30));
    TANDEM_ASSIGN(kv_pages_[kind], DeviceBuffer::allocate(pages * page));
  }
  return {};
}

core::Status CudaBackend::configure_rows() {
  const auto max_rows = static_cast<std::size_t>(geometry_.max_rows);
  const auto sequences = static_cast<std::size_t>(geometry_.max_sequences);
  const std::array<std::size_t, 2> counts = {max_rows, sequences};
  for (std::size_t set = 0; set < counts.size(); ++set) {
    TANDEM_TRY(row_tables_[set].rows.reserve(counts[set]));
    TANDEM_TRY(row_tables_[set].tokens.reserve(counts[set]));
    for (std::size_t kind = 0; kind < kNumAttentionKinds; ++kind) {
      const std::size_t pairs = geometry_.rope_frequencies[kind].size();
      TANDEM_ASSIGN(row_tables_[set].rope[kind], DeviceBuffer::allocate(counts[set] * pairs * sizeof(float2)));
    }
  }
  for (std::size_t kind = 0; kind < kNumAttentionKinds; ++kind) {
    const std::vector<float>& f = geometry_.rope_frequencies[kind];
    TANDEM_ASSIGN(frequencies_[kind], DeviceBuffer::allocate(f.size() * sizeof(float)));
    if (f.empty()) continue;
    TANDEM_CUDA(cudaMemcpy(frequencies_[kind].as<void>(), f.data(), f.size() * sizeof(float), cudaMemcpyHostToDevice));
  }
  if (!geometry_.suppressed.empty()) {
    std::vector<std::uint32_t> mask(static_cast<std::size_t>(geometry_.vocab + 31) / 32);
    for (TokenId id : geometry_.suppressed) mask[static_cast<std::size_t>(id) / 32] |= 1U << (id % 32);
    TANDEM_ASSIGN(suppressed_, DeviceBuffer::allocate(mask.size() * 4));
    TANDEM_CUDA(cudaMemcpy(suppressed_.as<void>(), mask.data(), mask.size() * 4, cudaMemcpyHostToDevice));
  }
  const std::size_t hidden_bytes = sequences * static_cast<std::size_t>(geometry_.hidden) * sizeof(float);
  TANDEM_ASSIGN(hidden_, DeviceBuffer::allocate(hidden_bytes));
  TANDEM_ASSIGN(draft_hidden_, DeviceBuffer::allocate(hidden_bytes));
  TANDEM_ASSIGN(embeddings_, DeviceBuffer::allocate(hidden_bytes));
  TANDEM_ASSIGN(draft_tokens_, DeviceBuffer::allocate(sequences * kMaxDraft * sizeof(TokenId)));
  TANDEM_ASSIGN(fault_, DeviceBuffer::allocate(sizeof(int)));
  const std::size_t logit_bytes = static_cast<std::size_t>(kLogitRows) * static_cast<std::size_t>(geometry_.vocab) * 4;
  TANDEM_ASSIGN(logits_, DeviceBuffer::allocate(logit_bytes));
  TANDEM_ASSIGN(tokens_, DeviceBuffer::allocate(kLogitRows * sizeof(TokenId)));
  TANDEM_ASSIGN(candidates_, DeviceBuffer::allocate(kLogitRows * sizeof(Candidates)));
  host_candidates_.resize(kLogitRows);
  TANDEM_TRY(top_k_.reserve(kLogitRows));
  TANDEM_TRY(copy_from_.reserve(sequences));
  return copy_to_.reserve(sequences);
}

core::Result<std::unique_ptr<Weight>> CudaBackend::pack(const WeightView& weight, WeightRole role,
                                                        std::string_view name) {
  if (role == WeightRole::kExpert || role == WeightRole::kTokenIds || weight.is_scaled() ||
      weight.e4m3_group > 0) {
    return core::unimplemented(std::string(name) +
                               ": mixtures of experts, centroid heads, FP8 and NVFP4 are not built for CUDA");
  }
  const core::TensorView& view = weight.tensor;
  if (!formats::can_dequantize(view.dtype)) {
    return core::unimplemented(std::string(name) + ": type " + std::string(core::name(view.dtype)) +
                               " is not built for CUDA");
  }
  MatrixView matrix;
  matrix.rows = static_cast<int>(view.rows());
  matrix.cols = static_cast<int>(view.cols());
  DeviceBuffer memory;
  if (role == WeightRole::kVector) {
    std::vector<float> values(static_cast<std::size_t>(view.elements()));
    formats::dequantize_row(view.dtype, view.data, view.elements(), values.data());
    TANDEM_ASSIGN(memory, DeviceBuffer::allocate(values.size() * sizeof(float)));
    TANDEM_CUDA(cudaMemcpy(memory.as<void>(), values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
    matrix.rows = 1;
    matrix.cols = static_cast<int>(view.elements());
  } else {
    matrix.kind = brick_kind(view.dtype);
    auto bricks = pack_bricks(view, matrix.kind);
    if (!bricks.ok()) return bricks.status().with_context(name);
    memory = *std::move(bricks);
    matrix.bricks = memory.as<std::uint8_t>();
  }
  return core::Result<std::unique_ptr<Weight>>(std::make_unique<CudaWeight>(std::move(memory), matrix));
}

void CudaBackend::moe(const MoeWeights&, float, Rows) {
  TANDEM_CHECK(false, "no expert was packed");
}

core::Result<Rows> CudaBackend::allocate_rows(int max_rows, int cols, RowSet set) {
  TANDEM_ASSIGN(DeviceBuffer memory, DeviceBuffer::allocate(static_cast<std::size_t>(max_rows) *
                                                            static_cast<std::size_t>(cols) * sizeof(float)));
  row_memory_.push_back(std::move(memory));
  return Rows{row_memory_.back().as<float>(), max_rows, cols, set};
}

void CudaBackend::read(const Rows& rows, std::span<float> host) {
  flush_pending();
  check(cudaMemcpyAsync(host.data(), rows.data, host.size_bytes(), cudaMemcpyDeviceToHost, stream_));
  check(cudaStreamSynchronize(stream_));
}

void CudaBackend::write(const Rows& rows, std::span<const float> host) {
  flush_pending();
  check(cudaMemcpyAsync(rows.data, host.data(), host.size_bytes(), cudaMemcpyHostToDevice, stream_));
  check(cudaStreamSynchronize(stream_));
}

void CudaBackend::set_slot(int slot, const SamplingParams& sampling) {
  host_.set_slot(slot, sampling);
  const std::size_t bytes = static_cast<std::size_t>(geometry_.hidden) * sizeof(float);
  check(cudaMemsetAsync(hidden_.as<char>() + static_cast<std::size_t>(slot) * bytes, 0, bytes, stream_));
}

SlotSnapshot CudaBackend::read_slot(int slot) {
  SlotSnapshot out = host_.read_slot(slot);
  const auto read_row = [&](const DeviceBuffer& from, std::vector<float>& to) {
    to.resize(static_cast<std::size_t>(geometry_.hidden));
    check(cudaMemcpyAsync(to.data(), from.as<float>() + static_cast<std::ptrdiff_t>(slot) * geometry_.hidden,
                          to.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_));
  };
  read_row(hidden_, out.hidden);
  read_row(draft_hidden_, out.draft_hidden);
  check(cudaStreamSynchronize(stream_));
  return out;
}

Backend::StepShape CudaBackend::begin_step(const StepPlan& plan) {
  const StepShape shape = host_.begin(plan);
  pending_ = {};
  draft_steps_ = 0;
  check(cudaMemsetAsync(fault_.as<void>(), 0, sizeof(int), stream_));
  upload_rows(RowSet::kStep);
  upload_tables();
  return shape;
}

void CudaBackend::upload_rows(RowSet set) {
  RowTables& t = tables(set);
  t.rows.host().clear();
  t.tokens.host().clear();
  t.tiles.clear();
  t.kept_tiles.clear();
  for (const RowInfo& row : host_.rows(set)) {
    t.rows.host().push_back({row.span, row.slot, row.token, row.position, row.visible_end});
    t.tokens.host().push_back(row.token);
  }
  check(t.rows.send(stream_));
  check(t.tokens.send(stream_));
  const int num_rows = static_cast<int>(t.rows.host().size());
  if (num_rows == 0) return;
  for (std::size_t kind = 0; kind < kNumAttentionKinds; ++kind) {
    const int pairs = static_cast<int>(geometry_.rope_frequencies[kind].size());
    if (pairs == 0) continue;
    rope_table(t.rows.device(), num_rows, frequencies_[kind].as<float>(), pairs, t.rope[kind].as<float2>(), stream_);
  }
  check_launch();
}

void CudaBackend::upload_tables() {
  int num_spans = 0;
  for (const RowInfo& row : host_.rows(RowSet::kStep)) num_spans = std::max(num_spans, row.span + 1);
  for (std::size_t kind = 0; kind < kNumAttentionKinds; ++kind) {
    const auto attention_kind = static_cast<AttentionKind>(kind);
    std::size_t stride = 1;
    for (int s = 0; s < num_spans; ++s) stride = std::max(stride, host_.pages(s, attention_kind).size());
    Upload<PageId>& table = page_tables_[kind];
    const std::size_t needed = stride * static_cast<std::size_t>(std::max(num_spans, 1));
    if (table.capacity() < needed) {
      const core::Status grown = table.reserve(2 * needed);
      if (failure_.ok()) failure_ = grown;
      if (!grown.ok()) return;
    }
    table.host().assign(needed, kNoPage);
    for (int s = 0; s < num_spans; ++s) {
      const auto pages = host_.pages(s, attention_kind);
      std::copy(pages.begin(), pages.end(), table.host().begin() + static_cast<std::ptrdiff_t>(stride) * s);
    }
    table_stride_[kind] = static_cast<int>(stride);
    check(table.send(stream_));
  }
}

void CudaBackend::check(cudaError_t error) {
  if (failure_.ok()) failure_ = to_status(error, "the GPU failed");
}

core::Result<StepResult> CudaBackend::end_step() {
  int fault = 0;
  std::vector<TokenId> drafts(static_cast<std::size_t>(geometry_.max_sequences) * kMaxDraft);
  check(cudaMemcpyAsync(&fault, fault_.as<void>(), sizeof fault, cudaMemcpyDeviceToHost, stream_));
  if (draft_steps_ > 0) {
    check(cudaMemcpyAsync(drafts.data(), draft_tokens_.as<void>(), drafts.size() * sizeof(TokenId),
                          cudaMemcpyDeviceToHost, stream_));
  }
  check(cudaStreamSynchronize(stream_));
  retired_.clear();
  if (failure_.ok() && fault != 0) {
    failure_ = core::internal_error("the model produced a value that is not finite or too large; the step is lost");
  }
  if (!failure_.ok()) return std::exchange(failure_, {});
  for (int i = 0; i < draft_steps_; ++i) {
    for (int r = 0; r < host_.draft_rows(i); ++r) {
      host_.set_draft(i, r, drafts[static_cast<std::size_t>(i * geometry_.max_sequences + r)]);
    }
  }
  return host_.take_result();
}

extern "C" __attribute__((visibility("default"))) Backend* tandem_make_cuda_backend_v1(int device, char* error,
                                                                                     std::size_t size) {
  auto backend = CudaBackend::create(device);
  if (backend.ok()) return std::move(*backend).release();
  std::strncpy(error, backend.status().message().c_str(), size - 1);
  return nullptr;
}

}  // namespace tandem::kernels::cuda
