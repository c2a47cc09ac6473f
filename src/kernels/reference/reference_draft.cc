#include <algorithm>
#include <limits>
#include <vector>

#include "tandem/kernels/reference/backend_impl.h"

namespace tandem::kernels::reference {

void ReferenceBackend::draft_input(const DraftWeights& w, int i, Rows x) {
  TANDEM_CHECK(x.rows == step_.draft_rows(i), "one row per sequence that drafts this far");
  const int width = geometry_.hidden;
  const Rows input = gate_.rows(x.rows, 2 * width);
  for (int r = 0; r < x.rows; ++r) {
    const std::span<float> embedding = row(input, r).first(static_cast<std::size_t>(width));
    weight(w.target_embedding).gather(step_.draft_token(i, r), embedding);
    for (float& value : embedding) value *= w.embedding_scale;
    std::copy_n(step_.draft_hidden(r).begin(), width, row(input, r).begin() + width);
  }
  const ReferenceWeight& projection = weight(w.pre_projection);
  TANDEM_CHECK(projection.rows() == x.cols && projection.cols() == input.cols,
               "wrong pre-projection shape");
  projection.multiply(input.data, x.rows, x.data);
}

void ReferenceBackend::draft_head(const DraftWeights& w, int i, Rows x) {
  const Rows y = normed(x, w.head.norm);
  for (int r = 0; r < y.rows; ++r) {
    step_.set_draft(i, r, draft_token(w, {row(y, r).data(), 1, y.cols}));
  }
  const Rows hidden = linear(w.post_projection, y, projected_);
  for (int r = 0; r < y.rows; ++r) {
    std::copy_n(row(hidden, r).begin(), hidden.cols, step_.draft_hidden(r).begin());
  }
}

TokenId ReferenceBackend::draft_token(const DraftWeights& w, Rows y) {
  const Rows logits = logits_.rows(1, geometry_.vocab);
  if (w.centroids.centroids == nullptr) {
    head_logits(w.head, y, logits.data);
    return argmax(row(logits, 0));
  }
  weight(w.head.table).multiply(y.data, 1, logits.data);
  return best_of_clusters(w, y, row(logits, 0));
}

/// logits: [V] in the order of the table's rows.
TokenId ReferenceBackend::best_of_clusters(const DraftWeights& w, Rows y,
                                           std::span<const float> logits) {
  const std::span<const TokenId> tokens = weight(w.centroids.tokens).token_ids();
  const Rows scores = linear(w.centroids.centroids, y, centroids_);
  const auto num_clusters = static_cast<std::size_t>(scores.cols);
  const std::size_t size = tokens.size() / num_clusters;
  TANDEM_CHECK(size * num_clusters == logits.size(), "clusters must divide the vocabulary");
  const std::vector<int> clusters = largest(row(scores, 0), w.centroids.top_clusters);
  float best = -std::numeric_limits<float>::infinity();
  TokenId token = 0;
  for (const int cluster : clusters) {
    const std::size_t begin = static_cast<std::size_t>(cluster) * size;
    for (std::size_t r = begin; r < begin + size; ++r) {
      const auto& never = geometry_.suppressed;
      if (std::find(never.begin(), never.end(), tokens[r]) != never.end()) continue;
      if (logits[r] < best || (logits[r] == best && tokens[r] > token)) continue;
      best = logits[r];
      token = tokens[r];
    }
  }
  return token;
}

}  // namespace tandem::kernels::reference
