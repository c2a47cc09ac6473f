#include "tandem/kernels/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tandem/kernels/sampling_math.h"

namespace tandem::kernels {
namespace {

using ::testing::ElementsAre;

constexpr float kNever = -std::numeric_limits<float>::infinity();

SamplingParams params(float temperature, int top_k, float top_p, float min_p,
                      std::uint64_t seed = 1) {
  SamplingParams p;
  p.temperature = temperature;
  p.top_k = top_k;
  p.top_p = top_p;
  p.min_p = min_p;
  p.seed = seed;
  return p;
}

/// The warped law written down from its definition: candidates in order, probabilities in f64.
struct ExactLaw {
  std::vector<TokenId> ids;
  std::vector<double> probabilities;
};

void renormalize(ExactLaw& law) {
  const double total = std::accumulate(law.probabilities.begin(), law.probabilities.end(), 0.0);
  for (double& p : law.probabilities) p /= total;
}

ExactLaw exact_law(const std::vector<float>& logits, const SamplingParams& p) {
  ExactLaw law;
  law.ids.resize(logits.size());
  std::iota(law.ids.begin(), law.ids.end(), 0);
  const auto logit = [&](TokenId id) {
    return logits[static_cast<std::size_t>(id)];
  };
  std::stable_sort(law.ids.begin(), law.ids.end(),
                   [&](TokenId a, TokenId b) { return logit(a) > logit(b); });
  if (p.top_k > 0 && law.ids.size() > static_cast<std::size_t>(p.top_k)) {
    law.ids.resize(static_cast<std::size_t>(p.top_k));
  }
  const double max = logit(law.ids[0]);
  for (const TokenId id : law.ids) {
    law.probabilities.push_back(std::exp((logit(id) - max) / p.temperature));
  }
  renormalize(law);
  if (p.top_p < 1.0F) {
    double reached = 0.0;
    std::size_t n = 0;
    while (n < law.ids.size() && reached < p.top_p) reached += law.probabilities[n++];
    law.probabilities.resize(std::max<std::size_t>(n, 1));
    renormalize(law);
  }
  std::size_t n = 1;
  while (n < law.probabilities.size() && law.probabilities[n] >= p.min_p * law.probabilities[0]) {
    ++n;
  }
  law.probabilities.resize(n);
  law.ids.resize(n);
  renormalize(law);
  return law;
}

std::vector<float> normal_logits(std::size_t size, float spread, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, spread);
  std::vector<float> logits(size);
  for (float& x : logits) x = normal(random);
  return logits;
}

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint32_t key0,
                                    std::uint32_t key1) {
  std::uint32_t words[4] = {counter[0], counter[1], counter[2], counter[3]};
  philox4x32_10(words, key0, key1);
  return {words[0], words[1], words[2], words[3]};
}

TEST(Philox, MatchesThePublishedVectors) {
  EXPECT_THAT(philox({0, 0, 0, 0}, 0, 0),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_THAT(philox({kOnes, kOnes, kOnes, kOnes}, kOnes, kOnes),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

/// The random number of a token, in [0, 1).
double uniform(std::uint64_t seed, Position position) {
  return static_cast<double>(random_bits(seed, position)) * 0x1p-64;
}

TEST(RandomBits, AreFlatAndDependOnSeedAndPosition) {
  double sum = 0.0;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) sum += uniform(42, i);
  EXPECT_NEAR(sum / kDraws, 0.5, 0.01);  // five standard errors
  EXPECT_EQ(random_bits(42, 7), random_bits(42, 7));
  EXPECT_NE(random_bits(42, 7), random_bits(43, 7));
  EXPECT_NE(random_bits(42, 7), random_bits(std::uint64_t{42} << 32, 7));
}

TEST(Mass, IsTheWeightInUnitsOfTwoToTheMinus40) {
  EXPECT_EQ(mass_of(exp_weight(0.0F)), std::uint64_t{1} << 40);
  EXPECT_EQ(mass_of(exp_weight(-87.0F)), 0U);
  EXPECT_EQ(mass_of(exp_weight(kNever)), 0U);
  EXPECT_EQ(mass_of(exp_weight(std::numeric_limits<float>::quiet_NaN())), 0U);
  for (float x = 0.0F; x > -30.0F; x -= 0.0137F) {
    const double exact = std::exp(static_cast<double>(x)) * 0x1p40;
    ASSERT_NEAR(static_cast<double>(mass_of(exp_weight(x))), exact, 1.0 + exact * 3e-7) << x;
  }
}

TEST(Nucleus, IsAShareThatNeverIsNothing) {
  EXPECT_EQ(nucleus_of(std::uint64_t{1} << 58, 0.5F), std::uint64_t{1} << 57);
  EXPECT_EQ(nucleus_of(12345, 0.0F), 1U);
  EXPECT_EQ(share_of(1000, ~std::uint64_t{0}), 999U);
}

TEST(Argmax, TakesTheLowestIndexOnTies) {
  EXPECT_EQ(argmax(std::vector<float>{1, 5, 5, 2}), 1);
  std::vector<float> many(1000, -3.0F);
  many[700] = many[300] = 2.0F;
  EXPECT_EQ(argmax(many), 300);
  EXPECT_EQ(argmax(std::vector<float>{kNever, kNever}), 0);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(argmax(std::vector<float>{nan, -1, nan, 4}), 3);
  EXPECT_EQ(argmax(std::vector<float>{nan, nan}), 0);
}

TEST(Sample, IsGreedyAtTemperatureZeroAndTopKOne) {
  SamplingScratch scratch;
  for (std::uint32_t i = 0; i < 50; ++i) {
    const std::vector<float> logits = normal_logits(500, 2.0F, i);
    EXPECT_EQ(sample(logits, params(0, 0, 1, 0, i), 3, scratch), argmax(logits));
    EXPECT_EQ(sample(logits, params(1e-40F, 0, 1, 0, i), 3, scratch), argmax(logits));
    EXPECT_EQ(sample(logits, params(1, 1, 1, 0, i), 3, scratch), argmax(logits));
    EXPECT_EQ(sample(logits, params(1, 0, 0, 0, i), 3, scratch), argmax(logits));
    EXPECT_EQ(sample(logits, params(1, 0, 1, 1, i), 3, scratch), argmax(logits));
  }
}

TEST(Sample, OfTokensThatTieAtTheEdgeKeepsThoseOfLowerId) {
  const std::vector<float> logits = {0, 1, 0, 0, 1, 0};
  SamplingScratch scratch;
  std::vector<bool> seen(6);
  for (int position = 0; position < 500; ++position) {
    seen[static_cast<std::size_t>(sample(logits, params(1, 3, 1, 0), position, scratch))] = true;
  }
  EXPECT_THAT(seen, ElementsAre(true, true, false, false, true, false));
}

TEST(Sample, NeverTakesASuppressedToken) {
  std::vector<float> logits(300, kNever);
  logits[17] = -2.0F;
  logits[203] = -1.0F;
  SamplingScratch scratch;
  for (int position = 0; position < 200; ++position) {
    EXPECT_THAT(sample(logits, params(5, 0, 1, 0), position, scratch), ::testing::AnyOf(17, 203));
    EXPECT_THAT(sample(logits, params(5, 64, 0.99F, 0), position, scratch),
                ::testing::AnyOf(17, 203));
  }
}

TEST(Sample, SurvivesRowsThatHoldNoLaw) {
  SamplingScratch scratch;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(sample(std::vector<float>(100, kNever), params(1, 0, 1, 0), 0, scratch), 0);
  EXPECT_EQ(sample(std::vector<float>(100, nan), params(1, 64, 0.9F, 0), 0, scratch), 0);
  EXPECT_EQ(sample(std::vector<float>{1, std::numeric_limits<float>::infinity(), 2},
                   params(1, 0, 1, 0), 0, scratch),
            1);
  std::vector<float> half(200, nan);
  half[150] = 1.0F;
  EXPECT_EQ(sample(half, params(1, 0, 0.9F, 0), 0, scratch), 150);
}

/// The token must be the one whose interval of the exact law's running sum, in the order of ids,
/// holds the random number, up to the rounding of f32 weights.
RC_GTEST_PROP(Sample, InvertsTheExactLaw, ()) {
  const auto size = static_cast<std::size_t>(*rc::gen::element(1, 2, 63, 64, 65, 1000, 20000));
  const float spread = *rc::gen::element(0.0F, 0.01F, 1.0F, 4.0F, 20.0F);
  std::vector<float> logits = normal_logits(size, spread, *rc::gen::arbitrary<std::uint32_t>());
  if (*rc::gen::arbitrary<bool>()) {  // many ties
    for (float& x : logits) x = std::round(x);
  }
  const SamplingParams p =
      params(*rc::gen::element(0.1F, 0.7F, 1.0F, 2.0F), *rc::gen::element(0, 0, 2, 64, 500, 100000),
             *rc::gen::element(1.0F, 0.95F, 0.3F, 0.9999F), *rc::gen::element(0.0F, 0.05F, 0.5F),
             *rc::gen::arbitrary<std::uint64_t>());
  const Position position = *rc::gen::inRange(0, 100000);
  SamplingScratch scratch;
  const TokenId token = sample(logits, p, position, scratch);
  RC_ASSERT(sample(logits, p, position, scratch) == token);

  const ExactLaw law = exact_law(logits, p);
  const auto found = std::find(law.ids.begin(), law.ids.end(), token);
  constexpr double kRounding = 2e-5;
  const double u = uniform(p.seed, position);
  if (found == law.ids.end()) {
    // Only a token on the edge of top-p or min-p may fall out of the exact set by rounding.
    SamplingParams wider = p;
    wider.top_p = std::min(1.0F, p.top_p + 1e-5F);
    wider.min_p = p.min_p * (1.0F - 1e-5F);
    const ExactLaw wide = exact_law(logits, wider);
    RC_ASSERT(std::find(wide.ids.begin(), wide.ids.end(), token) != wide.ids.end());
    return;
  }
  double below = 0.0;
  for (std::size_t i = 0; i < law.ids.size(); ++i) {
    if (law.ids[i] < token) below += law.probabilities[i];
  }
  const auto index = static_cast<std::size_t>(found - law.ids.begin());
  RC_ASSERT(u >= below - kRounding);
  RC_ASSERT(u <= below + law.probabilities[index] + kRounding);
}

/// Chi-square of the counts over the law's cells; cells that expect under 5 are pooled.
struct ChiSquare {
  double value = 0.0;
  int degrees = -1;
};

ChiSquare chi_square(const ExactLaw& law, const std::vector<int>& counts, int draws) {
  ChiSquare out;
  double pooled_expected = 0.0, pooled_count = 0.0;
  const auto add = [&out](double expected, double count) {
    out.value += (count - expected) * (count - expected) / expected;
    ++out.degrees;
  };
  for (std::size_t i = 0; i < law.ids.size(); ++i) {
    const double expected = law.probabilities[i] * draws;
    const int count = counts[static_cast<std::size_t>(law.ids[i])];
    if (expected >= 5.0) {
      add(expected, count);
    } else {
      pooled_expected += expected;
      pooled_count += count;
    }
  }
  if (pooled_expected >= 1.0) add(pooled_expected, pooled_count);
  return out;
}

TEST(Sample, FollowsTheWarpedLaw) {
  const std::vector<float> logits = normal_logits(400, 2.0F, 5);
  constexpr int kDraws = 40000;
  for (const SamplingParams& p :
       {params(1.0F, 0, 1.0F, 0.0F, 11), params(0.7F, 0, 1.0F, 0.0F, 12),
        params(1.0F, 64, 0.95F, 0.0F, 13), params(1.5F, 20, 1.0F, 0.0F, 14),
        params(1.0F, 0, 0.8F, 0.0F, 15), params(1.0F, 0, 1.0F, 0.1F, 16),
        params(2.0F, 100, 0.9F, 0.02F, 17)}) {
    SamplingScratch scratch;
    std::vector<int> counts(logits.size());
    for (int i = 0; i < kDraws; ++i)
      ++counts[static_cast<std::size_t>(sample(logits, p, i, scratch))];
    const ExactLaw law = exact_law(logits, p);
    int inside = 0;
    for (const TokenId id : law.ids) inside += counts[static_cast<std::size_t>(id)];
    EXPECT_EQ(inside, kDraws) << "a token outside the warped set was drawn";
    const ChiSquare chi = chi_square(law, counts, kDraws);
    // Mean k, variance 2k: five sigma above, one-sided. The seeds are fixed, so it cannot flake.
    EXPECT_LT(chi.value, chi.degrees + 5.0 * std::sqrt(2.0 * chi.degrees))
        << "temperature " << p.temperature << " top_k " << p.top_k << " top_p " << p.top_p
        << " min_p " << p.min_p;
  }
}

TEST(Sample, DependsOnItsArgumentsAlone) {
  const std::vector<float> a = normal_logits(5000, 3.0F, 1);
  const std::vector<float> b = normal_logits(262144, 3.0F, 2);
  SamplingScratch shared;
  for (int position = 0; position < 20; ++position) {
    const SamplingParams p = params(1.2F, position % 2 == 0 ? 0 : 64, 0.95F, 0, 9);
    SamplingScratch fresh;
    EXPECT_EQ(sample(a, p, position, shared), sample(a, p, position, fresh));
    EXPECT_EQ(sample(b, p, position, shared), sample(b, p, position, fresh));
  }
}

/// A rule written down from its definition.
std::vector<float> changed(std::vector<float> logits, const RowRule& rule) {
  for (const LogitChange& change : rule.changes) {
    float& x = logits[static_cast<std::size_t>(change.token)];
    x = (x > 0 ? x / change.divisor : x * change.divisor) + change.addend;
  }
  for (std::size_t id = 0; id < logits.size() && !rule.mask.empty(); ++id) {
    if ((rule.mask[id / 32] >> (id % 32) & 1U) == 0) logits[id] = kNever;
  }
  return logits;
}

RC_GTEST_PROP(SampleByRule, ChoosesFromTheChangedLogitsAndReportsTheOldOnes, ()) {
  const auto size = static_cast<std::size_t>(*rc::gen::element(1, 31, 32, 33, 64, 1000, 5003));
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  std::mt19937 random(seed);
  const std::vector<float> logits = normal_logits(size, 3.0F, seed);
  std::vector<LogitChange> changes;
  for (std::size_t id = 0; id < size; id += 1 + random() % 40) {
    changes.push_back({static_cast<TokenId>(id), random() % 2 == 0 ? 1.0F : 1.7F,
                       static_cast<float>(random() % 7) - 3.0F});
    if (id > 0 && random() % 4 == 0) changes.back().addend = kNever;
  }
  std::vector<std::uint32_t> mask((size + 31) / 32);
  for (std::uint32_t& word : mask) {
    word = random() % 4 == 0 ? ~0U : static_cast<std::uint32_t>(random());
  }
  mask[0] |= 1;  // id 0 is never banned
  RowRule rule;
  if (random() % 4 > 0) rule.changes = changes;
  if (random() % 4 > 0) rule.mask = mask;
  if (random() % 4 > 0) rule.top_logprobs = static_cast<int>(random() % 21);
  if (random() % 4 == 0) rule.given = static_cast<TokenId>(random() % size);

  const SamplingParams p = params(*rc::gen::element(0.0F, 0.8F), *rc::gen::element(0, 5),
                                  *rc::gen::element(1.0F, 0.9F), 0.0F, seed);
  SamplingScratch scratch;
  std::vector<float> scratch_logits = logits;
  TokenLogprobs logprobs;
  const TokenId token = sample(scratch_logits, p, rule, 17, scratch, logprobs);
  RC_ASSERT(token == (rule.given ? *rule.given : sample(changed(logits, rule), p, 17, scratch)));

  if (!rule.top_logprobs) return;
  double total = 0.0;
  for (const float x : logits) total += std::exp(static_cast<double>(x));
  const auto expected = [&](TokenId id) {
    return static_cast<double>(logits[static_cast<std::size_t>(id)]) - std::log(total);
  };
  RC_ASSERT(logprobs.chosen.token == token);
  RC_ASSERT(std::abs(static_cast<double>(logprobs.chosen.logprob) - expected(token)) < 1e-5);
  std::vector<TokenId> order(size);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  const auto rank = std::find(order.begin(), order.end(), token) - order.begin() + 1;
  RC_ASSERT(logprobs.rank == (rule.given ? rank : 0));
  RC_ASSERT(logprobs.top.size() == std::min(size, static_cast<std::size_t>(*rule.top_logprobs)));
  for (std::size_t i = 0; i < logprobs.top.size(); ++i) {
    RC_ASSERT(logprobs.top[i].token == order[i]);
    RC_ASSERT(std::abs(static_cast<double>(logprobs.top[i].logprob) - expected(order[i])) < 1e-5);
  }
}

}  // namespace
}  // namespace tandem::kernels
