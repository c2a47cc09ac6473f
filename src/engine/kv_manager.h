#pragma once

#include <cstddef>
#include <span>

#include "tandem/core/status.h"
#include "tandem/engine/page_pool.h"
#include "tandem/engine/prefix_cache.h"
#include "tandem/engine/sequence.h"

namespace tandem::engine {

struct KvOptions {
  kernels::KvLayout layout;
  std::size_t budget_bytes = 0;
  int window = 0;  ///< W
  bool prefix_cache = true;
  std::size_t prefix_cache_bytes = 0;
};

/// Page tables of sequences: which pages a sequence takes, shares, and gives back.
/// Between steps a sequence holds exactly the pages of [0, computed) of the full layers and those
/// that a row at `computed` or later can see of the sliding layers. Thread: engine.
class KvManager {
 public:
  explicit KvManager(const KvOptions& options);
  KvManager(const KvManager&) = delete;
  KvManager& operator=(const KvManager&) = delete;

  /// Longest text that a sequence can hold when it is alone.
  int capacity_tokens() const;

  /// Whether a waiting sequence can be computed up to its last token beside the others, `chunk`
  /// rows at a time, with `reserve` pages left for them to grow.
  bool fits(Sequence& sequence, int chunk, const PageCounts& reserve) const;

  /// Pages that a sequence will take beside those it has, until its last token is computed.
  PageCounts pages_to_come(const Sequence& sequence, int chunk) const;

  /// Tokens that attach_prefix() would find now.
  int known_prefix(Sequence& sequence) const;
  /// Takes the longest known prefix of a sequence without pages: its tables then hold
  /// [0, computed). At least the last token is left to compute.
  void attach_prefix(Sequence& sequence);

  /// Extends the tables to cover positions [0, end), page by page. False when pages run out; those
  /// taken so far stay until trim(), settle() or release().
  bool reserve(Sequence& sequence, Position end);
  /// Gives back the pages beyond `computed`.
  void trim(Sequence& sequence);
  /// End of the positions that the tables cover.
  Position reserved_end(const Sequence& sequence) const;

  /// After a commit: full pages become known to the prefix cache; pages beyond `computed` and those
  /// that left the window are given back.
  void settle(Sequence& sequence);
  /// Gives all pages back and forgets what was computed.
  void release(Sequence& sequence);

  const PagePool& pool() const { return pool_; }

  /// Every reference count equals the number of tables that hold the page, every table fits its
  /// lengths, the cache is sound.
  core::Status check(std::span<const Sequence* const> sequences) const;

 private:
  int sliding_pages_in_flight(int length, int chunk) const;
  void update_keys(Sequence& sequence) const;
  std::span<const PageKey> reusable_keys(const Sequence& sequence) const;
  PrefixCache::Match find_prefix(Sequence& sequence) const;
  Retention retention_of(const Sequence& sequence, int page) const;

  PagePool pool_;
  PrefixCache cache_;
  int window_;
};

}  // namespace tandem::engine
