#include "tandem/model/load_draft_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tandem/core/buffer.h"

namespace tandem::model {
namespace {

using kernels::WeightRole;
using kernels::WeightView;

constexpr TensorKey kTable = {TensorRole::kEmbedding};
constexpr TensorKey kCentroids = {TensorRole::kCentroids};
constexpr TensorKey kOrdering = {TensorRole::kTokenOrdering};

/// Packs the table with row r = the file's row ids[r].
core::Status load_ordered_table(TensorPacker& pack, const WeightView& table,
                                const std::vector<TokenId>& ids, const kernels::Weight*& out) {
  const std::size_t row_bytes = core::row_bytes(table.tensor.dtype, table.tensor.cols());
  TANDEM_ASSIGN(const core::Arena copy,
                core::Arena::reserve(row_bytes * ids.size(), /*huge_pages=*/false));
  for (std::size_t r = 0; r < ids.size(); ++r) {
    std::memcpy(copy.data() + r * row_bytes, table.tensor.row(ids[r]), row_bytes);
  }
  WeightView ordered = table;
  ordered.tensor.data = copy.data();
  return pack.pack(kTable, ordered, WeightRole::kLinear, out);
}

/// kUnimplemented if the backend runs no such head.
core::Status load_centroid_head(TensorPacker& pack, const ModelConfig& config,
                                kernels::DraftWeights& ends) {
  TANDEM_ASSIGN(const WeightView ordering, pack.find(kOrdering, 1, config.vocab));
  kernels::CentroidHead head;
  TANDEM_TRY(pack.pack(kOrdering, ordering, WeightRole::kTokenIds, head.tokens));
  TANDEM_ASSIGN(const int clusters, pack.count_rows(kCentroids, config.hidden));
  if (config.vocab % clusters != 0) {
    return pack.error(fmt::format("there are {} centroids, which do not share {} tokens evenly",
                                  clusters, config.vocab));
  }
  TANDEM_TRY(pack.linear(kCentroids, clusters, config.hidden, head.centroids));
  head.top_clusters = std::min(config.centroids_per_token, clusters);
  TANDEM_ASSIGN(const WeightView table, pack.find(kTable, config.vocab, config.hidden));
  if (table.is_scaled()) {
    return pack.error("the token table of a centroid head has scales of its own");
  }
  TANDEM_ASSIGN(const auto ids, kernels::read_token_ids(ordering, config.vocab, "token_ordering"));
  TANDEM_TRY(load_ordered_table(pack, table, ids, ends.head.table));
  ends.centroids = head;
  return {};
}

}  // namespace

core::Status load_draft_head(TensorPacker& pack, const ModelConfig& config, DraftHead choice,
                             kernels::DraftWeights& ends) {
  if (choice == DraftHead::kAuto && pack.has(kCentroids) && pack.has(kOrdering)) {
    const core::Status status = load_centroid_head(pack, config, ends);
    if (status.code() != core::Code::kUnimplemented) return status;
  }
  return pack.linear(kTable, config.vocab, config.hidden, ends.head.table);
}

}  // namespace tandem::model
