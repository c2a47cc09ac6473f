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

std::int64_t row_bytes(const WeightView& view) {
  return static_cast<std::int64_t>(core::row_bytes(view.tensor.dtype, view.tensor.cols()));
}

/// Whether a draft reads fewer bytes by clusters (all centroids and `top` of the table's
/// `clusters`) than in the whole table. Bytes stand for time: both heads multiply as much as they
/// read for a row, and what they share between rows, they share alike.
bool is_faster_by_clusters(const WeightView& table, const WeightView& centroids, int top) {
  const std::int64_t clusters = centroids.rows();
  const std::int64_t chosen = table.rows() / clusters * top;
  return clusters * row_bytes(centroids) + chosen * row_bytes(table) <
         table.rows() * row_bytes(table);
}

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
  return pack.pack(kTable, ordered, WeightRole::kHead, out);
}

/// kUnimplemented if the backend runs no such head; loads nothing if it would not be faster.
core::Status load_centroid_head(TensorPacker& pack, const ModelConfig& config,
                                kernels::DraftWeights& ends) {
  TANDEM_ASSIGN(const int clusters, pack.count_rows(kCentroids, config.hidden));
  if (config.vocab % clusters != 0) {
    return pack.error(fmt::format("there are {} centroids, which do not share {} tokens evenly",
                                  clusters, config.vocab));
  }
  TANDEM_ASSIGN(const WeightView centroids, pack.find(kCentroids, clusters, config.hidden));
  TANDEM_ASSIGN(const WeightView table, pack.find(kTable, config.vocab, config.hidden));
  kernels::CentroidHead head;
  head.top_clusters = std::min(config.centroids_per_token, clusters);
  if (!is_faster_by_clusters(table, centroids, head.top_clusters)) return {};

  TANDEM_ASSIGN(const WeightView ordering, pack.find(kOrdering, 1, config.vocab));
  TANDEM_TRY(pack.pack(kOrdering, ordering, WeightRole::kTokenIds, head.tokens));
  TANDEM_TRY(pack.pack(kCentroids, centroids, WeightRole::kLinear, head.centroids));
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
    if (!status.ok() && status.code() != core::Code::kUnimplemented) return status;
    if (ends.head.table != nullptr) return {};
  }
  return pack.matrix(kTable, config.vocab, config.hidden, WeightRole::kHead, ends.head.table);
}

}  // namespace tandem::model
