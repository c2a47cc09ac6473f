#include "tandem/kernels/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>

#include "tandem/kernels/sampling_math.h"

namespace tandem::kernels {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
/// Running maxima are kept per lane so that the compiler can use vector registers.
constexpr std::size_t kLanes = 16;
constexpr std::size_t kBlock = 64;
/// Buckets of logits by their distance from the largest, in temperatures; the last bucket holds
/// all the rest, together less than 1e-7 a token.
constexpr std::size_t kBuckets = 256;
constexpr float kBucketsPerNat = 16.0F;

/// What top-k and top-p keep: the candidates up to this one, in their order.
struct Last {
  float logit = kNever;
  TokenId id = std::numeric_limits<TokenId>::max();

  bool keeps(float other, std::size_t other_id) const {
    return other > logit || (other == logit && static_cast<TokenId>(other_id) <= id);
  }
};

float max_of(std::span<const float> values) {
  std::array<float, kLanes> lanes;
  lanes.fill(kNever);
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
    }
  }
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) {
      lanes[j] = lanes[j + half] > lanes[j] ? lanes[j + half] : lanes[j];
    }
  }
  float max = lanes[0];
  for (; i < values.size(); ++i) max = values[i] > max ? values[i] : max;
  return max;
}

/// A value that at least n logits reach: the n-th largest block maximum, or -inf.
float reached_by(std::size_t n, SamplingScratch& scratch) {
  if (n > scratch.block_maxima.size()) return kNever;
  scratch.ranked_maxima = scratch.block_maxima;
  const auto nth = scratch.ranked_maxima.begin() + static_cast<std::ptrdiff_t>(n - 1);
  std::nth_element(scratch.ranked_maxima.begin(), nth, scratch.ranked_maxima.end(),
                   std::greater<>());
  return *nth;
}

/// The order of candidates.
void sort_candidates(std::span<const float> logits, std::vector<TokenId>& ids, std::size_t keep) {
  const auto comes_first = [logits](TokenId a, TokenId b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (ids.size() > keep) {
    std::nth_element(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(keep), ids.end(),
                     comes_first);
    ids.resize(keep);
  }
  std::sort(ids.begin(), ids.end(), comes_first);
}

// ---- truncation ---------------------------------------------------------------------------------

/// Fills scratch.ids with the first k candidates, in order; fewer if fewer have logits above -inf.
void select_top_k(std::span<const float> logits, std::size_t k, SamplingScratch& scratch) {
  const float threshold = reached_by(k, scratch);
  scratch.ids.clear();
  for (std::size_t block = 0; block < scratch.block_maxima.size(); ++block) {
    if (scratch.block_maxima[block] < threshold) continue;
    const std::size_t end = std::min((block + 1) * kBlock, logits.size());
    for (std::size_t i = block * kBlock; i < end; ++i) {
      if (logits[i] >= threshold && logits[i] > kNever) {
        scratch.ids.push_back(static_cast<TokenId>(i));
      }
    }
  }
  sort_candidates(logits, scratch.ids, k);
}

Last last_of_top_k(std::span<const float> logits, const Law& law, const SamplingParams& params,
                   SamplingScratch& scratch) {
  select_top_k(logits, static_cast<std::size_t>(params.top_k), scratch);
  const auto logit = [logits](TokenId id) {
    return logits[static_cast<std::size_t>(id)];
  };
  TokenId last = scratch.ids.back();
  if (params.top_p < 1.0F) {
    std::uint64_t total = 0, reached = 0;
    for (const TokenId id : scratch.ids) total += law.mass(logit(id));
    const std::uint64_t nucleus = nucleus_of(total, params.top_p);
    for (const TokenId id : scratch.ids) {
      last = id;
      reached += law.mass(logit(id));
      if (reached >= nucleus) break;
    }
  }
  return {logit(last), last};
}

std::int32_t bucket_of(float log_weight) {
  constexpr float kLastBucket = static_cast<float>(kBuckets - 1);
  const float bucket = log_weight * -kBucketsPerNat;
  return static_cast<std::int32_t>(bucket < kLastBucket ? bucket : kLastBucket);
}

using Masses = std::array<std::uint64_t, kBuckets>;

/// Sums in kWays interleaved parts, so that one bucket's sum need not wait for its last term.
Masses bucket_masses(std::span<const float> logits, const Law& law) {
  constexpr std::size_t kWays = 4;
  std::array<Masses, kWays> parts = {};
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::size_t size = std::min(kBlock, logits.size() - begin);
    std::array<float, kBlock> weights;
    std::array<std::int32_t, kBlock> buckets;
    for (std::size_t i = 0; i < size; ++i) {
      const float log_weight = law.log_weight(logits[begin + i]);
      weights[i] = exp_weight(log_weight);
      buckets[i] = bucket_of(log_weight);
    }
    for (std::size_t i = 0; i < size; ++i) {
      parts[i % kWays][static_cast<std::size_t>(buckets[i])] += mass_of(weights[i]);
    }
  }
  Masses out = {};
  for (const Masses& part : parts) {
    for (std::size_t b = 0; b < kBuckets; ++b) out[b] += part[b];
  }
  return out;
}

/// Only the bucket in which the running sum reaches the nucleus is sorted.
Last last_of_nucleus(std::span<const float> logits, const Law& law, float top_p,
                     SamplingScratch& scratch) {
  const Masses masses = bucket_masses(logits, law);
  const std::uint64_t nucleus =
      nucleus_of(std::accumulate(masses.begin(), masses.end(), std::uint64_t{0}), top_p);
  std::size_t bucket = 0;
  std::uint64_t reached = 0;
  while (reached + masses[bucket] < nucleus) reached += masses[bucket++];
  scratch.ids.clear();
  for (std::size_t block = 0; block < scratch.block_maxima.size(); ++block) {
    const auto first =
        static_cast<std::size_t>(bucket_of(law.log_weight(scratch.block_maxima[block])));
    if (first > bucket) continue;
    const std::size_t end = std::min((block + 1) * kBlock, logits.size());
    for (std::size_t i = block * kBlock; i < end; ++i) {
      if (static_cast<std::size_t>(bucket_of(law.log_weight(logits[i]))) == bucket &&
          logits[i] > kNever) {
        scratch.ids.push_back(static_cast<TokenId>(i));
      }
    }
  }
  sort_candidates(logits, scratch.ids, scratch.ids.size());
  Last last;
  for (const TokenId id : scratch.ids) {
    last = {logits[static_cast<std::size_t>(id)], id};
    reached += law.mass(last.logit);
    if (reached >= nucleus) break;
  }
  return last;
}

Last last_kept(std::span<const float> logits, const Law& law, const SamplingParams& params,
               SamplingScratch& scratch) {
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < logits.size()) {
    return last_of_top_k(logits, law, params, scratch);
  }
  if (params.top_p < 1.0F) return last_of_nucleus(logits, law, params.top_p, scratch);
  return {};
}

// ---- the draw -----------------------------------------------------------------------------------

/// Masses of a block's tokens, 0 for those that are not kept.
std::array<std::uint64_t, kBlock> kept_masses(std::span<const float> logits, const Law& law,
                                              const Last& last, std::size_t block) {
  const std::size_t begin = block * kBlock, size = std::min(kBlock, logits.size() - begin);
  std::array<float, kBlock> weights;
  for (std::size_t i = 0; i < size; ++i) weights[i] = law.weight(logits[begin + i]);
  std::array<std::uint64_t, kBlock> masses = {};
  for (std::size_t i = 0; i < size; ++i) {
    const bool is_kept = weights[i] >= law.min_weight && last.keeps(logits[begin + i], begin + i);
    masses[i] = is_kept ? mass_of(weights[i]) : 0;
  }
  return masses;
}

std::uint64_t sum(std::span<const std::uint64_t> masses) {
  return std::accumulate(masses.begin(), masses.end(), std::uint64_t{0});
}

/// Masses of the blocks; returns their sum.
std::uint64_t weigh_blocks(std::span<const float> logits, const Law& law, const Last& last,
                           SamplingScratch& scratch) {
  scratch.block_masses.clear();
  for (std::size_t block = 0; block < scratch.block_maxima.size(); ++block) {
    const bool is_below = scratch.block_maxima[block] < last.logit;
    scratch.block_masses.push_back(is_below ? 0 : sum(kept_masses(logits, law, last, block)));
  }
  return sum(scratch.block_masses);
}

TokenId draw(std::span<const float> logits, const Law& law, const Last& last, std::uint64_t random,
             SamplingScratch& scratch) {
  std::uint64_t left = share_of(weigh_blocks(logits, law, last, scratch), random);
  std::size_t block = 0;
  while (left >= scratch.block_masses[block]) left -= scratch.block_masses[block++];
  const std::array<std::uint64_t, kBlock> masses = kept_masses(logits, law, last, block);
  std::size_t i = 0;
  while (left >= masses[i]) left -= masses[i++];
  return static_cast<TokenId>(block * kBlock + i);
}

/// The largest logit; fills scratch.block_maxima.
float find_maxima(std::span<const float> logits, SamplingScratch& scratch) {
  scratch.block_maxima.clear();
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    scratch.block_maxima.push_back(
        max_of(logits.subspan(begin, std::min(kBlock, logits.size() - begin))));
  }
  return max_of(scratch.block_maxima);
}

// ---- with a rule -----------------------------------------------------------------------------

void apply_mask(std::span<const std::uint32_t> mask, std::span<float> logits) {
  for (std::size_t begin = 0; begin < logits.size(); begin += 32) {
    const std::uint32_t word = mask[begin / 32];
    const std::size_t size = std::min<std::size_t>(32, logits.size() - begin);
    if (word == ~std::uint32_t{0}) continue;
    for (std::size_t i = 0; i < size; ++i) {
      logits[begin + i] = (word >> i & 1U) != 0 ? logits[begin + i] : kNever;
    }
  }
}

float logprob_of(float logit, double log_total) {
  return static_cast<float>(static_cast<double>(logit) - log_total);
}

/// Fills logprobs.top; returns ln of the sum of exp(logit).
double report_likeliest(std::span<const float> logits, int top, SamplingScratch& scratch,
                        TokenLogprobs& logprobs) {
  logprobs.top.clear();
  const Law law = {find_maxima(logits, scratch)};
  if (!std::isfinite(law.max)) return 0.0;  // no law: the span is broken
  const std::uint64_t total = weigh_blocks(logits, law, {}, scratch);
  const double log_total =
      static_cast<double>(law.max) + std::log(static_cast<double>(total) * 0x1p-40);
  if (top == 0) return log_total;
  select_top_k(logits, static_cast<std::size_t>(top), scratch);
  for (const TokenId id : scratch.ids) {
    logprobs.top.push_back({id, logprob_of(logits[static_cast<std::size_t>(id)], log_total)});
  }
  return log_total;
}

std::int32_t rank_of(TokenId token, std::span<const float> logits) {
  const auto id = static_cast<std::size_t>(token);
  const float logit = logits[id];
  const auto count = [](std::span<const float> values, auto comes_first) {
    return static_cast<std::int32_t>(std::count_if(values.begin(), values.end(), comes_first));
  };
  return 1 + count(logits.first(id), [logit](float x) { return x >= logit; }) +
         count(logits.subspan(id + 1), [logit](float x) { return x > logit; });
}

}  // namespace

TokenId argmax(std::span<const float> logits) {
  const auto best = std::find(logits.begin(), logits.end(), max_of(logits));
  return best == logits.end() ? 0 : static_cast<TokenId>(best - logits.begin());
}

TokenId sample(std::span<const float> logits, const SamplingParams& params, Position position,
               SamplingScratch& scratch) {
  if (is_greedy(params)) return argmax(logits);
  const Law law = Law::of(params, find_maxima(logits, scratch));
  if (!std::isfinite(law.max)) return argmax(logits);
  const Last last = last_kept(logits, law, params, scratch);
  return draw(logits, law, last, random_bits(params.seed, position), scratch);
}

TokenId sample(std::span<float> logits, const SamplingParams& params, const RowRule& rule,
               Position position, SamplingScratch& scratch, TokenLogprobs& logprobs) {
  const auto logit = [logits](TokenId id) -> float& {
    return logits[static_cast<std::size_t>(id)];
  };
  double log_total = 0.0;
  if (rule.top_logprobs) {
    log_total = report_likeliest(logits, *rule.top_logprobs, scratch, logprobs);
  }
  if (rule.given) {
    logprobs.chosen = {*rule.given, logprob_of(logit(*rule.given), log_total)};
    logprobs.rank = rank_of(*rule.given, logits);
    return *rule.given;
  }
  scratch.unchanged.clear();
  for (const LogitChange& change : rule.changes) {
    float& x = logit(change.token);
    scratch.unchanged.push_back(x);
    x = changed(x, change);
  }
  if (!rule.mask.empty()) apply_mask(rule.mask, logits);
  const TokenId token = sample(logits, params, position, scratch);
  if (rule.top_logprobs) {
    for (std::size_t i = 0; i < rule.changes.size(); ++i) {
      logit(rule.changes[i].token) = scratch.unchanged[i];
    }
    logprobs.chosen = {token, logprob_of(logit(token), log_total)};
    logprobs.rank = 0;
  }
  return token;
}

}  // namespace tandem::kernels
