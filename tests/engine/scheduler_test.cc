#include "tandem/engine/scheduler.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace tandem::engine {
namespace {

constexpr int kPage = 4;

/// A scheduler with sequences whose tokens do not matter; commit() plays a model that accepts all
/// drafts.
class SchedulerTest : public ::testing::Test {
 protected:
  void start(SchedulerOptions options, int num_page_pairs = 1000) {
    KvOptions kv;
    kv.layout.page_tokens = kPage;
    kv.layout.page_bytes = {1, 1};
    kv.layout.max_pages = {2 * num_page_pairs, 2 * num_page_pairs};
    kv.budget_bytes = static_cast<std::size_t>(2 * num_page_pairs);
    kv.window = 1000;  // sliding pages then number as many as the full ones
    kv.prefix_cache = false;
    kv_ = std::make_unique<KvManager>(kv);
    scheduler_ = std::make_unique<Scheduler>(options, *kv_);
  }

  Sequence& add(int prompt, int max_length = 200) {
    Sequence& s = sequences_.emplace_back();
    s.age = sequences_.size();
    s.tokens.assign(static_cast<std::size_t>(prompt), 0);
    s.num_prompt = prompt;
    s.max_length = max_length;
    scheduler_->add(s);
    return s;
  }

  static int rows(const kernels::Span& span) {
    return span.is_decode() ? 1 + span.num_drafts : static_cast<int>(span.prompt.size());
  }

  /// Rows of each span of the next step, by sequence age; the step is then committed.
  std::vector<std::pair<int, int>> step(int next_drafts = 0) {
    const PlannedStep& step = scheduler_->plan();
    std::vector<std::pair<int, int>> out;
    for (std::size_t i = 0; i < step.sequences.size(); ++i) {
      Sequence& s = *step.sequences[i];
      const kernels::Span& span = step.plan.spans[i];
      out.emplace_back(static_cast<int>(s.age), rows(span));
      const int yield = span.is_decode() ? 1 + span.num_drafts : 1;
      if (!span.is_decode()) s.commit_prompt(rows(span));
      if (span.keep == kernels::Keep::kAll) s.num_scored = s.computed;
      if (span.samples()) {
        s.commit_tokens(std::vector<TokenId>(static_cast<std::size_t>(yield), 0));
        s.state = SequenceState::kDecode;
        s.held_drafts = next_drafts;
      }
      kv_->settle(s);
    }
    std::vector<const Sequence*> all;
    for (const Sequence& s : sequences_) all.push_back(&s);
    EXPECT_TRUE(kv_->check(all).ok()) << kv_->check(all).message();
    return out;
  }

  using Rows = std::vector<std::pair<int, int>>;  // (age, rows)
  std::deque<Sequence> sequences_;
  std::unique_ptr<KvManager> kv_;
  std::unique_ptr<Scheduler> scheduler_;
};

constexpr SchedulerOptions kRoomy = {.max_sequences = 8,
                                     .max_rows = 64,
                                     .max_kept_rows = 64,
                                     .prefill_chunk = 32,
                                     .prompt_rows_while_decoding = 16};

TEST_F(SchedulerTest, PromptsOfOneLengthAreServedInOrderOfArrival) {
  start(kRoomy);
  for (int i = 0; i < 4; ++i) add(20);
  EXPECT_EQ(step(), (Rows{{1, 20}, {2, 12}}));
  EXPECT_EQ(step(), (Rows{{1, 1}, {2, 8}, {3, 8}}));
  EXPECT_EQ(step(), (Rows{{1, 1}, {2, 1}, {3, 12}, {4, 4}}));
}

TEST_F(SchedulerTest, ShorterPromptsGetWhatTheHalfOfTheOldestLeaves) {
  start(kRoomy);
  add(100);
  add(12);
  add(30);
  add(5);
  EXPECT_EQ(step(), (Rows{{1, 16}, {4, 5}, {2, 11}}));
  // Two decode: 16 rows.
  EXPECT_EQ(step(), (Rows{{4, 1}, {1, 8}, {2, 1}, {3, 7}}));
  EXPECT_EQ(step(), (Rows{{2, 1}, {4, 1}, {1, 8}, {3, 8}}));
}

TEST_F(SchedulerTest, TheOldestTakesAllThatShorterPromptsDoNotWant) {
  start(kRoomy);
  add(100);
  add(3);
  EXPECT_EQ(step(), (Rows{{1, 29}, {2, 3}}));
}

TEST_F(SchedulerTest, RowsToBeScoredShareTheKeptRows) {
  SchedulerOptions options = kRoomy;
  options.max_kept_rows = 8;
  start(options);
  Sequence& scored = add(41);
  scored.score_end = 40;
  add(6);
  EXPECT_EQ(step(), (Rows{{1, 7}, {2, 6}}));  // a kept row is the second one's
  add(3).score_end = 2;
  EXPECT_EQ(step(), (Rows{{2, 1}, {1, 5}, {3, 2}}));
}

TEST_F(SchedulerTest, DecodesComeFirstAndBoundThePromptRows) {
  start(kRoomy);
  add(10);
  EXPECT_EQ(step(2), (Rows{{1, 10}}));
  add(40);
  EXPECT_EQ(step(2), (Rows{{1, 3}, {2, 16}}));
  EXPECT_EQ(step(), (Rows{{1, 3}, {2, 16}}));
  EXPECT_EQ(step(), (Rows{{1, 1}, {2, 8}}));
  EXPECT_EQ(step(), (Rows{{1, 1}, {2, 1}}));
}

TEST_F(SchedulerTest, NoMoreThanItsSlotsRun) {
  SchedulerOptions options = kRoomy;
  options.max_sequences = 2;
  start(options);
  Sequence& first = add(2);
  add(2);
  add(2);
  EXPECT_EQ(step(), (Rows{{1, 2}, {2, 2}}));
  EXPECT_EQ(step(), (Rows{{1, 1}, {2, 1}}));
  scheduler_->remove(first);
  EXPECT_EQ(step(), (Rows{{2, 1}, {3, 2}}));
}

TEST_F(SchedulerTest, DraftsNeverCrowdOutSequencesOrNewPrompts) {
  SchedulerOptions options = kRoomy;
  options.max_sequences = 4;
  options.max_rows = 12;
  options.max_kept_rows = 10;
  start(options);
  add(3);
  add(3);
  step(8);
  EXPECT_EQ(step(8), (Rows{{1, 9}, {2, 1}}));  // ten kept rows
  add(3);
  // A quarter of the rows is kept for the newcomer.
  EXPECT_EQ(step(8), (Rows{{1, 8}, {2, 1}, {3, 3}}));
}

TEST_F(SchedulerTest, DraftsStopBeforeTheOutputIsFull) {
  start(kRoomy);
  add(3, 8);
  step(8);                             // 4 tokens
  EXPECT_EQ(step(8), (Rows{{1, 4}}));  // 3 drafts and the token after them make 8
  EXPECT_EQ(sequences_[0].length(), 8);
}

TEST_F(SchedulerTest, PreemptsTheYoungestWhenPagesRunOutAndRequeuesItFirst) {
  start(kRoomy, 5);
  add(4);
  add(4);
  EXPECT_EQ(step(), (Rows{{1, 4}, {2, 4}}));
  add(8);  // does not fit: 2 of 5 pairs are held and each runner may need another
  for (int i = 0; i < 4; ++i) EXPECT_EQ(step(), (Rows{{1, 1}, {2, 1}}));
  EXPECT_EQ(scheduler_->preemptions(), 0U);
  EXPECT_EQ(step(), (Rows{{1, 1}}));  // the first takes the last pair, the second needs one, too
  EXPECT_EQ(scheduler_->preemptions(), 1U);
  EXPECT_EQ(sequences_[1].state, SequenceState::kWaiting);
  EXPECT_EQ(sequences_[1].length(), 9);
  scheduler_->remove(sequences_[0]);
  EXPECT_EQ(step(), (Rows{{2, 9}}));  // prompt and output again
}

TEST_F(SchedulerTest, DraftsTakeNoPageThatASequenceNeeds) {
  start(kRoomy, 4);
  add(4);
  add(4);
  step(8);
  // Both get their second pair and draft to its end.
  EXPECT_EQ(step(8), (Rows{{1, 4}, {2, 4}}));
  EXPECT_EQ(scheduler_->preemptions(), 0U);
}

TEST_F(SchedulerTest, LongPromptsDoNotTakeEachOthersPages) {
  start(kRoomy, 30);
  add(80);
  add(60);  // fits beside what the first holds now, but not beside what it will hold
  add(4);
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(sequences_[0].num_prompt, 80);
  EXPECT_EQ(sequences_[1].state, SequenceState::kWaiting);
  EXPECT_EQ(scheduler_->preemptions(), 0U);
}

TEST_F(SchedulerTest, EveryRequestWaitsABoundedTime) {
  // Short prompts keep coming, more than the rows hold, and each is shorter than what long ones
  // have left. While it is the oldest one, a prompt gets half of 16 rows a step; then it decodes.
  constexpr int kHalf = 8, kDecodeSteps = 3;
  std::mt19937 random(3);
  const auto one_to = [&random](unsigned limit) {
    return 1 + static_cast<int>(random() % limit);
  };
  SchedulerOptions options = kRoomy;
  options.max_sequences = 6;
  start(options);
  struct Live {
    Sequence* sequence;
    int bound;  // the step by which its prompt is computed
  };
  std::vector<Live> live;
  int num_long = 0;
  for (int now = 0; now < 3000; ++now) {
    while (live.size() < 10) {
      const bool is_long = random() % 6 == 0;
      num_long += is_long ? 1 : 0;
      Sequence& s = add(is_long ? 60 + one_to(130) : one_to(8), 1000);
      int work = 0;  // steps that those before it may take, each as the oldest one
      for (const Live& l : live) {
        work += (l.sequence->length() - l.sequence->computed) / kHalf + 1 + kDecodeSteps;
      }
      live.push_back({&s, now + work + s.length() / kHalf + 1});
    }
    step();
    std::erase_if(live, [&](const Live& l) {
      const bool has_decoded = l.sequence->length() >= l.sequence->num_prompt + kDecodeSteps;
      if (has_decoded) scheduler_->remove(*l.sequence);
      return has_decoded;
    });
    for (const Live& l : live) {
      if (l.sequence->length() > l.sequence->num_prompt) continue;
      ASSERT_LE(now, l.bound) << "a prompt of " << l.sequence->num_prompt;
    }
  }
  EXPECT_GT(num_long, 30);
}

TEST_F(SchedulerTest, AdmitsInOrderOnly) {
  start(kRoomy, 8);
  add(8);
  step();
  add(28);  // too long beside the first
  add(2);
  EXPECT_EQ(step(), (Rows{{1, 1}}));
  scheduler_->remove(sequences_[0]);
  EXPECT_EQ(step(), (Rows{{2, 28}}));
}

}  // namespace
}  // namespace tandem::engine
