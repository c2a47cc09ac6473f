// What each operation means, on every backend, where comparing numbers alone would not show it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "op_rig.h"
#include "tandem/kernels/sampling.h"

namespace tandem::test {
namespace {

using core::DType;
using kernels::AttentionKind;
using kernels::Keep;
using kernels::Rows;
using kernels::RowSet;

class BackendSemantics : public ::testing::TestWithParam<BackendFactory> {
 protected:
  OpRig rig_{GetParam(), Dims{}};

  int width() const { return rig_.dims().hidden; }
  kernels::Backend& backend() { return rig_.backend(); }

  std::vector<float> one_row(const Rows& x, int r) {
    return rig_.read({x.data + static_cast<std::ptrdiff_t>(r) * x.cols, 1, x.cols, x.set});
  }

  /// Output row of position `size - 1` when row `changed` (-1: none) of the input is another one.
  std::vector<float> last_row_of(const kernels::AttentionWeights& w,
                                 const kernels::AttentionSpec& spec, int size, int changed) {
    const std::vector<TokenId> tokens(static_cast<std::size_t>(size), 1);
    backend().begin_step({{rig_.prompt(0, tokens, 0, Keep::kAll)}});
    std::vector<float> values = random_values(static_cast<std::size_t>(size * width()), 50);
    if (changed >= 0) {
      const auto begin = static_cast<std::ptrdiff_t>(changed) * width();
      std::reverse(values.begin() + begin, values.begin() + begin + width());
    }
    const Rows x = rig_.rows(size, width(), RowSet::kStep);
    backend().write(x, values);
    backend().attention(w, spec, x);
    EXPECT_TRUE(backend().end_step().ok());
    return one_row(x, size - 1);
  }
};

TEST_P(BackendSemantics, ASlidingRowSeesItselfAndTheWindowBefore) {
  const int window = rig_.dims().window;
  const int size = window + 10;
  const auto w =
      rig_.attention_weights(DType::kF32, AttentionKind::kSliding, width(), true, false, 1);
  const auto spec = rig_.attention_spec(AttentionKind::kSliding, 0);
  const std::vector<float> row = last_row_of(w, spec, size, -1);
  EXPECT_EQ(last_row_of(w, spec, size, size - 1 - window), row);
  EXPECT_NE(last_row_of(w, spec, size, size - window), row);
  EXPECT_NE(last_row_of(w, spec, size, size - 2), row);
}

TEST_P(BackendSemantics, AFullRowSeesEverythingBefore) {
  const auto w = rig_.attention_weights(DType::kF32, AttentionKind::kFull, width(), true, false, 1);
  const auto spec = rig_.attention_spec(AttentionKind::kFull, 1);
  EXPECT_NE(last_row_of(w, spec, 70, 0), last_row_of(w, spec, 70, -1));
}

TEST_P(BackendSemantics, ALaterPositionIsNotSeen) {
  const auto w = rig_.attention_weights(DType::kF32, AttentionKind::kFull, width(), true, false, 1);
  const auto spec = rig_.attention_spec(AttentionKind::kFull, 0);
  const auto first_row = [&](std::uint32_t seed) {
    const std::vector<TokenId> tokens(5, 1);
    backend().begin_step({{rig_.prompt(0, tokens, 0, Keep::kAll)}});
    std::vector<float> values = random_values(static_cast<std::size_t>(5 * width()), seed);
    const std::vector<float> same = random_values(static_cast<std::size_t>(width()), 99);
    std::copy(same.begin(), same.end(), values.begin());
    const Rows x = rig_.rows(5, width(), RowSet::kStep);
    backend().write(x, values);
    backend().attention(w, spec, x);
    EXPECT_TRUE(backend().end_step().ok());
    return one_row(x, 0);
  };
  EXPECT_EQ(first_row(1), first_row(2));
}

TEST_P(BackendSemantics, ALayerWithoutKvReadsItsDonors) {
  auto w = rig_.attention_weights(DType::kF32, AttentionKind::kFull, width(), true, false, 1);
  const auto spec = rig_.attention_spec(AttentionKind::kFull, 0);
  const std::vector<TokenId> tokens(9, 1);
  backend().begin_step({{rig_.prompt(0, tokens, 0, Keep::kAll)}});
  const Rows owner = rig_.random_rows(9, width(), RowSet::kStep, 4);
  const Rows sharer = rig_.random_rows(9, width(), RowSet::kStep, 4);
  backend().attention(w, spec, owner);
  w.k = w.v = w.k_norm = nullptr;
  backend().attention(w, spec, sharer);
  EXPECT_TRUE(backend().end_step().ok());
  EXPECT_EQ(rig_.read(sharer), rig_.read(owner));
}

TEST_P(BackendSemantics, WithoutAValueProjectionTheValueIsTheRawKey) {
  auto w = rig_.attention_weights(DType::kF32, AttentionKind::kFull, width(), true, true, 1);
  const auto spec = rig_.attention_spec(AttentionKind::kFull, 0);
  ASSERT_EQ(w.v, nullptr);
  const std::vector<float> implied = last_row_of(w, spec, 9, -1);
  w.v = w.k;
  EXPECT_EQ(last_row_of(w, spec, 9, -1), implied);
}

TEST_P(BackendSemantics, TheLastKvOwnerUpdatesKeptRowsOnly) {
  const auto w = rig_.attention_weights(DType::kF32, AttentionKind::kFull, width(), true, false, 1);
  auto spec = rig_.attention_spec(AttentionKind::kFull, 0);
  const std::vector<float> all = last_row_of(w, spec, 40, -1);
  spec.last_kv_owner = true;
  const std::vector<TokenId> tokens(40, 1);
  backend().begin_step({{rig_.prompt(1, tokens, 0, Keep::kLast)}});
  // Row 0 is the last prompt row, the others follow.
  std::vector<float> values = random_values(static_cast<std::size_t>(40 * width()), 50);
  std::rotate(values.begin(), values.end() - width(), values.end());
  const Rows x = rig_.rows(40, width(), RowSet::kStep);
  backend().write(x, values);
  backend().attention(w, spec, x);
  EXPECT_TRUE(backend().end_step().ok());
  EXPECT_EQ(one_row(x, 0), all);
  const std::vector<float> after = rig_.read(x);
  EXPECT_TRUE(std::equal(after.begin() + width(), after.end(), values.begin() + width()));
}

TEST_P(BackendSemantics, ADraftRowSeesOnlyWhatIsBeforeIt) {
  // The slot's next token is at position n; its K and V are not in the cache, and what an earlier
  // rejected draft left there must not be read.
  const auto w = rig_.attention_weights(DType::kF32, AttentionKind::kFull, width(), true, false, 1);
  auto sharing = w;
  sharing.k = sharing.v = sharing.k_norm = nullptr;
  const auto spec = rig_.attention_spec(AttentionKind::kFull, 0);
  const kernels::Head head = {rig_.norm(width(), 2), rig_.table(DType::kF32, 200, width(), 3),
                              0.0F};
  const auto draft_row = [&](std::uint32_t stale_seed) {
    const std::vector<TokenId> tokens(12, 1);
    backend().set_slot(0, {});
    backend().begin_step({{rig_.prompt(0, tokens, 0, Keep::kNone)}});
    std::vector<float> values = random_values(static_cast<std::size_t>(12 * width()), stale_seed);
    const std::vector<float> same = random_values(static_cast<std::size_t>(10 * width()), 50);
    const Rows x = rig_.rows(12, width(), RowSet::kStep);
    std::copy(same.begin(), same.end(), values.begin());
    backend().write(x, values);
    backend().attention(w, spec, x);
    EXPECT_TRUE(backend().end_step().ok());

    backend().begin_step({{rig_.prompt(0, std::span(tokens).first(1), 9, Keep::kLast, 1)}});
    const Rows last = rig_.rows(1, width(), RowSet::kStep);
    backend().write(last, std::span(values).subspan(static_cast<std::size_t>(9 * width()),
                                                    static_cast<std::size_t>(width())));
    backend().attention(w, spec, last);
    backend().verify(head, rig_.random_rows(1, width(), RowSet::kStep, 8));
    const Rows draft = rig_.random_rows(1, width(), RowSet::kDraft, 9);
    backend().attention(sharing, spec, draft);
    EXPECT_TRUE(backend().end_step().ok());
    return rig_.read(draft);
  };
  EXPECT_EQ(draft_row(1), draft_row(2));
}

TEST_P(BackendSemantics, VerifyChoosesByTheLogits) {
  const int vocab = rig_.dims().vocab;
  for (const DType dtype : {DType::kF32, DType::kQ8_0}) {
    const kernels::Head head = {rig_.norm(width(), 1), rig_.table(dtype, vocab, width(), 2), 30.0F};
    kernels::SamplingParams sampled;
    sampled.temperature = 1.3F;
    sampled.top_k = 50;
    sampled.top_p = 0.9F;
    sampled.seed = 5;
    kernels::SamplingParams greedy;
    greedy.temperature = 0.0F;
    kernels::StepPlan plan;
    const std::vector<TokenId> tokens(1, 1);
    for (int slot = 0; slot < 8; ++slot) {
      backend().set_slot(slot, slot % 2 == 0 ? greedy : sampled);
      plan.spans.push_back(rig_.prompt(slot, tokens, slot, Keep::kLast));
    }
    backend().begin_step(plan);
    const Rows h = rig_.random_rows(8, width(), RowSet::kStep, 6);
    const Rows logits = rig_.rows(8, vocab, RowSet::kStep);
    backend().logits(head, h, logits);
    backend().verify(head, h);
    const auto result = backend().end_step();
    ASSERT_TRUE(result.ok());
    kernels::SamplingScratch scratch;
    for (int slot = 0; slot < 8; ++slot) {
      const std::vector<float> row = one_row(logits, slot);
      const TokenId token = result->spans[static_cast<std::size_t>(slot)].tokens[0];
      if (slot % 2 == 0) {
        // A backend may compare before the softcap, which can make different values equal.
        EXPECT_EQ(row[static_cast<std::size_t>(token)], *std::max_element(row.begin(), row.end()))
            << slot;
      } else {
        EXPECT_EQ(token, kernels::sample(row, sampled, slot + 1, scratch)) << slot;
      }
      EXPECT_EQ(backend().read_slot(slot).hidden, one_row(h, slot));
    }
  }
}

// A device that records steps must have what a greedy one needs, though only steps with a sampled
// row have run before.
TEST_P(BackendSemantics, AGreedyStepMayFollowASampledOne) {
  Dims dims;
  dims.steps_repeat = true;
  OpRig rig(GetParam(), dims);
  const kernels::Head head = {rig.norm(width(), 1), rig.table(DType::kF32, dims.vocab, width(), 2),
                              0.0F};
  const Rows h = rig.random_rows(8, width(), RowSet::kStep, 6);  // before anything is recorded
  const auto first_token = [&](const kernels::StepPlan& plan) {
    rig.backend().begin_step(plan);
    rig.backend().verify(head, h.prefix(static_cast<int>(plan.spans.size())));
    const auto result = rig.backend().end_step();
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? result->spans[0].tokens[0] : -1;
  };
  const std::vector<TokenId> tokens(1, 1);
  rig.backend().set_slot(0, {.temperature = 1.0F});
  for (const int slot : {1, 2}) rig.backend().set_slot(slot, {.temperature = 0.0F});
  first_token({{rig.prompt(0, tokens, 0, Keep::kLast), rig.prompt(1, tokens, 0, Keep::kLast)}});
  const TokenId recorded = first_token({{rig.decode(1, 0, 0)}});
  EXPECT_EQ(recorded, first_token({{rig.prompt(2, tokens, 0, Keep::kLast)}}));
}

TEST_P(BackendSemantics, VerifyKeepsToTheRuleOfARow) {
  const int vocab = rig_.dims().vocab;
  const kernels::Head head = {rig_.norm(width(), 1), rig_.table(DType::kQ8_0, vocab, width(), 2),
                              30.0F};
  std::vector<std::uint32_t> mask(static_cast<std::size_t>((vocab + 31) / 32), 0x00010004U);
  const std::vector<kernels::LogitChange> changes = {{2, 1.5F, 3.0F}, {34, 1.0F, -50.0F}};
  kernels::RowRule rule;
  rule.changes = changes;
  rule.mask = mask;
  rule.top_logprobs = 2;
  kernels::StepPlan plan;
  const std::vector<TokenId> tokens(1, 1);
  const auto sampling = [](int slot) {
    kernels::SamplingParams p;
    p.temperature = slot % 2 == 0 ? 0.0F : 1.0F;
    p.seed = 5;
    return p;
  };
  for (int slot = 0; slot < 8; ++slot) {  // the last two without a rule
    backend().set_slot(slot, sampling(slot));
    plan.spans.push_back(rig_.prompt(slot, tokens, slot, Keep::kLast));
    if (slot < 6) plan.spans.back().rules = std::span(&rule, 1);
  }
  backend().begin_step(plan);
  const Rows h = rig_.random_rows(8, width(), RowSet::kStep, 6);
  const Rows logits = rig_.rows(8, vocab, RowSet::kStep);
  backend().logits(head, h, logits);
  backend().verify(head, h);
  const auto result = backend().end_step();
  ASSERT_TRUE(result.ok());
  kernels::SamplingScratch scratch;
  for (int slot = 0; slot < 6; ++slot) {
    std::vector<float> row = one_row(logits, slot);
    kernels::TokenLogprobs logprobs;
    const TokenId token = kernels::sample(row, sampling(slot), rule, slot + 1, scratch, logprobs);
    const kernels::SpanResult& span = result->spans[static_cast<std::size_t>(slot)];
    EXPECT_EQ(span.tokens[0], token) << slot;
    EXPECT_TRUE(token % 32 == 2 || token % 32 == 16) << token;
    ASSERT_EQ(span.logprobs.size(), 1U);
    EXPECT_EQ(span.logprobs[0].chosen.token, token);
    EXPECT_EQ(span.logprobs[0].chosen.logprob, logprobs.chosen.logprob);
    EXPECT_EQ(span.logprobs[0].top.size(), 2U);
  }
  EXPECT_TRUE(result->spans[7].logprobs.empty());
}

TEST_P(BackendSemantics, AScoredSpanYieldsTheLogprobsOfItsGivenTokensAndNothingElse) {
  const int vocab = rig_.dims().vocab;
  const kernels::Head head = {rig_.norm(width(), 1), rig_.table(DType::kQ8_0, vocab, width(), 2),
                              30.0F};
  const std::vector<TokenId> text = {8, 1, 4, 1, 11, 9, 2, 6, 11, 7, 11};
  std::vector<kernels::RowRule> rules(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    rules[i].top_logprobs = static_cast<int>(i % 3);
    rules[i].given = text[(i + 1) % text.size()];
  }
  for (const bool is_alone : {true, false}) {
    kernels::StepPlan plan;
    if (!is_alone) plan.spans.push_back(rig_.prompt(0, text, 0, Keep::kLast));
    plan.spans.push_back(rig_.prompt(1, text, 0, Keep::kAll));
    plan.spans.back().rules = rules;
    for (const int slot : {0, 1}) backend().set_slot(slot, {.temperature = 0.0F});
    const int rows = backend().begin_step(plan).kept_rows;
    ASSERT_EQ(rows, static_cast<int>(text.size()) + (is_alone ? 0 : 1));
    const Rows h = rig_.random_rows(rows, width(), RowSet::kStep, 6);
    const Rows logits = rig_.rows(rows, vocab, RowSet::kStep);
    backend().logits(head, h, logits);
    backend().verify(head, h);
    const auto result = backend().end_step();
    ASSERT_TRUE(result.ok());
    const kernels::SpanResult& scored = result->spans.back();
    EXPECT_EQ(scored.num_tokens, 0);
    ASSERT_EQ(scored.logprobs.size(), text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::vector<float> row = one_row(logits, static_cast<int>(i) + (is_alone ? 0 : 1));
      double total = 0.0;
      for (const float x : row) total += std::exp(static_cast<double>(x));
      const kernels::TokenLogprobs& each = scored.logprobs[i];
      EXPECT_EQ(each.chosen.token, *rules[i].given);
      EXPECT_NEAR(each.chosen.logprob,
                  row[static_cast<std::size_t>(each.chosen.token)] - std::log(total), 1e-4);
      EXPECT_EQ(each.top.size(), i % 3);
    }
    if (!is_alone) {
      EXPECT_EQ(result->spans[0].num_tokens, 1);
      EXPECT_TRUE(result->spans[0].logprobs.empty());
    }
  }
}

TEST_P(BackendSemantics, SuppressedTokensAreNeverChosenNorDrafted) {
  // Head rows of the suppressed ids 3 and V - 1 that would win by far.
  const int vocab = rig_.dims().vocab;
  const kernels::Head head = {rig_.norm(width(), 1), rig_.table(DType::kF32, vocab, width(), 2),
                              0.0F};
  const std::vector<TokenId> tokens(1, 1);
  backend().begin_step({{rig_.prompt(0, tokens, 0, Keep::kAll)}});
  const Rows logits = rig_.rows(1, vocab, RowSet::kStep);
  backend().logits(head, rig_.random_rows(1, width(), RowSet::kStep, 6), logits);
  EXPECT_TRUE(backend().end_step().ok());
  const std::vector<float> row = rig_.read(logits);
  for (int id = 0; id < vocab; ++id) {
    const bool is_suppressed = id == 3 || id == vocab - 1;
    EXPECT_EQ(row[static_cast<std::size_t>(id)] == -std::numeric_limits<float>::infinity(),
              is_suppressed)
        << id;
  }
}

// What is not finite breaks its own sequence, wherever it appears, and nobody else's.
TEST_P(BackendSemantics, BreaksTheSpansWhoseValuesAreNotFinite) {
  const kernels::Head head = {rig_.norm(width(), 1),
                              rig_.table(DType::kF32, rig_.dims().vocab, width(), 2), 30.0F};
  const std::vector<TokenId> tokens(2, 1);
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1.0F}) {
    backend().begin_step(
        {{rig_.prompt(0, tokens, 0, Keep::kAll), rig_.prompt(1, tokens, 0, Keep::kAll)}});
    std::vector<float> values = random_values(static_cast<std::size_t>(4 * width()), 3);
    values[static_cast<std::size_t>(width()) + 7] = poison;
    const Rows x = rig_.rows(4, width(), RowSet::kStep);
    const Rows h = rig_.rows(4, width(), RowSet::kStep);
    backend().write(x, values);
    backend().final_norm(head, x, h);
    backend().verify(head, h);
    const auto result = backend().end_step();
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->spans[0].is_broken, poison != 1.0F);
    EXPECT_FALSE(result->spans[1].is_broken);
  }
}

// Pages are not cleared between sequences: a value that is not finite would spoil the next one.
TEST_P(BackendSemantics, KeepsWhatIsNotFiniteOutOfTheCache) {
  const auto w = rig_.attention_weights(DType::kF32, AttentionKind::kFull, width(), true, false, 1);
  const auto spec = rig_.attention_spec(AttentionKind::kFull, 0);
  const std::vector<TokenId> tokens(5, 1);
  const std::vector<float> good = random_values(static_cast<std::size_t>(5 * width()), 3);
  const auto attend = [&](std::vector<float> values) {
    backend().begin_step({{rig_.prompt(0, tokens, 0, Keep::kAll)}});
    const Rows x = rig_.rows(5, width(), RowSet::kStep);
    backend().write(x, values);
    backend().attention(w, spec, x);
    std::vector<float> out = rig_.read(x);
    const auto result = backend().end_step();
    EXPECT_TRUE(result.ok());
    return std::pair(std::move(out), result.ok() && result->spans[0].is_broken);
  };
  const auto [expected, is_broken] = attend(good);
  EXPECT_FALSE(is_broken);
  std::vector<float> bad = good;
  bad[static_cast<std::size_t>(4 * width()) + 3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(attend(bad).second);
  // Rows 0 to 3 see the bad row's place behind their mask, row 4 writes over it.
  EXPECT_EQ(attend(good).first, expected);
  const auto after = attend(bad).first;
  EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + 4 * width(), after.begin()));
}

TEST_P(BackendSemantics, RefusesWeightsThatItCannotRun) {
  OwnedTensor tensor = random_tensor(DType::kF32, 4, 32, 1, 1.0F);
  tensor.view.dtype = DType::kI32;
  const auto weight = backend().pack(tensor.view, kernels::WeightRole::kLinear, "blk.0.odd.weight");
  ASSERT_FALSE(weight.ok());
  EXPECT_EQ(weight.status().code(), core::Code::kUnimplemented);
  EXPECT_THAT(weight.status().message(), ::testing::HasSubstr("blk.0.odd.weight"));
}

INSTANTIATE_TEST_SUITE_P(All, BackendSemantics, ::testing::ValuesIn(backend_factories()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem::test
