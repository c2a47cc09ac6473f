#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "tandem/core/buffer.h"
#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/kernels/backend.h"

namespace tandem::kernels {

/// KV pages in host memory. Each kind has an arena of address space that could hold the whole
/// budget; physical memory follows use. A page holds, for each kv layer of its kind in layer order,
/// K and then V, each [G] tiles of page_tokens * D elements and what a position has beside them;
/// the order within a tile is the backend's. Thread: any number of readers; writers of different
/// tiles do not meet.
class HostKv {
 public:
  /// Fails with kResourceExhausted if the budget holds no page of a kind that has layers, or the
  /// address space cannot be had.
  core::Status configure(const Geometry& geometry, int page_tokens, std::size_t element_bytes,
                         std::size_t position_bytes = 0);

  const KvLayout& layout() const { return layout_; }

  /// The keys of one KV head in one page: [page_tokens * D] elements of type T.
  template <typename T>
  T* keys(int kv_layer, PageId page, int kv_head) const {
    return reinterpret_cast<T*>(tile(kv_layer, page, kv_head));
  }
  /// The values of one KV head in one page.
  template <typename T>
  T* values(int kv_layer, PageId page, int kv_head) const {
    const Layer& layer = layers_[static_cast<std::size_t>(kv_layer)];
    return reinterpret_cast<T*>(tile(kv_layer, page, layer.kv_heads + kv_head));
  }

 private:
  struct Layer {
    std::size_t kind = 0;
    int kv_heads = 0;
    std::size_t offset = 0;  // of the layer's first tile in a page
    std::size_t tile_bytes = 0;
  };

  std::byte* tile(int kv_layer, PageId page, int tile_index) const {
    const Layer& layer = layers_[static_cast<std::size_t>(kv_layer)];
    return arenas_[layer.kind].data() +
           static_cast<std::size_t>(page) * layout_.page_bytes[layer.kind] + layer.offset +
           static_cast<std::size_t>(tile_index) * layer.tile_bytes;
  }

  KvLayout layout_;
  std::vector<Layer> layers_;
  std::array<core::Arena, kNumAttentionKinds> arenas_;
};

}  // namespace tandem::kernels
