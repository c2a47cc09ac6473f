#include "tandem/kernels/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>

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
/// A mass that no random number can hit beside the likeliest token's 1.
constexpr double kNothing = 1e-30;

/// exp(x) for x <= 0 to about 2 ulp, in basic operations only so that it is the same everywhere
/// (a libm may pick its code by CPU): x = n ln 2 + r, |r| <= ln 2 / 2, e^r by its Taylor series.
/// Below -87, and for NaN, it returns e^-87, which no sum of weights that holds a 1 can notice.
float exp_weight(float x) {
  constexpr float kLowest = -87.0F;
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 0x1.8p23F;  // adding it rounds to an integer in the low bits
  x = x > kLowest ? x : kLowest;
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0F / 5040;
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  return p * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
}

/// The law before truncation.
struct Law {
  std::span<const float> logits;
  float max = 0.0F;
  float inverse_temperature = 1.0F;

  /// Logarithm of a token's weight relative to the likeliest one's.
  float log_weight(float logit) const { return (logit - max) * inverse_temperature; }
  float weight(float logit) const { return exp_weight(log_weight(logit)); }
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

// ---- with top-k: the k likeliest tokens, sorted -------------------------------------------------

/// Fills scratch with the first k candidates, in order; fewer if fewer have logits above -inf.
void select_top_k(const Law& law, std::size_t k, SamplingScratch& scratch) {
  const float threshold = reached_by(k, scratch);
  scratch.ids.clear();
  for (std::size_t block = 0; block < scratch.block_maxima.size(); ++block) {
    if (scratch.block_maxima[block] < threshold) continue;
    const std::size_t end = std::min((block + 1) * kBlock, law.logits.size());
    for (std::size_t i = block * kBlock; i < end; ++i) {
      const float logit = law.logits[i];
      if (logit >= threshold && logit > kNever) scratch.ids.push_back(static_cast<TokenId>(i));
    }
  }
  sort_candidates(law.logits, scratch.ids, k);
  scratch.weights.clear();
  for (const TokenId id : scratch.ids) {
    scratch.weights.push_back(law.weight(law.logits[static_cast<std::size_t>(id)]));
  }
}

double sum(std::span<const float> weights) {
  double total = 0.0;
  for (const float w : weights) total += static_cast<double>(w);
  return total;
}

TokenId sample_top_k(const Law& law, std::size_t k, const SamplingParams& params, double random,
                     SamplingScratch& scratch) {
  select_top_k(law, k, scratch);
  const std::span<const float> weights(scratch.weights);
  const double nucleus = static_cast<double>(params.top_p) * sum(weights);
  double reached = 0.0;
  std::size_t kept = 0;
  while (kept < weights.size() && (kept == 0 || weights[kept] >= params.min_p)) {
    reached += static_cast<double>(weights[kept++]);
    if (params.top_p < 1.0F && reached >= nucleus) break;
  }
  const double target = random * reached;
  reached = 0.0;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    reached += static_cast<double>(weights[i]);
    if (reached > target) return scratch.ids[i];
  }
  return scratch.ids[kept - 1];
}

// ---- without: masses of buckets, of which only the ones that matter are sorted ------------------

std::int32_t bucket_of(float log_weight) {
  constexpr float kLast = static_cast<float>(kBuckets - 1);
  const float bucket = log_weight * -kBucketsPerNat;
  return static_cast<std::int32_t>(bucket < kLast ? bucket : kLast);
}

using Masses = std::array<double, kBuckets>;

/// Sums in kWays interleaved parts, so that one bucket's sum need not wait for its last term.
Masses bucket_masses(const Law& law) {
  constexpr std::size_t kWays = 4;
  std::array<Masses, kWays> parts = {};
  for (std::size_t begin = 0; begin < law.logits.size(); begin += kBlock) {
    const std::size_t size = std::min(kBlock, law.logits.size() - begin);
    std::array<float, kBlock> weights;
    std::array<std::int32_t, kBlock> buckets;
    for (std::size_t i = 0; i < size; ++i) {
      const float log_weight = law.log_weight(law.logits[begin + i]);
      weights[i] = exp_weight(log_weight);
      buckets[i] = bucket_of(log_weight);
    }
    for (std::size_t i = 0; i < size; ++i) {
      parts[i % kWays][static_cast<std::size_t>(buckets[i])] += static_cast<double>(weights[i]);
    }
  }
  Masses out = {};
  for (const Masses& part : parts) {
    for (std::size_t b = 0; b < kBuckets; ++b) out[b] += part[b];
  }
  return out;
}

/// Mass of the tokens whose weight is at least min_p.
double mass_above(const Law& law, float min_p, const SamplingScratch& scratch) {
  double mass = 0.0;
  for (std::size_t block = 0; block < scratch.block_maxima.size(); ++block) {
    if (law.weight(scratch.block_maxima[block]) < min_p) continue;
    const std::size_t end = std::min((block + 1) * kBlock, law.logits.size());
    for (std::size_t i = block * kBlock; i < end; ++i) {
      const float weight = law.weight(law.logits[i]);
      if (weight >= min_p) mass += static_cast<double>(weight);
    }
  }
  return mass;
}

struct Found {
  TokenId id = 0;
  double mass = 0.0;  // of all candidates up to this one
};

/// The first candidate whose running mass is beyond `target`, or reaches it if `or_equal`; the last
/// one if rounding leaves none.
Found find_candidate(const Law& law, const Masses& masses, double target, bool or_equal,
                     SamplingScratch& scratch) {
  const auto passes = [target, or_equal](double mass) {
    return or_equal ? mass >= target : mass > target;
  };
  std::int32_t bucket = 0;
  double before_bucket = 0.0, reached = 0.0;
  for (std::size_t b = 0; b < kBuckets && !passes(reached); ++b) {
    if (masses[b] <= kNothing) continue;
    bucket = static_cast<std::int32_t>(b);
    before_bucket = reached;
    reached += masses[b];
  }
  scratch.ids.clear();
  for (std::size_t block = 0; block < scratch.block_maxima.size(); ++block) {
    if (bucket_of(law.log_weight(scratch.block_maxima[block])) > bucket) continue;
    const std::size_t end = std::min((block + 1) * kBlock, law.logits.size());
    for (std::size_t i = block * kBlock; i < end; ++i) {
      const float logit = law.logits[i];
      if (bucket_of(law.log_weight(logit)) == bucket && logit > kNever) {
        scratch.ids.push_back(static_cast<TokenId>(i));
      }
    }
  }
  sort_candidates(law.logits, scratch.ids, scratch.ids.size());
  Found found{scratch.ids.front(), before_bucket};
  for (const TokenId id : scratch.ids) {
    found.id = id;
    found.mass += static_cast<double>(law.weight(law.logits[static_cast<std::size_t>(id)]));
    if (passes(found.mass)) break;
  }
  return found;
}

TokenId sample_all(const Law& law, const SamplingParams& params, double random,
                   SamplingScratch& scratch) {
  const Masses masses = bucket_masses(law);
  double kept = 0.0;
  for (const double mass : masses) kept += mass;
  // top-p and min-p both keep a prefix: the smaller mass is that of what both keep.
  if (params.top_p < 1.0F) {
    const double nucleus = static_cast<double>(params.top_p) * kept;
    kept = std::min(kept, find_candidate(law, masses, nucleus, true, scratch).mass);
  }
  if (params.min_p > 0.0F) kept = std::min(kept, mass_above(law, params.min_p, scratch));
  return find_candidate(law, masses, random * kept, false, scratch).id;
}

// ---- with a rule -----------------------------------------------------------------------------

Law make_law(std::span<const float> logits, float temperature, SamplingScratch& scratch) {
  scratch.block_maxima.clear();
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    scratch.block_maxima.push_back(
        max_of(logits.subspan(begin, std::min(kBlock, logits.size() - begin))));
  }
  // The reciprocal of a smaller number may overflow; sampling is greedy far above it.
  constexpr float kCold = std::numeric_limits<float>::min();
  return {logits, max_of(scratch.block_maxima), 1.0F / std::max(temperature, kCold)};
}

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
  const Law law = make_law(logits, 1.0F, scratch);
  if (!std::isfinite(law.max)) return 0.0;  // no law: the span is broken
  double total = 0.0;
  for (const double mass : bucket_masses(law)) total += mass;
  const double log_total = static_cast<double>(law.max) + std::log(total);
  if (top == 0) return log_total;
  select_top_k(law, static_cast<std::size_t>(top), scratch);
  for (const TokenId id : scratch.ids) {
    logprobs.top.push_back({id, logprob_of(logits[static_cast<std::size_t>(id)], log_total)});
  }
  return log_total;
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                           std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

double uniform(std::uint64_t seed, Position position) {
  const auto random =
      philox4x32_10({static_cast<std::uint32_t>(position), 0, 0, 0},
                    {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t bits = (std::uint64_t{random[0]} << 32) | random[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

TokenId argmax(std::span<const float> logits) {
  const auto best = std::find(logits.begin(), logits.end(), max_of(logits));
  return best == logits.end() ? 0 : static_cast<TokenId>(best - logits.begin());
}

TokenId sample(std::span<const float> logits, const SamplingParams& params, Position position,
               SamplingScratch& scratch) {
  if (!(params.temperature > 0.0F) || params.top_k == 1) return argmax(logits);
  const Law law = make_law(logits, params.temperature, scratch);
  if (!std::isfinite(law.max)) return argmax(logits);

  const double random = uniform(params.seed, position);
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < logits.size()) {
    return sample_top_k(law, static_cast<std::size_t>(params.top_k), params, random, scratch);
  }
  return sample_all(law, params, random, scratch);
}

TokenId sample(std::span<float> logits, const SamplingParams& params, const RowRule& rule,
               Position position, SamplingScratch& scratch, TokenLogprobs& logprobs) {
  const auto logit = [logits](TokenId id) -> float& {
    return logits[static_cast<std::size_t>(id)];
  };
  double log_total = 0.0;
  if (rule.top_logprobs)
    log_total = report_likeliest(logits, *rule.top_logprobs, scratch, logprobs);
  scratch.unchanged.clear();
  for (const LogitChange& change : rule.changes) {
    float& x = logit(change.token);
    scratch.unchanged.push_back(x);
    x = (x > 0.0F ? x / change.divisor : x * change.divisor) + change.addend;
  }
  if (!rule.mask.empty()) apply_mask(rule.mask, logits);
  const TokenId token = rule.given ? *rule.given : sample(logits, params, position, scratch);
  if (rule.top_logprobs) {
    for (std::size_t i = 0; i < rule.changes.size(); ++i) {
      logit(rule.changes[i].token) = scratch.unchanged[i];
    }
    logprobs.chosen = {token, logprob_of(logit(token), log_total)};
  }
  return token;
}

}  // namespace tandem::kernels
