#include "tandem/kernels/cpu/attention_task.h"

#include <algorithm>
#include <limits>

#include "tandem/core/check.h"
#include "tandem/core/checked_math.h"
#include "tandem/kernels/cpu/simd/attention_block.h"

namespace tandem::kernels::cpu {
namespace {

/// Vectors of the next tile when `left` are left and the cache has 16 bits: what
/// RowKernels::attend_int16 takes, without a small rest where that can be avoided.
int tile_vectors(int left, int max_vectors) {
  if (left >= 12 && left != 16 && max_vectors >= 12) return 12;
  if (left >= 8 && max_vectors >= 8) return 8;
  if (left >= 4) return 4;
  return left >= 2 ? 2 : 1;
}

}  // namespace

/// Where the pages of a block lie.
struct AttentionRunner::BlockPages {
  const void* keys[kPagesPerBlock];
  const void* values[kPagesPerBlock];
  const void* next_keys = nullptr;  // the page read after the block
};

/// The state of a task's vectors and the scores of one tile.
struct AttentionRunner::Scratch {
  Scratch(const core::Arena& arena, int head_size) {
    queries = arena.data();
    weights = queries + query_bytes(head_size);
    out = reinterpret_cast<float*>(weights + kWeightBytes);
    block_out = out + kTaskVectors * head_size;
    scores = block_out + kMaxTileVectors * head_size;
    query_scales = scores + kMaxTileVectors * kBlockTokens;
    max = query_scales + kTaskVectors;
    sum = max + kTaskVectors;
  }
  static std::size_t query_bytes(int head_size) {
    const auto size = static_cast<std::size_t>(head_size);
    return kTaskVectors * std::max(size * sizeof(std::int16_t), size / 32 * sizeof(CodeGroup));
  }
  static constexpr std::size_t kWeightBytes =
      kMaxTileVectors *
      std::max(kBlockTokens * sizeof(std::int16_t), kPagesPerBlock * sizeof(CodeGroup));

  std::byte* queries;   // int16: per tile of V vectors [D / 2][V][2]; int8: [kTaskVectors][D / 32]
  std::byte* weights;   // of a tile; see the blocks
  float* out;           // [kTaskVectors][D]
  float* block_out;     // [kMaxTileVectors][D]
  float* scores;        // [kMaxTileVectors][kBlockTokens]
  float* query_scales;  // [kTaskVectors]
  float* max;           // [kTaskVectors]
  float* sum;           // [kTaskVectors]

  template <typename T>
  T* queries_as() const {
    return reinterpret_cast<T*>(queries);
  }
  template <typename T>
  T* weights_as() const {
    return reinterpret_cast<T*>(weights);
  }
};

std::size_t AttentionRunner::scratch_bytes(int head_size) {
  const int floats = (kTaskVectors + kMaxTileVectors) * head_size + kMaxTileVectors * kBlockTokens +
                     3 * kTaskVectors;
  return static_cast<std::size_t>(floats) * sizeof(float) + Scratch::query_bytes(head_size) +
         Scratch::kWeightBytes;
}

const RowInfo& AttentionRunner::row_of(const AttentionTask& task, int vector) const {
  const int v = task.first_vector + vector;
  return in_.rows[static_cast<std::size_t>(task.run.first_row + v / heads_per_kv())];
}

/// Where the vector's head lies in the rows of queries and outputs.
std::ptrdiff_t AttentionRunner::head_offset(const AttentionTask& task, int vector) const {
  const int v = task.first_vector + vector;
  const int r = task.run.first_row + v / heads_per_kv();
  const int head = task.kv_head * heads_per_kv() + v % heads_per_kv();
  return (static_cast<std::ptrdiff_t>(r) * in_.spec.heads + head) * in_.spec.head_size;
}

int AttentionRunner::next_tile(int left) const {
  if (in_.int8 != nullptr) return std::min(left, kMaxTileVectors);
  return tile_vectors(left, k_.max_vectors);
}

void AttentionRunner::load_queries(const AttentionTask& task, const Scratch& s) const {
  const int size = in_.spec.head_size;
  if (in_.int8 != nullptr) {
    auto* groups = s.queries_as<CodeGroup>();
    for (int i = 0; i < task.num_vectors; ++i, groups += size / 32) {
      in_.int8->quantize_row(in_.queries + head_offset(task, i), size, groups);
    }
    return;
  }
  int tile = 0;
  for (int first = 0; first < task.num_vectors; first += tile) {
    tile = next_tile(task.num_vectors - first);
    std::int16_t* codes = s.queries_as<std::int16_t>() + first * size;
    for (int i = 0; i < tile; ++i) {
      const float* q = in_.queries + head_offset(task, first + i);
      s.query_scales[first + i] = k_.encode_query(q, size, codes + 2 * i, 2 * tile);
    }
  }
}

void AttentionRunner::run(const AttentionTask& task, const AttentionTask* next,
                          const core::Arena& scratch) const {
  const int size = in_.spec.head_size;
  const Scratch s(scratch, size);
  load_queries(task, s);
  std::fill_n(s.max, task.num_vectors, -std::numeric_limits<float>::infinity());
  for (int block = task.first_block; block < task.end_block; ++block) {
    const bool is_last = block + 1 == task.end_block;
    const int next_block = is_last && next != nullptr ? next->first_block : block + 1;
    attend_block(task, block, find_pages(task, block, is_last ? next : &task, next_block), s);
  }
  for (int i = 0; i < task.num_vectors; ++i) {
    const float* out = s.out + i * size;
    if (task.partial < 0) {
      write_result(task, i, out, s.sum[i]);
      continue;
    }
    float* partial = work_.partial(task.partial + i);
    std::copy_n(out, size, partial);
    partial[size] = s.max[i];
    partial[size + 1] = s.sum[i];
  }
}

/// Pages of a block that some vector of the task sees, counted from the block's first.
AttentionRunner::PageRange AttentionRunner::visible_pages(const AttentionTask& task,
                                                          int block) const {
  // Positions ascend, so the first vector sees furthest back and the last one furthest ahead.
  const Position origin = block * kBlockTokens;
  const RowInfo& last = row_of(task, task.num_vectors - 1);
  const int begin = std::max(first_visible_key(row_of(task, 0), in_.window) - origin, 0);
  const int end = std::min(last.visible_end - origin, kBlockTokens);
  return {begin / kPageTokens, core::ceil_div(std::max(end, 0), kPageTokens)};
}

PageId AttentionRunner::page_of(const AttentionTask& task, int block, int page) const {
  const auto index = static_cast<std::size_t>(block * kPagesPerBlock + page);
  const PageId id = step_.pages(task.run.span, in_.spec.kind)[index];
  TANDEM_CHECK(id != kNoPage, "a visible key has no KV page");
  return id;
}

AttentionRunner::BlockPages AttentionRunner::find_pages(const AttentionTask& task, int block,
                                                        const AttentionTask* next_task,
                                                        int next_block) const {
  BlockPages pages;
  const int layer = in_.spec.kv_layer;
  const PageRange range = visible_pages(task, block);
  for (int p = range.begin; p < range.end; ++p) {
    const PageId page = page_of(task, block, p);
    pages.keys[p] = kv_.keys<std::byte>(layer, page, task.kv_head);
    pages.values[p] = kv_.values<std::byte>(layer, page, task.kv_head);
    pages.next_keys = pages.keys[p];
  }
  if (next_task == nullptr) return pages;
  const PageRange next = visible_pages(*next_task, next_block);
  if (next.begin < next.end) {
    const PageId page = page_of(*next_task, next_block, next.begin);
    pages.next_keys = kv_.keys<std::byte>(layer, page, next_task->kv_head);
  }
  return pages;
}

void AttentionRunner::attend_block(const AttentionTask& task, int block, const BlockPages& pages,
                                   const Scratch& s) const {
  AttentionBlock b;
  b.head_size = in_.spec.head_size;
  b.keys = pages.keys;
  b.values = pages.values;
  b.next_keys = pages.next_keys;
  b.block_out = s.block_out;
  b.scores = s.scores;
  std::int32_t key_begin[kMaxTileVectors];
  std::int32_t key_end[kMaxTileVectors];
  b.key_begin = key_begin;
  b.key_end = key_end;
  const Position origin = block * kBlockTokens;

  for (int first = 0; first < task.num_vectors; first += b.num_vectors) {
    b.num_vectors = next_tile(task.num_vectors - first);
    int lowest = kBlockTokens;
    int highest = 0;
    for (int i = 0; i < b.num_vectors; ++i) {
      const RowInfo& row = row_of(task, first + i);
      key_begin[i] = std::max(first_visible_key(row, in_.window) - origin, 0);
      key_end[i] = std::min(row.visible_end - origin, kBlockTokens);
      if (key_begin[i] >= key_end[i]) continue;
      lowest = std::min(lowest, key_begin[i]);
      highest = std::max(highest, key_end[i]);
    }
    if (lowest >= highest) continue;
    b.first_page = lowest / kPageTokens;
    b.end_page = core::ceil_div(highest, kPageTokens);
    b.max = s.max + first;
    b.sum = s.sum + first;
    b.out = s.out + first * b.head_size;
    if (in_.int8 != nullptr) {
      const CodeGroup* queries = s.queries_as<CodeGroup>() + first * (b.head_size / 32);
      in_.int8->attend_int8({b, queries, s.weights_as<CodeGroup>()});
    } else {
      const std::int16_t* queries = s.queries_as<std::int16_t>() + first * b.head_size;
      k_.attend_int16({b, queries, s.query_scales + first, s.weights_as<std::int16_t>()});
    }
  }
}

void AttentionRunner::merge(const AttentionTask& task, const core::Arena& scratch) const {
  const int size = in_.spec.head_size;
  const Scratch s(scratch, size);
  for (int i = 0; i < task.num_vectors; ++i) {
    float max = -std::numeric_limits<float>::infinity();
    // What no block replaces if no score is a number.
    float sum = std::numeric_limits<float>::quiet_NaN();
    for (int block = task.first_block; block < task.end_block; ++block) {
      const int offset = (block - task.first_block) * task.num_vectors + i;
      const float* part = work_.partial(task.partial + offset);
      k_.merge_block(part, part[size], part[size + 1], size, &max, &sum, s.out);
    }
    write_result(task, i, s.out, sum);
  }
}

void AttentionRunner::write_result(const AttentionTask& task, int vector, const float* out,
                                   float sum) const {
  float* dst = in_.out + head_offset(task, vector);
  if (row_of(task, vector).visible_end == 0) {
    std::fill_n(dst, in_.spec.head_size, 0.0F);  // a draft row of an empty cache
  } else {
    k_.scale(out, 1.0F / sum, in_.spec.head_size, dst);
  }
}

}  // namespace tandem::kernels::cpu
