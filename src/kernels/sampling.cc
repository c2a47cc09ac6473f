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
/// Running maxima and sums are kept per lane so that the compiler can use vector registers
/// without changing the order of the sum.
constexpr std::size_t kLanes = 16;
constexpr std::size_t kBlock = 64;
/// Candidates that are sorted at first when top-k does not bound them, and the growth after.
constexpr std::size_t kFirstHead = 64;
constexpr std::size_t kHeadGrowth = 8;

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

/// The law before truncation: weights relative to the likeliest token's, which is 1.
struct Law {
  std::span<const float> logits;
  float max = 0.0F;
  float temperature = 1.0F;

  float weight(float logit) const { return exp_weight((logit - max) / temperature); }
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
  for (std::size_t j = 0; i + j < values.size(); ++j) {
    lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
  }
  float max = kNever;
  for (const float lane : lanes) max = lane > max ? lane : max;
  return max;
}

/// Sum of all weights: f32 lanes within a block, f64 over lanes and blocks in order.
double total_weight(const Law& law) {
  double total = 0.0;
  for (std::size_t begin = 0; begin < law.logits.size(); begin += kBlock) {
    const std::span<const float> block =
        law.logits.subspan(begin, std::min(kBlock, law.logits.size() - begin));
    std::array<float, kLanes> lanes = {};
    std::size_t i = 0;
    for (; i + kLanes <= block.size(); i += kLanes) {
      for (std::size_t j = 0; j < kLanes; ++j) lanes[j] += law.weight(block[i + j]);
    }
    for (std::size_t j = 0; i + j < block.size(); ++j) lanes[j] += law.weight(block[i + j]);
    for (const float lane : lanes) total += static_cast<double>(lane);
  }
  return total;
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

/// Fills scratch with the first n candidates, in order; fewer if fewer have logits above -inf.
void select_head(const Law& law, std::size_t n, SamplingScratch& scratch) {
  const std::span<const float> logits = law.logits;
  const float threshold = reached_by(n, scratch);
  std::vector<TokenId>& ids = scratch.ids;
  ids.clear();
  for (std::size_t block = 0; block < scratch.block_maxima.size(); ++block) {
    if (scratch.block_maxima[block] < threshold) continue;
    const std::size_t end = std::min((block + 1) * kBlock, logits.size());
    for (std::size_t i = block * kBlock; i < end; ++i) {
      if (logits[i] >= threshold && logits[i] > kNever) ids.push_back(static_cast<TokenId>(i));
    }
  }
  const auto comes_first = [logits](TokenId a, TokenId b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (ids.size() > n) {
    std::nth_element(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n), ids.end(),
                     comes_first);
    ids.resize(n);
  }
  std::sort(ids.begin(), ids.end(), comes_first);
  scratch.weights.clear();
  for (const TokenId id : ids) {
    scratch.weights.push_back(law.weight(logits[static_cast<std::size_t>(id)]));
  }
}

double sum(std::span<const float> weights) {
  double total = 0.0;
  for (const float w : weights) total += static_cast<double>(w);
  return total;
}

/// Number of leading candidates that the warpers after top-k keep, given the mass of the law that
/// they see; weights.size() if neither cuts within the head.
std::size_t kept_candidates(std::span<const float> weights, const SamplingParams& params,
                            double total) {
  const double nucleus = static_cast<double>(params.top_p) * total;
  double reached = 0.0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (i > 0 && weights[i] < params.min_p) return i;
    reached += static_cast<double>(weights[i]);
    if (params.top_p < 1.0F && reached >= nucleus) return i + 1;
  }
  return weights.size();
}

/// Index of the first candidate whose running sum passes target, or weights.size().
std::size_t invert(std::span<const float> weights, double target) {
  double reached = 0.0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    reached += static_cast<double>(weights[i]);
    if (reached > target) return i;
  }
  return weights.size();
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
  scratch.block_maxima.clear();
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    scratch.block_maxima.push_back(
        max_of(logits.subspan(begin, std::min(kBlock, logits.size() - begin))));
  }
  const Law law{logits, max_of(scratch.block_maxima), params.temperature};
  if (!std::isfinite(law.max)) return argmax(logits);

  const bool has_top_k = params.top_k > 0;
  const std::size_t limit =
      has_top_k ? std::min(static_cast<std::size_t>(params.top_k), logits.size()) : logits.size();
  const double random = uniform(params.seed, position);
  const double all = has_top_k ? 0.0 : total_weight(law);
  for (std::size_t n = has_top_k ? limit : std::min(kFirstHead, limit);;
       n = std::min(n * kHeadGrowth, limit)) {
    select_head(law, n, scratch);
    const std::span<const float> head(scratch.weights);
    const double total = has_top_k ? sum(head) : all;
    const std::size_t kept = kept_candidates(head, params, total);
    const bool is_whole_law = n == limit || head.size() < n;
    if (kept < head.size() || is_whole_law) {
      const std::size_t i = invert(head.first(kept), random * sum(head.first(kept)));
      return scratch.ids[std::min(i, kept - 1)];
    }
    // Neither warper cuts within the head: without any, the choice may still lie in it.
    if (params.top_p >= 1.0F && params.min_p <= 0.0F) {
      const std::size_t i = invert(head, random * total);
      if (i < head.size()) return scratch.ids[i];
    }
  }
}

}  // namespace tandem::kernels
