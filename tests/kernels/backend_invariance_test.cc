// A row's bits do not depend on the other rows of the step, on how a prompt is cut, or on whether
// a token came as prompt, decode or draft row: on every backend, for each kind of weight.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "mini_model.h"

namespace tandem::test {
namespace {

using core::DType;
using kernels::Keep;
using kernels::SlotSnapshot;

using RowValues = std::vector<float>;

constexpr int kTextSize = 90;

std::vector<TokenId> text_of(int size, int seed) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < size; ++i) tokens.push_back((i * i + 13 * i + 5 * seed) % 96);
  return tokens;
}

/// h rows of a whole text, given as prompt in chunks.
std::vector<RowValues> score(MiniModel& model, int slot, const std::vector<TokenId>& text,
                             int chunk) {
  model.rig().backend().set_slot(slot, {});
  std::vector<RowValues> rows;
  for (std::size_t begin = 0; begin < text.size(); begin += static_cast<std::size_t>(chunk)) {
    const std::size_t size = std::min(static_cast<std::size_t>(chunk), text.size() - begin);
    model.step({{model.rig().prompt(slot, std::span(text).subspan(begin, size),
                                    static_cast<Position>(begin), Keep::kAll)}});
    for (std::size_t r = 0; r < size; ++r) rows.push_back(model.hidden_row(static_cast<int>(r)));
  }
  return rows;
}

kernels::SamplingParams greedy() {
  kernels::SamplingParams params;
  params.temperature = 0.0F;
  return params;
}

class BackendInvariance : public ::testing::TestWithParam<std::tuple<BackendFactory, DType>> {
 protected:
  MiniModel model_{std::get<0>(GetParam()), std::get<1>(GetParam())};
};

TEST_P(BackendInvariance, PromptChunksChangeNoBit) {
  const std::vector<TokenId> text = text_of(kTextSize, 1);
  const std::vector<RowValues> whole = score(model_, 0, text, kTextSize);
  for (const int chunk : {1, 7, 64}) {
    const std::vector<RowValues> cut = score(model_, 0, text, chunk);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      ASSERT_EQ(cut[i], whole[i]) << "chunk " << chunk << ", position " << i;
    }
  }
}

TEST_P(BackendInvariance, RowsThatNobodyReadMayLeaveEarly) {
  const std::vector<TokenId> text = text_of(kTextSize, 2);
  const std::vector<RowValues> whole = score(model_, 0, text, kTextSize);
  model_.rig().backend().set_slot(1, greedy());
  model_.step({{model_.rig().prompt(1, std::span(text).first(50), 0, Keep::kNone)}});
  model_.step({{model_.rig().prompt(1, std::span(text).subspan(50), 50, Keep::kLast)}});
  EXPECT_EQ(model_.hidden_row(0), whole.back());
}

TEST_P(BackendInvariance, OtherSequencesOfTheStepChangeNoBit) {
  const std::vector<TokenId> text = text_of(40, 3);
  OpRig& rig = model_.rig();
  const auto finish_alone = [&] {
    rig.backend().set_slot(0, greedy());
    model_.step({{rig.prompt(0, text, 0, Keep::kLast, 3)}});
    return model_.hidden_row(0);
  };
  const RowValues alone = finish_alone();
  const SlotSnapshot slot_alone = rig.backend().read_slot(0);

  // Others in every role around it: decode with drafts, a whole prompt, a chunk, a scored text.
  const std::vector<TokenId> other = text_of(60, 4);
  rig.backend().set_slot(1, greedy());
  model_.step({{rig.prompt(1, other, 0, Keep::kLast, 2)}});
  rig.backend().set_slot(2, greedy());
  kernels::StepPlan plan;
  plan.spans = {rig.prompt(3, std::span(other).first(17), 0, Keep::kNone), rig.decode(1, 2, 4),
                rig.prompt(2, std::span(other).first(33), 0, Keep::kLast, 1),
                rig.prompt(4, text, 0, Keep::kLast, 3),
                rig.prompt(5, std::span(other).first(5), 0, Keep::kAll)};
  rig.backend().set_slot(4, greedy());
  model_.step(plan);
  EXPECT_EQ(model_.hidden_row(4), alone);  // after 3 decode rows and 1 prompt row
  const SlotSnapshot slot = rig.backend().read_slot(4);
  EXPECT_EQ(slot.token, slot_alone.token);
  EXPECT_EQ(slot.drafts, slot_alone.drafts);
  EXPECT_EQ(slot.hidden, slot_alone.hidden);
  EXPECT_EQ(slot.draft_hidden, slot_alone.draft_hidden);
}

TEST_P(BackendInvariance, DecodeRowsHaveTheBitsOfPromptRows) {
  std::vector<TokenId> text = text_of(30, 5);
  OpRig& rig = model_.rig();
  rig.backend().set_slot(0, greedy());
  std::vector<RowValues> rows;
  kernels::StepResult result = model_.step({{rig.prompt(0, text, 0, Keep::kLast)}});
  for (int i = 0; i < 12; ++i) {
    rows.push_back(model_.hidden_row(0));
    text.push_back(result.spans[0].tokens[0]);
    result = model_.step({{rig.decode(0, 0, 0)}});
  }
  const std::vector<RowValues> scored = score(model_, 1, text, kTextSize);
  for (std::size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], scored[29 + i]) << i;
}

TEST_P(BackendInvariance, DraftRowsHaveTheBitsOfPromptRowsAndLeaveNoTrace) {
  const std::vector<TokenId> prompt = text_of(30, 6);
  OpRig& rig = model_.rig();

  std::vector<TokenId> plain = prompt;
  rig.backend().set_slot(0, greedy());
  kernels::StepResult result = model_.step({{rig.prompt(0, prompt, 0, Keep::kLast)}});
  for (int i = 0; i < 12; ++i) {
    plain.push_back(result.spans[0].tokens[0]);
    result = model_.step({{rig.decode(0, 0, 0)}});
  }

  std::vector<TokenId> text = prompt;
  rig.backend().set_slot(0, greedy());
  result = model_.step({{rig.prompt(0, prompt, 0, Keep::kLast, 4)}});
  text.push_back(result.spans[0].tokens[0]);
  for (int i = 0; i < 8; ++i) {
    const SlotSnapshot slot = rig.backend().read_slot(0);
    std::vector<TokenId> with_drafts = text;
    with_drafts.insert(with_drafts.end(), slot.drafts.begin(), slot.drafts.end());
    result = model_.step({{rig.decode(0, 4, 4)}});
    std::vector<RowValues> rows;
    for (int r = 0; r < 5; ++r) rows.push_back(model_.hidden_row(r));
    const std::vector<RowValues> scored = score(model_, 1, with_drafts, kTextSize);
    for (std::size_t r = 0; r < 5; ++r) {
      ASSERT_EQ(rows[r], scored[text.size() - 1 + r]) << "step " << i << ", row " << r;
    }
    const auto num_tokens = static_cast<std::size_t>(result.spans[0].num_tokens);
    EXPECT_EQ(rig.backend().read_slot(0).hidden, rows[num_tokens - 1]);
    text.insert(text.end(), result.spans[0].tokens.begin(),
                result.spans[0].tokens.begin() + result.spans[0].num_tokens);
  }
  const std::size_t common = std::min(text.size(), plain.size());
  text.resize(common);
  plain.resize(common);
  EXPECT_EQ(text, plain);
}

std::string case_name(const ::testing::TestParamInfo<BackendInvariance::ParamType>& info) {
  return std::get<0>(info.param).name + "_" + std::string(core::name(std::get<1>(info.param)));
}

std::vector<std::tuple<BackendFactory, DType>> all_cases() {
  std::vector<std::tuple<BackendFactory, DType>> cases;
  for (const BackendFactory& factory : backend_factories()) {
    for (const DType dtype :
         {DType::kF32, DType::kQ8_0, DType::kQ4_K, DType::kF8E4M3, DType::kU8}) {
      cases.emplace_back(factory, dtype);
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, BackendInvariance, ::testing::ValuesIn(all_cases()), case_name);

TEST(CpuBackends, GiveTheSameBitsInEveryInstructionSetAndThreadCount) {
  const std::vector<TokenId> text = text_of(kTextSize, 7);
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kQ4_K, DType::kQ6_K, DType::kF8E4M3, DType::kU8}) {
    std::vector<RowValues> first;
    for (const BackendFactory& factory : backend_factories()) {
      if (factory.name.rfind("cpu_", 0) != 0) continue;
      MiniModel model(factory, dtype);
      const std::vector<RowValues> rows = score(model, 0, text, 64);
      if (first.empty()) first = rows;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        ASSERT_EQ(rows[i], first[i]) << factory.name << ", position " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::test
