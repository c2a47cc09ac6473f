// Every backend chooses the token that kernels::sample() chooses from the same logits, for any
// parameters, ties and numbers of rows. What sample() itself does is sampling_test's.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "op_rig.h"
#include "tandem/kernels/sampling.h"
#include "tandem/kernels/sampling_math.h"

namespace tandem::test {
namespace {

using kernels::Keep;
using kernels::Rows;
using kernels::RowSet;
using kernels::SamplingParams;

constexpr int kWidth = 32;

template <typename T>
T pick(std::mt19937& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

SamplingParams random_params(std::mt19937& random) {
  SamplingParams p;
  p.temperature = pick(random, {0.0F, 1e-39F, 1e-3F, 0.6F, 1.0F, 1.0F, 2.0F, 1e9F});
  p.top_k = pick(random, {0, 0, 0, 1, 2, 64, 150, 1000, 1 << 30});
  p.top_p = pick(random, {1.0F, 1.0F, 0.95F, 0.95F, 0.5F, 1e-4F, 0.99999F, 0.0F});
  p.min_p = pick(random, {0.0F, 0.0F, 0.0F, 0.05F, 0.9F, 1.0F});
  p.seed = (std::uint64_t{random()} << 32) | random();
  return p;
}

/// A rule with whatever it may hold, or with nothing.
struct OwnedRule {
  std::vector<kernels::LogitChange> changes;
  std::vector<std::uint32_t> mask;
  kernels::RowRule rule;

  OwnedRule(int vocab, std::mt19937& random) {
    for (int id = 0; random() % 2 == 0 && id < vocab; id += 1 + static_cast<int>(random() % 97)) {
      changes.push_back({id, pick(random, {1.0F, 1.3F}), pick(random, {0.0F, -2.0F, 5.0F})});
      if (id > 0 && random() % 8 == 0) {
        changes.back().addend = -std::numeric_limits<float>::infinity();
      }
    }
    if (random() % 2 == 0) {
      const bool is_sparse = random() % 2 == 0;
      mask.resize(static_cast<std::size_t>(vocab + 31) / 32);
      for (std::uint32_t& word : mask) {
        word = static_cast<std::uint32_t>(random());
        for (int i = 0; is_sparse && i < 5; ++i) word &= static_cast<std::uint32_t>(random());
      }
      mask[0] |= 1;
    }
    rule.changes = changes;
    rule.mask = mask;
    if (random() % 4 == 0) rule.top_logprobs = 2;
  }
};

class BackendSampling : public ::testing::TestWithParam<BackendFactory> {
 protected:
  /// One step of `sequences` prompts of a token, a row each.
  void check_step(OpRig& rig, const kernels::Head& head, int sequences, float spread,
                  std::mt19937& random) {
    kernels::Backend& backend = rig.backend();
    const int vocab = rig.dims().vocab;
    const std::vector<TokenId> tokens(1, 1);
    std::vector<SamplingParams> params;
    std::vector<OwnedRule> rules;
    rules.reserve(static_cast<std::size_t>(sequences));
    kernels::StepPlan plan;
    for (int slot = 0; slot < sequences; ++slot) {
      params.push_back(random_params(random));
      backend.set_slot(slot, params.back());
      const auto position = static_cast<Position>(random() % 60);
      plan.spans.push_back(rig.prompt(slot, tokens, position, Keep::kLast));
      rules.emplace_back(vocab, random);
      if (slot % 3 == 0) plan.spans.back().rules = std::span(&rules.back().rule, 1);
    }
    backend.begin_step(plan);
    std::vector<float> values = random_values(static_cast<std::size_t>(sequences * kWidth),
                                              static_cast<std::uint32_t>(random()));
    for (float& v : values) v *= spread;
    const Rows h = rig.rows(sequences, kWidth, RowSet::kStep);
    backend.write(h, values);
    const Rows logits = rig.rows(sequences, vocab, RowSet::kStep);
    backend.logits(head, h, logits);
    backend.verify(head, h);
    const auto result = backend.end_step();
    ASSERT_TRUE(result.ok());
    const std::vector<float> all = rig.read(logits);
    for (int slot = 0; slot < sequences; ++slot) {
      const auto row = std::span(all).subspan(static_cast<std::size_t>(slot * vocab),
                                              static_cast<std::size_t>(vocab));
      const SamplingParams& p = params[static_cast<std::size_t>(slot)];
      const kernels::Span& span = plan.spans[static_cast<std::size_t>(slot)];
      const TokenId token = result->spans[static_cast<std::size_t>(slot)].tokens[0];
      if (!span.rules.empty() && is_effective(span.rules[0])) {
        std::vector<float> changed(row.begin(), row.end());
        kernels::TokenLogprobs logprobs;
        EXPECT_EQ(token, kernels::sample(changed, p, span.rules[0], span.first_position + 1,
                                         scratch_, logprobs));
        continue;
      }
      if (is_greedy(p)) {
        // A backend may compare before the softcap, which can make different values equal.
        EXPECT_EQ(row[static_cast<std::size_t>(token)], *std::max_element(row.begin(), row.end()));
        continue;
      }
      EXPECT_EQ(token, kernels::sample(row, p, span.first_position + 1, scratch_))
          << "temperature " << p.temperature << " top_k " << p.top_k << " top_p " << p.top_p
          << " min_p " << p.min_p << " seed " << p.seed << " vocab " << vocab << " row " << slot;
    }
  }

  static bool is_effective(const kernels::RowRule& rule) {
    return !rule.changes.empty() || !rule.mask.empty() || rule.top_logprobs;
  }

  kernels::SamplingScratch scratch_;
};

TEST_P(BackendSampling, IsThatOfTheLogits) {
  std::mt19937 random(17);
  // One tile of a GPU's head, a few, and enough for several blocks; 70 rows are two passes there.
  for (const auto& [vocab, sequences] :
       {std::pair{100, 8}, std::pair{5003, 70}, std::pair{40000, 8}}) {
    Dims dims;
    dims.hidden = kWidth;
    dims.vocab = vocab;
    dims.max_sequences = sequences;
    dims.max_rows = 128;
    OpRig rig(GetParam(), dims);
    // Rows of the table that repeat give logits that tie.
    for (const int distinct : {vocab, 50, 3, 1}) {
      std::vector<float> base = random_values(static_cast<std::size_t>(distinct * kWidth), 5);
      std::vector<float> table;
      for (int id = 0; id < vocab; ++id) {
        const auto from = base.begin() + static_cast<std::ptrdiff_t>(id % distinct) * kWidth;
        table.insert(table.end(), from, from + kWidth);
      }
      const kernels::Head head = {nullptr, rig.table(table, vocab, kWidth),
                                  pick(random, {0.0F, 30.0F})};
      for (const float spread : {0.001F, 0.2F, 1.0F, 30.0F}) {
        check_step(rig, head, sequences, spread, random);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, BackendSampling, ::testing::ValuesIn(backend_factories()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tandem::test
