#include "tandem/kernels/host_kv.h"

#include <algorithm>
#include <limits>
#include <string>

namespace tandem::kernels {

core::Status HostKv::configure(const Geometry& geometry, int page_tokens, std::size_t element_bytes,
                               std::size_t position_bytes) {
  layout_ = {};
  layout_.page_tokens = page_tokens;
  layers_.clear();
  for (const KvLayerSpec& spec : geometry.kv_layers) {
    Layer layer;
    layer.kind = index_of(spec.kind);
    layer.kv_heads = spec.kv_heads;
    layer.offset = layout_.page_bytes[layer.kind];
    layer.tile_bytes = static_cast<std::size_t>(page_tokens) *
                       (static_cast<std::size_t>(spec.head_size) * element_bytes + position_bytes);
    layout_.page_bytes[layer.kind] +=
        2 * static_cast<std::size_t>(spec.kv_heads) * layer.tile_bytes;
    layers_.push_back(layer);
  }
  for (std::size_t kind = 0; kind < arenas_.size(); ++kind) {
    const std::size_t page_bytes = layout_.page_bytes[kind];
    if (page_bytes == 0) continue;
    const std::size_t num_pages =
        std::min(geometry.kv_memory_bytes / page_bytes,
                 static_cast<std::size_t>(std::numeric_limits<PageId>::max()));
    if (num_pages == 0) {
      return core::resource_exhausted(
          "the KV cache needs at least " + std::to_string(page_bytes >> 10) +
          " KiB for one page, but its budget is " + std::to_string(geometry.kv_memory_bytes >> 10) +
          " KiB; raise --kv-memory");
    }
    layout_.max_pages[kind] = static_cast<int>(num_pages);
    // Attention reads the whole cache in every step: with small pages it waits for translations.
    TANDEM_ASSIGN(arenas_[kind], core::Arena::reserve(num_pages * page_bytes, /*huge_pages=*/true));
  }
  return {};
}

}  // namespace tandem::kernels
