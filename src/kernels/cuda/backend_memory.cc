// Memory and slots of the CUDA backend.

#include <algorithm>
#include <cstring>

#include "tandem/kernels/cuda/backend_impl.h"
#include "tandem/kernels/cuda/cuda_backend.h"
#include "tandem/kernels/cuda/pack.h"
#include "tandem/kernels/cuda/product_check.h"
#include "tandem/kernels/cuda/staged_rows.h"
#include "tandem/kernels/kv_shares.h"

namespace tandem::kernels::cuda {
namespace {

constexpr std::array<int, 5> kHeadSizes = {32, 64, 128, 256, 512};
constexpr int kOldestMajor = 9;

std::size_t position_bytes(const KvLayerSpec& layer) {
  return std::size_t{2} * static_cast<std::size_t>(layer.kv_heads) *
         static_cast<std::size_t>(layer.head_size) * sizeof(half);
}

}  // namespace

core::Result<std::unique_ptr<CudaBackend>> CudaBackend::create(const CudaOptions& options) {
  const int device = options.device;
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) {
    return core::unavailable(std::string("no GPU can be used (") + cudaGetErrorString(error) +
                             "); use --device cpu");
  }
  cudaDeviceProp properties = {};
  TANDEM_CUDA(cudaGetDeviceProperties(&properties, device));
  if (properties.major < kOldestMajor) {
    return core::unimplemented(std::string(properties.name) + " has compute capability " +
                               std::to_string(properties.major) + "." +
                               std::to_string(properties.minor) +
                               "; this build needs 9.0 or later; use --device cpu");
  }
  std::unique_ptr<CudaBackend> backend(
      new CudaBackend("cuda (" + std::string(properties.name) + ", " +
                          std::to_string(properties.multiProcessorCount) + " SMs)",
                      options));
  backend->num_ctas_ = 2 * properties.multiProcessorCount;
  TANDEM_TRY(prepare_gemm());
  TANDEM_TRY(prepare_experts());
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
  if (geometry.kv_type != KvType::kF16) {
    return core::unimplemented(
        "a KV cache in int8 is not built for CUDA; leave out --kv-type or use --device cpu");
  }
  for (const KvLayerSpec& layer : geometry.kv_layers) {
    if (std::find(kHeadSizes.begin(), kHeadSizes.end(), layer.head_size) == kHeadSizes.end()) {
      return core::unimplemented(
          "head size " + std::to_string(layer.head_size) +
          " is not built for CUDA (32, 64, 128, 256 and 512 are); use --device cpu");
    }
  }
  geometry_ = geometry;
  Geometry mirror = geometry;
  mirror.hidden = 0;  // hidden rows stay on the device
  host_.configure(mirror);
  TANDEM_TRY(configure_kv());
  TANDEM_ASSIGN(partials_, DeviceBuffer::allocate(partial_bytes(geometry, num_ctas_)));
  return configure_rows();
}

core::Status CudaBackend::configure_kv() {
  kv_layout_.page_tokens = kPageTokens;
  for (const KvLayerSpec& layer : geometry_.kv_layers) {
    std::size_t& page = kv_layout_.page_bytes[static_cast<std::size_t>(layer.kind)];
    kv_layer_offsets_.push_back(page);
    page += kPageTokens * position_bytes(layer);
  }
  const auto shares = kv_shares(geometry_, kv_layout_);
  for (std::size_t kind = 0; kind < kNumAttentionKinds; ++kind) {
    const std::size_t page = kv_layout_.page_bytes[kind];
    if (page == 0) continue;
    const std::size_t pages = shares[kind] / page;
    if (pages < 2) {
      return core::invalid_argument("--kv-memory holds fewer than two pages of " +
                                    std::to_string(page) + " bytes; raise it");
    }
    kv_layout_.max_pages[kind] = static_cast<int>(std::min<std::size_t>(pages, 1 << 30));
    // One page more: rows that fill up a step write there.
    TANDEM_ASSIGN(kv_pages_[kind], DeviceBuffer::allocate((pages + 1) * page));
  }
  return {};
}

core::Status CudaBackend::configure_rows() {
  TANDEM_TRY(block_.configure(geometry_, kv_layout_));
  const auto sequences = static_cast<std::size_t>(geometry_.max_sequences);
  const std::array<std::size_t, 2> counts = {static_cast<std::size_t>(geometry_.max_rows),
                                             sequences};
  for (std::size_t kind = 0; kind < kNumAttentionKinds; ++kind) {
    const std::vector<float>& f = geometry_.rope_frequencies[kind];
    TANDEM_ASSIGN(frequencies_[kind], DeviceBuffer::copy_of(f));
    for (std::size_t set = 0; set < counts.size(); ++set) {
      TANDEM_ASSIGN(DeviceBuffer table,
                    DeviceBuffer::allocate(counts[set] * f.size() * sizeof(float2)));
      rope_[set].frequencies[kind] = frequencies_[kind].as<float>();
      rope_[set].table[kind] = table.as<float2>();
      rope_[set].pairs[kind] = static_cast<int>(f.size());
      rope_memory_.push_back(std::move(table));
    }
  }
  // One slot more, for rows that fill up a step.
  const std::size_t hidden_bytes =
      (sequences + 1) * static_cast<std::size_t>(geometry_.hidden) * sizeof(float);
  TANDEM_ASSIGN(hidden_, DeviceBuffer::allocate(hidden_bytes));
  TANDEM_ASSIGN(draft_hidden_, DeviceBuffer::allocate(hidden_bytes));
  TANDEM_ASSIGN(embeddings_, DeviceBuffer::allocate(hidden_bytes));
  TANDEM_ASSIGN(draft_rows_, DeviceBuffer::allocate(sequences * sizeof(DeviceRow)));
  TANDEM_ASSIGN(broken_drafts_, DeviceBuffer::allocate(sequences * sizeof(std::int32_t)));
  TANDEM_TRY(configure_results());
  return reserve_attention(1);
}

core::Status CudaBackend::configure_results() {
  if (!geometry_.suppressed.empty()) {
    std::vector<std::uint32_t> mask(static_cast<std::size_t>(geometry_.vocab + 31) / 32);
    for (TokenId id : geometry_.suppressed)
      mask[static_cast<std::size_t>(id) / 32] |= 1U << (id % 32);
    TANDEM_ASSIGN(suppressed_, DeviceBuffer::copy_of(mask));
  }
  const auto kept = static_cast<std::size_t>(geometry_.max_kept_rows);
  const auto rows = static_cast<std::size_t>(geometry_.max_rows);
  const std::size_t words =
      rows + kept + static_cast<std::size_t>(geometry_.max_sequences) * kMaxDraft;
  TANDEM_ASSIGN(device_results_, DeviceBuffer::allocate(words * sizeof(std::int32_t)));
  TANDEM_ASSIGN(pinned_results_, PinnedBuffer::allocate(words * sizeof(std::int32_t)));
  results_.broken = reinterpret_cast<std::int32_t*>(pinned_results_.data());
  results_.chosen = results_.broken + rows;
  results_.drafts = results_.chosen + kept;
  const auto vocab = static_cast<std::size_t>(geometry_.vocab);
  const std::size_t padded = (vocab + kTileRows - 1) / kTileRows * kTileRows;
  TANDEM_TRY(sampling_.configure(geometry_.max_kept_rows, geometry_.vocab));
  TANDEM_ASSIGN(sampler_, sampler_shape(geometry_.vocab));
  TANDEM_ASSIGN(logits_, DeviceBuffer::allocate(kLogitRows * padded * sizeof(float)));
  TANDEM_ASSIGN(host_logits_, PinnedBuffer::allocate(vocab * sizeof(float)));
  return {};
}

core::Status CudaBackend::reserve_attention(int blocks) {
  const std::size_t needed = attention_bytes(geometry_, blocks);
  if (attention_sums_.size() >= needed) return {};
  TANDEM_CUDA(cudaStreamSynchronize(stream_));
  graphs_.clear();
  TANDEM_ASSIGN(attention_sums_, DeviceBuffer::allocate(needed));
  // A pair of floats for each 16 rows' share of D floats, D >= 32.
  TANDEM_ASSIGN(attention_stats_, DeviceBuffer::allocate(needed / 16));
  return {};
}

void CudaBackend::grow(DeviceBuffer& buffer, std::size_t bytes) {
  if (buffer.size() >= bytes) return;
  auto grown = DeviceBuffer::allocate(bytes);
  if (!grown.ok()) return check(grown.status());
  check(cudaStreamSynchronize(stream_));
  graphs_.clear();
  retired_.push_back(
      std::exchange(buffer, *std::move(grown)));  // may still be named by this step's operations
}

core::Result<std::unique_ptr<Weight>> CudaBackend::pack(const WeightView& view, WeightRole role,
                                                        std::string_view name) {
  if (role == WeightRole::kTokenIds) {
    TANDEM_ASSIGN(const std::vector<TokenId> ids, read_token_ids(view, geometry_.vocab, name));
    TANDEM_ASSIGN(WeightBuffer memory, weight_memory_.copy_of(ids));
    return core::Result<std::unique_ptr<Weight>>(
        std::make_unique<CudaWeight>(std::move(memory), static_cast<int>(ids.size())));
  }
  TANDEM_TRY(view.check(name));
  if (role == WeightRole::kVector) {
    std::vector<float> values(static_cast<std::size_t>(view.cols()));
    view.values(0, values);
    TANDEM_ASSIGN(WeightBuffer memory, weight_memory_.copy_of(values));
    return core::Result<std::unique_ptr<Weight>>(
        std::make_unique<CudaWeight>(std::move(memory), static_cast<int>(values.size())));
  }
  if (role == WeightRole::kTable && tables_on_host_) {
    TANDEM_ASSIGN(HostTable table, HostTable::create(view, name));
    return core::Result<std::unique_ptr<Weight>>(std::make_unique<CudaWeight>(
        std::move(table), static_cast<int>(view.rows()), static_cast<int>(view.cols())));
  }
  TANDEM_ASSIGN(const BrickKind kind, brick_kind(view, role, name));
  auto packed = pack_bricks(view, kind, weight_memory_, pack_scratch_);
  if (!packed.ok()) return packed.status().with_context(name);
  const MatrixView& matrix = packed->view;
  if (role != WeightRole::kTable &&
      checked_.insert({view.tensor.dtype, matrix.kind, matrix.input, matrix.rows, matrix.cols})
          .second) {
    TANDEM_TRY(check_product(view, matrix, num_ctas_, stream_, name));
  }
  return core::Result<std::unique_ptr<Weight>>(std::make_unique<CudaWeight>(*std::move(packed)));
}

core::Result<Rows> CudaBackend::allocate_rows(int max_rows, int cols, RowSet set) {
  TANDEM_ASSIGN(DeviceBuffer memory,
                DeviceBuffer::allocate(static_cast<std::size_t>(max_rows) *
                                       static_cast<std::size_t>(cols) * sizeof(float)));
  row_memory_.push_back(std::move(memory));
  return Rows{row_memory_.back().as<float>(), max_rows, cols, set};
}

void CudaBackend::read(const Rows& rows, std::span<float> host) {
  flush_pending();
  check(
      cudaMemcpyAsync(host.data(), rows.data, host.size_bytes(), cudaMemcpyDeviceToHost, stream_));
  check(cudaStreamSynchronize(stream_));
}

void CudaBackend::write(const Rows& rows, std::span<const float> host) {
  flush_pending();
  check(
      cudaMemcpyAsync(rows.data, host.data(), host.size_bytes(), cudaMemcpyHostToDevice, stream_));
  check(cudaStreamSynchronize(stream_));
}

void CudaBackend::set_slot(int slot, const SamplingParams& sampling) {
  host_.set_slot(slot, sampling);
  const std::size_t bytes = static_cast<std::size_t>(geometry_.hidden) * sizeof(float);
  check(cudaMemsetAsync(hidden_.as<char>() + static_cast<std::size_t>(slot) * bytes, 0, bytes,
                        stream_));
}

SlotSnapshot CudaBackend::read_slot(int slot) {
  SlotSnapshot out = host_.read_slot(slot);
  const auto read_row = [&](const DeviceBuffer& from, std::vector<float>& to) {
    to.resize(static_cast<std::size_t>(geometry_.hidden));
    check(cudaMemcpyAsync(to.data(),
                          from.as<float>() + static_cast<std::ptrdiff_t>(slot) * geometry_.hidden,
                          to.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_));
  };
  read_row(hidden_, out.hidden);
  read_row(draft_hidden_, out.draft_hidden);
  check(cudaStreamSynchronize(stream_));
  return out;
}

void CudaBackend::check(cudaError_t error) {
  if (failure_.ok()) failure_ = to_status(error, "the GPU failed");
}

void CudaBackend::check(const core::Status& status) {
  if (failure_.ok()) failure_ = status;
}

extern "C" __attribute__((visibility("default"))) Backend* tandem_make_cuda_backend_v2(
    const CudaOptions& options, char* error, std::size_t size) {
  auto backend = CudaBackend::create(options);
  if (backend.ok()) return std::move(*backend).release();
  std::strncpy(error, backend.status().message().c_str(), size - 1);
  return nullptr;
}

}  // namespace tandem::kernels::cuda
