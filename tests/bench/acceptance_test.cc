#include "tandem/bench/acceptance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tandem/bench/process_memory.h"
#include "tandem/bench/prometheus_text.h"

#include <unistd.h>

namespace tandem::bench {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;

TEST(PrometheusText, ReadsNamesLabelsAndValues) {
  const auto page = PrometheusText::parse(
      "# HELP a says # things\n# TYPE a counter\n"
      "a 3\n"
      "b{model=\"x\\\"y\\\\z\\n\", engine = \"0\",} 1.5e3 1700000000\r\n"
      "b{model=\"other\"} +2\n"
      "nan_value NaN\nhuge +Inf\n"
      "broken\nbroken{a=\"1\" 5\nbroken{a=1} 5\nbroken{ 5\nbroken{} five\n{} 3\n   \n"
      "last 7");
  EXPECT_EQ(page.sum("a"), 3.0);
  EXPECT_EQ(page.sum("b"), 1502.0);
  EXPECT_EQ(page.samples()[1].labels.at("model"), "x\"y\\z\n");
  EXPECT_EQ(page.samples()[1].labels.at("engine"), "0");
  EXPECT_EQ(page.sum("last"), 7.0);
  EXPECT_FALSE(page.sum("nan_value"));
  EXPECT_FALSE(page.sum("huge"));
  EXPECT_FALSE(page.sum("broken"));
  EXPECT_FALSE(page.sum("absent"));
}

TEST(PrometheusText, SumsByIndexAndIgnoresAbsurdOnes) {
  const auto page = PrometheusText::parse(
      "p{position=\"1\"} 5\np{position=\"0\",engine=\"a\"} 7\np{position=\"0\",engine=\"b\"} 1\n"
      "p{position=\"-1\"} 9\np{position=\"99999999\"} 9\np{position=\"x\"} 9\np 9\n");
  EXPECT_THAT(page.sum_by_index("p", "position"), ElementsAre(8.0, 5.0));
}

DraftCounters counters(std::string_view text) {
  const auto read = DraftCounters::read(PrometheusText::parse(text));
  EXPECT_TRUE(read);
  return read.value_or(DraftCounters());
}

TEST(Acceptance, TandemCountsStepsWithoutDraftsAndPositionsAsDrafted) {
  const auto before = counters(
      "vllm:spec_decode_num_drafts_total 10\nvllm:spec_decode_num_draft_tokens_total 30\n"
      "vllm:spec_decode_num_accepted_tokens_total 5\ntandem:verify_steps_total 100\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 5\n"
      "tandem:spec_decode_drafted_tokens_per_pos_total{position=\"0\"} 10\n");
  const auto after = counters(
      "vllm:spec_decode_num_drafts_total 110\nvllm:spec_decode_num_draft_tokens_total 180\n"
      "vllm:spec_decode_num_accepted_tokens_total 105\ntandem:verify_steps_total 300\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 80\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"1\"} 25\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"2\"} 0\n"
      "tandem:spec_decode_drafted_tokens_per_pos_total{position=\"0\"} 110\n"
      "tandem:spec_decode_drafted_tokens_per_pos_total{position=\"1\"} 50\n"
      "tandem:spec_decode_drafted_tokens_per_pos_total{position=\"2\"} 0\n");
  const auto acceptance = acceptance_between(before, after);
  ASSERT_TRUE(acceptance);
  EXPECT_DOUBLE_EQ(acceptance->mean_length, 1.5);  // 100 accepted in 200 steps
  EXPECT_THAT(acceptance->per_position, ElementsAre(DoubleEq(0.75), DoubleEq(0.5)));
  EXPECT_EQ(acceptance->verify_steps, 200u);
  EXPECT_EQ(acceptance->draft_rounds, 100u);
  EXPECT_EQ(acceptance->drafted_tokens, 150u);
  EXPECT_EQ(acceptance->accepted_tokens, 100u);
  EXPECT_EQ(acceptance->source, "metrics");
}

TEST(Acceptance, OthersDraftEveryPositionInEveryRound) {
  for (const std::string prefix : {"vllm:", "llamacpp:"}) {
    for (const std::string ending : {"_total", ""}) {
      const std::string name = prefix + "spec_decode_num_";
      const auto at = [&](int rounds, int accepted, int first, int second) {
        return counters(name + "drafts" + ending + " " + std::to_string(rounds) + "\n" + name +
                        "accepted_tokens" + ending + " " + std::to_string(accepted) + "\n" + name +
                        "accepted_tokens_per_pos" + ending + "{position=\"0\"} " +
                        std::to_string(first) + "\n" + name + "accepted_tokens_per_pos" + ending +
                        "{position=\"1\"} " + std::to_string(second) + "\n");
      };
      const auto acceptance = acceptance_between(at(10, 10, 8, 2), at(20, 20, 14, 6));
      ASSERT_TRUE(acceptance) << prefix << ending;
      EXPECT_DOUBLE_EQ(acceptance->mean_length, 2.0);
      EXPECT_THAT(acceptance->per_position, ElementsAre(DoubleEq(0.6), DoubleEq(0.4)));
    }
  }
}

TEST(Acceptance, NothingIsKnownWithoutStepsOrAfterARestart) {
  const auto some = counters(
      "vllm:spec_decode_num_drafts_total 10\nvllm:spec_decode_num_accepted_tokens_total 5\n");
  const auto none = counters(
      "vllm:spec_decode_num_drafts_total 0\nvllm:spec_decode_num_accepted_tokens_total 0\n");
  EXPECT_FALSE(acceptance_between(some, some));
  EXPECT_FALSE(acceptance_between(some, none));
  EXPECT_FALSE(DraftCounters::read(PrometheusText::parse("up 1\n")));
}

TEST(Acceptance, FollowsFromTimingsOfRequests) {
  // 101 tokens: the first from the prompt, 60 accepted drafts, so 40 steps.
  const auto acceptance = acceptance_from_timings(120, 60, 100);
  ASSERT_TRUE(acceptance);
  EXPECT_DOUBLE_EQ(acceptance->mean_length, 2.5);
  EXPECT_TRUE(acceptance->per_position.empty());
  EXPECT_FALSE(acceptance_from_timings(0, 0, 100));
  EXPECT_FALSE(acceptance_from_timings(120, 100, 100));
}

TEST(ProcessMemory, ReadsAProcessAndItsChildren) {
  const auto own = peak_memory_of_tree(::getpid());
  ASSERT_TRUE(own);
  EXPECT_GT(*own, 1u << 20);
  const auto family = peak_memory_of_tree(::getppid());
  ASSERT_TRUE(family);
  EXPECT_GE(*family, *own);
  EXPECT_FALSE(peak_memory_of_tree(0x7ffffffe));
}

}  // namespace
}  // namespace tandem::bench
