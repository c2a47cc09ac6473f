#include "tandem/kernels/host_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "allocation_counter.h"

namespace tandem::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

constexpr int kHidden = 3;
constexpr int kVocab = 50;

Geometry geometry(int max_sequences) {
  Geometry g;
  g.max_sequences = max_sequences;
  g.max_rows = 64;
  g.max_kept_rows = 64;
  g.hidden = kHidden;
  g.vocab = kVocab;
  return g;
}

Span prompt_span(int slot, std::span<const TokenId> prompt, Position first, Keep keep,
                 int next_drafts = 0) {
  Span span;
  span.slot = slot;
  span.prompt = prompt;
  span.first_position = first;
  span.keep = keep;
  span.next_drafts = next_drafts;
  return span;
}

Span decode_span(int slot, int num_drafts, int next_drafts) {
  Span span;
  span.slot = slot;
  span.num_drafts = num_drafts;
  span.next_drafts = next_drafts;
  return span;
}

/// h [R, E] whose row r holds tag + r in every column.
std::vector<float> tagged_rows(const HostStep& step, float tag) {
  std::vector<float> h;
  for (int r = 0; r < step.kept_rows(); ++r) {
    h.insert(h.end(), kHidden, tag + static_cast<float>(r));
  }
  return h;
}

/// Brings `slot` to the state after a prompt of `length` tokens: next token and drafts given.
void prefill(HostStep& step, int slot, int length, TokenId token,
             const std::vector<TokenId>& drafts) {
  const std::vector<TokenId> prompt(static_cast<std::size_t>(length), 1);
  step.begin({{prompt_span(slot, prompt, 0, Keep::kLast, static_cast<int>(drafts.size()))}});
  step.accept(std::vector<TokenId>{token}, tagged_rows(step, 0.0F));
  for (int i = 0; i < static_cast<int>(drafts.size()); ++i) {
    step.set_draft(i, 0, drafts[static_cast<std::size_t>(i)]);
  }
}

struct Layout {
  std::vector<int> spans, positions, tokens;
};

Layout layout(const HostStep& step, RowSet set) {
  Layout out;
  for (const RowInfo& row : step.rows(set)) {
    out.spans.push_back(row.span);
    out.positions.push_back(row.position);
    out.tokens.push_back(row.token);
  }
  return out;
}

TEST(HostStep, LaysOutKeptRowsFirstInThePlansOrder) {
  HostStep step;
  step.configure(geometry(5));
  prefill(step, 2, 4, 30, {31, 32});
  const std::vector<TokenId> a = {10, 11, 12}, b = {20, 21}, c = {40, 41};
  StepPlan plan;
  plan.spans = {prompt_span(0, a, 5, Keep::kLast), prompt_span(1, b, 0, Keep::kNone),
                decode_span(2, 2, 0), prompt_span(3, c, 7, Keep::kAll)};
  const Backend::StepShape shape = step.begin(plan);
  EXPECT_EQ(shape.rows, 10);
  EXPECT_EQ(shape.kept_rows, 6);
  EXPECT_EQ(shape.draft_rows, 0);
  EXPECT_EQ(shape.draft_steps, 0);

  const Layout rows = layout(step, RowSet::kStep);
  EXPECT_THAT(rows.spans, ElementsAre(0, 2, 2, 2, 3, 3, 0, 0, 1, 1));
  EXPECT_THAT(rows.positions, ElementsAre(7, 4, 5, 6, 7, 8, 5, 6, 0, 1));
  EXPECT_THAT(rows.tokens, ElementsAre(12, 30, 31, 32, 40, 41, 10, 11, 20, 21));
  for (const RowInfo& row : step.rows(RowSet::kStep)) {
    EXPECT_EQ(row.visible_end, row.position + 1);
  }

  std::vector<int> runs;
  for (const RowRun& run : step.runs(RowSet::kStep)) {
    runs.insert(runs.end(), {run.span, run.first_row, run.num_rows});
  }
  EXPECT_THAT(runs, ElementsAre(0, 0, 1, 2, 1, 3, 3, 4, 2, 0, 6, 2, 1, 8, 2));

  std::vector<int> sampled;
  for (const auto& s : step.sampled_rows()) sampled.insert(sampled.end(), {s.row, s.position});
  EXPECT_THAT(sampled, ElementsAre(0, 8, 1, 5, 2, 6, 3, 7));
}

TEST(HostStep, CopiesPageTables) {
  HostStep step;
  step.configure(geometry(2));
  const std::vector<TokenId> prompt = {1};
  std::vector<PageId> sliding = {kNoPage, 4}, full = {7, 8, 9};
  StepPlan plan;
  plan.spans = {prompt_span(0, prompt, 0, Keep::kNone), prompt_span(1, prompt, 0, Keep::kNone)};
  plan.spans[0].pages = {sliding, full};
  plan.spans[1].pages = {full, {}};
  step.begin(plan);
  std::fill(full.begin(), full.end(), 0);
  EXPECT_THAT(step.pages(0, AttentionKind::kSliding), ElementsAre(kNoPage, 4));
  EXPECT_THAT(step.pages(0, AttentionKind::kFull), ElementsAre(7, 8, 9));
  EXPECT_THAT(step.pages(1, AttentionKind::kSliding), ElementsAre(7, 8, 9));
  EXPECT_THAT(step.pages(1, AttentionKind::kFull), IsEmpty());
}

TEST(HostStep, AcceptsDraftsUpToTheFirstMismatch) {
  HostStep step;
  step.configure(geometry(1));
  const std::vector<TokenId> drafts = {31, 32, 33};
  for (int accepted = 0; accepted <= 3; ++accepted) {
    step.set_slot(0, {});
    prefill(step, 0, 4, 30, drafts);
    step.begin({{decode_span(0, 3, 2)}});
    std::vector<TokenId> chosen = {31, 32, 33, 34};
    if (accepted < 3) chosen[static_cast<std::size_t>(accepted)] = 45;
    step.accept(chosen, tagged_rows(step, 100.0F));

    const StepResult result = step.take_result();
    ASSERT_EQ(result.spans.size(), 1U);
    EXPECT_EQ(result.spans[0].num_tokens, accepted + 1);
    EXPECT_EQ(result.spans[0].num_drafted, 3);
    const auto emitted = std::span(result.spans[0].tokens)
                             .first(static_cast<std::size_t>(result.spans[0].num_tokens));
    EXPECT_THAT(emitted, ElementsAreArray(std::span(chosen).first(emitted.size())));

    const SlotSnapshot slot = step.read_slot(0);
    EXPECT_EQ(slot.token, chosen[static_cast<std::size_t>(accepted)]);
    EXPECT_EQ(slot.position, 4 + accepted + 1);
    EXPECT_THAT(slot.hidden, ElementsAreArray(std::vector<float>(
                                 kHidden, 100.0F + static_cast<float>(accepted))));
    // The draft round starts at the new token, its position past the visible keys.
    ASSERT_EQ(step.rows(RowSet::kDraft).size(), 1U);
    const RowInfo& row = step.rows(RowSet::kDraft)[0];
    EXPECT_EQ(row.position, slot.position);
    EXPECT_EQ(row.visible_end, slot.position);
    EXPECT_EQ(step.draft_token(0, 0), slot.token);
    EXPECT_THAT(step.draft_hidden(0), ElementsAreArray(slot.hidden));
  }
}

TEST(HostStep, PromptChunksThatSampleNothingOnlyMoveThePosition) {
  HostStep step;
  step.configure(geometry(2));
  const std::vector<TokenId> prompt = {5, 6, 7};
  step.begin({{prompt_span(0, prompt, 2, Keep::kNone, 3), prompt_span(1, prompt, 0, Keep::kAll)}});
  EXPECT_THAT(step.sampled_rows(), IsEmpty());
  step.accept({}, tagged_rows(step, 0.0F));
  EXPECT_THAT(step.rows(RowSet::kDraft), IsEmpty());
  const StepResult result = step.take_result();
  EXPECT_EQ(result.spans[0].num_tokens, 0);
  EXPECT_EQ(result.spans[1].num_tokens, 0);
  EXPECT_EQ(step.read_slot(0).position, 5);
  EXPECT_EQ(step.read_slot(1).position, 3);
}

TEST(HostStep, OrdersDraftRowsLongestFirstAndStable) {
  HostStep step;
  step.configure(geometry(5));
  for (int slot = 0; slot < 5; ++slot) prefill(step, slot, 1 + slot, 10 + slot, {});
  const Backend::StepShape shape =
      step.begin({{decode_span(0, 0, 1), decode_span(1, 0, 3), decode_span(2, 0, 0),
                   decode_span(3, 0, 1), decode_span(4, 0, 3)}});
  EXPECT_EQ(shape.draft_rows, 4);
  EXPECT_EQ(shape.draft_steps, 3);
  step.accept(std::vector<TokenId>{20, 21, 22, 23, 24}, tagged_rows(step, 0.0F));
  EXPECT_THAT(layout(step, RowSet::kDraft).tokens, ElementsAre(21, 24, 20, 23));
  EXPECT_EQ(step.draft_rows(0), 4);
  EXPECT_EQ(step.draft_rows(1), 2);
  EXPECT_EQ(step.draft_rows(2), 2);
  EXPECT_EQ(step.draft_rows(3), 0);
  step.set_draft(0, 1, 33);
  EXPECT_EQ(step.draft_token(1, 1), 33);
  EXPECT_EQ(step.read_slot(4).drafts.at(0), 33);
}

/// A target whose next token is a function of the whole text, as a real one's is.
TokenId target_choice(const std::vector<TokenId>& text) {
  std::uint32_t hash = 17;
  for (const TokenId token : text) hash = hash * 31 + static_cast<std::uint32_t>(token) + 7;
  return static_cast<TokenId>((hash >> 7) % kVocab);
}

/// Drafts that mostly follow the target.
template <typename Draw>
void make_drafts(HostStep& step, const StepPlan& plan,
                 const std::vector<std::vector<TokenId>>& texts, const Draw& draw) {
  for (int r = 0; r < step.draft_rows(0); ++r) {
    const RowInfo& row = step.rows(RowSet::kDraft)[static_cast<std::size_t>(r)];
    std::vector<TokenId> guess = texts[static_cast<std::size_t>(row.slot)];
    for (int i = 0; i < plan.spans[static_cast<std::size_t>(row.span)].next_drafts; ++i) {
      guess.push_back(draw(0, 5) == 0 ? draw(0, kVocab) : target_choice(guess));
      step.set_draft(i, r, guess.back());
    }
  }
}

RC_GTEST_PROP(HostStep, EmitsTheStreamThatItWouldEmitWithoutDrafts, ()) {
  // Drawn from a seed: inRange() would keep small cases small, and long drafts matter here.
  std::mt19937 random(*rc::gen::arbitrary<std::uint32_t>());
  const auto draw = [&random](int begin, int end) {
    return std::uniform_int_distribution<int>(begin, end - 1)(random);
  };
  const int num_steps = draw(1, 12);
  const int num_slots = draw(1, 5);
  HostStep step;
  step.configure(geometry(num_slots));

  std::vector<std::vector<TokenId>> texts;
  std::vector<std::size_t> prompt_sizes;
  for (int slot = 0; slot < num_slots; ++slot) {
    texts.emplace_back(static_cast<std::size_t>(draw(1, 6)));
    for (TokenId& token : texts.back()) token = draw(0, kVocab);
    prompt_sizes.push_back(texts.back().size());
  }
  for (int n = 0; n <= num_steps; ++n) {
    StepPlan plan;
    for (int slot = 0; slot < num_slots; ++slot) {
      const auto held = static_cast<int>(step.read_slot(slot).drafts.size());
      const int next = draw(0, kMaxDraft + 1);
      plan.spans.push_back(
          n == 0 ? prompt_span(slot, texts[static_cast<std::size_t>(slot)], 0, Keep::kLast, next)
                 : decode_span(slot, draw(0, held + 1), next));
    }
    step.begin(plan);
    // What the target says after each sampled row, given the rows before it.
    std::vector<TokenId> chosen;
    std::vector<TokenId> text;
    int span = -1;
    for (const HostStep::SampledRow& sampled : step.sampled_rows()) {
      const RowInfo& row = step.rows(RowSet::kStep)[static_cast<std::size_t>(sampled.row)];
      RC_ASSERT(sampled.position == row.position + 1);
      if (row.span != span) {
        text = texts[static_cast<std::size_t>(row.slot)];
        span = row.span;
        text.resize(static_cast<std::size_t>(row.position));
      }
      text.push_back(row.token);
      chosen.push_back(target_choice(text));
    }
    step.accept(chosen, tagged_rows(step, 0.0F));
    for (const SpanResult& result : step.take_result().spans) {
      auto& emitted = texts[static_cast<std::size_t>(result.slot)];
      RC_ASSERT(result.num_tokens >= 1 && result.num_tokens <= result.num_drafted + 1);
      emitted.insert(emitted.end(), result.tokens.begin(),
                     result.tokens.begin() + result.num_tokens);
      RC_ASSERT(step.read_slot(result.slot).position == static_cast<int>(emitted.size()) - 1);
      RC_ASSERT(step.read_slot(result.slot).token == emitted.back());
    }
    make_drafts(step, plan, texts, draw);
  }
  for (std::size_t slot = 0; slot < texts.size(); ++slot) {
    for (std::size_t i = prompt_sizes[slot]; i < texts[slot].size(); ++i) {
      const std::vector<TokenId> prefix(texts[slot].begin(),
                                        texts[slot].begin() + static_cast<std::ptrdiff_t>(i));
      RC_ASSERT(texts[slot][i] == target_choice(prefix));
    }
  }
}

TEST(HostStep, AllocatesOnlyTheResultAfterWarmUp) {
  HostStep step;
  step.configure(geometry(4));
  for (int slot = 0; slot < 4; ++slot) prefill(step, slot, 3, 1, {2, 2});
  StepPlan plan;
  plan.spans = {decode_span(0, 2, 2), decode_span(1, 2, 2), decode_span(2, 2, 2)};
  const std::vector<TokenId> chosen(9, 2);
  const std::vector<float> h(std::size_t{9} * kHidden, 0.0F);
  const auto run = [&] {
    step.begin(plan);
    step.accept(chosen, h);
    for (int r = 0; r < 3; ++r) {
      for (int i = 0; i < 2; ++i) step.set_draft(i, r, 2);
    }
  };
  run();
  const StepResult kept = step.take_result();
  const long before = test::num_allocations();
  run();
  const long during = test::num_allocations() - before;
  EXPECT_LE(during, 1);
  EXPECT_EQ(kept.spans.size(), 3U);
}

TEST(HostStepDeathTest, RefusesPlansThatBreakTheContract) {
  HostStep step;
  step.configure(geometry(1));
  const std::vector<TokenId> outside = {kVocab}, prompt = {1};
  EXPECT_DEATH(step.begin({{decode_span(0, 1, 0)}}), "more drafts");
  EXPECT_DEATH(step.begin({{decode_span(1, 0, 0)}}), "no such slot");
  EXPECT_DEATH(step.begin({{decode_span(0, 0, 0), decode_span(0, 0, 0)}}), "one span per step");
  EXPECT_DEATH(step.begin({{prompt_span(0, outside, 0, Keep::kNone)}}), "vocabulary");
  EXPECT_DEATH(step.begin({{decode_span(0, 0, kMaxDraft + 1)}}), "next_drafts");
}

TEST(SyntheticAcceptance, AcceptsAtItsRatesWhateverTheDraftsSay) {
  const std::vector<float> rates = {0.646F, 0.418F, 0.278F};
  const SyntheticAcceptance acceptance = SyntheticAcceptance::of(rates);
  constexpr int kRounds = 20000;
  std::vector<int> accepted(4);
  for (int i = 0; i < kRounds; ++i) {
    const int n = acceptance.accepted(i % 32, i / 32 * 3, 4);
    ASSERT_LE(n, 3) << "the fourth has no rate";
    EXPECT_LE(acceptance.accepted(i % 32, i / 32 * 3, 1), 1);
    for (int k = 0; k < n; ++k) ++accepted[static_cast<std::size_t>(k)];
  }
  for (std::size_t k = 0; k < rates.size(); ++k) {
    EXPECT_NEAR(accepted[k], rates[k] * kRounds, 0.02 * kRounds) << k;
  }
}

}  // namespace
}  // namespace tandem::kernels
