// A row's bits do not depend on the other rows of the step, on how a prompt is cut, or on whether
// a token came as prompt, decode or draft row: on every backend, for each kind of weight.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "mini_model.h"

namespace tandem::test {
namespace {

using core::DType;
using kernels::AttentionKind;
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

/// Heads of one attention layer, and how many rows of a text it gets.
struct HeadCase {
  int size, heads, kv_heads, rows;
};

class AttentionInvariance
    : public ::testing::TestWithParam<std::tuple<BackendFactory, HeadCase, AttentionKind>> {
 protected:
  static constexpr int kWidth = 64;

  /// Output rows of a layer that owns its KV, each followed by that of one that shares it, for a
  /// text that comes in spans of the given sizes in turn.
  std::vector<float> run(int slot, const std::vector<int>& sizes) {
    const auto values = random_values(static_cast<std::size_t>(head_.rows * kWidth), 40);
    const std::vector<TokenId> tokens(static_cast<std::size_t>(head_.rows), 1);
    const kernels::AttentionSpec spec = rig_.attention_spec(kind_, 0);
    std::vector<float> out(2 * values.size());
    int first = 0;
    for (std::size_t i = 0; first < head_.rows; ++i) {
      const int n = std::min(sizes[i % sizes.size()], head_.rows - first);
      const auto span = std::span(tokens).first(static_cast<std::size_t>(n));
      rig_.backend().begin_step({{rig_.prompt(slot, span, first, Keep::kAll)}});
      const kernels::Rows x = x_.prefix(n);
      rig_.backend().write(x, std::span(values).subspan(static_cast<std::size_t>(first * kWidth),
                                                        static_cast<std::size_t>(n * kWidth)));
      rig_.backend().attention(owning_, spec, x);
      store(x, 2 * first, out);
      rig_.backend().attention(sharing_, spec, x);
      store(x, 2 * first + 1, out);
      EXPECT_TRUE(rig_.backend().end_step().ok());
      rig_.drop_pages_before_window(slot, first + n);
      first += n;
    }
    return out;
  }

 private:
  void store(const kernels::Rows& x, int first, std::vector<float>& out) {
    const std::vector<float> rows = rig_.read(x);
    for (int r = 0; r < x.rows; ++r) {
      std::copy_n(rows.begin() + r * kWidth, kWidth, out.begin() + (first + 2 * r) * kWidth);
    }
  }
  static Dims dims(const HeadCase& head) {
    Dims d;
    d.heads = head.heads;
    d.kv_heads = head.kv_heads;
    d.head_size = {head.size, head.size};
    d.window = 72;
    return d;
  }

  HeadCase head_ = std::get<1>(GetParam());
  AttentionKind kind_ = std::get<2>(GetParam());
  OpRig rig_{std::get<0>(GetParam()), dims(head_)};
  kernels::AttentionWeights owning_ =
      rig_.attention_weights(DType::kF32, kind_, kWidth, true, false, 1);
  kernels::AttentionWeights sharing_ =
      rig_.attention_weights(DType::kF32, kind_, kWidth, false, false, 20);
  kernels::Rows x_ = rig_.rows(head_.rows, kWidth, kernels::RowSet::kStep);
};

TEST_P(AttentionInvariance, SpansOfFewRowsHaveTheBitsOfAPrompt) {
  const std::vector<float> whole = run(0, {1024});
  EXPECT_EQ(run(1, {1, 8, 3, 5, 2, 4, 7, 6}), whole);
}

std::string head_name(const ::testing::TestParamInfo<AttentionInvariance::ParamType>& info) {
  const HeadCase& c = std::get<1>(info.param);
  return std::get<0>(info.param).name + "_D" + std::to_string(c.size) + "_H" +
         std::to_string(c.heads) + "_G" + std::to_string(c.kv_heads) + "_" +
         (std::get<2>(info.param) == AttentionKind::kFull ? "Full" : "Sliding");
}

INSTANTIATE_TEST_SUITE_P(
    All, AttentionInvariance,
    ::testing::Combine(::testing::ValuesIn(backend_factories()),
                       ::testing::Values(HeadCase{32, 4, 2, 90}, HeadCase{64, 4, 1, 200},
                                         HeadCase{128, 16, 1, 140}, HeadCase{256, 8, 2, 140},
                                         HeadCase{512, 8, 2, 140}, HeadCase{512, 1, 1, 140}),
                       ::testing::Values(AttentionKind::kSliding, AttentionKind::kFull)),
    head_name);

/// Matrices so large that the CUDA backend cuts their products into more runs than it has SMs, and
/// gives a CTA of many rows two of them.
class ProductInvariance : public ::testing::TestWithParam<std::tuple<BackendFactory, DType>> {
 protected:
  static constexpr int kHidden = 2816, kFfn = 4096, kMostRows = 300;

  static Dims dims() {
    Dims d;
    d.hidden = kHidden;
    d.ffn = kFfn;
    return d;
  }
  /// The first `count` of the rows, after a feed-forward step of these rows alone.
  std::vector<float> run(int count) {
    const std::vector<TokenId> tokens(static_cast<std::size_t>(count), 1);
    rig_.backend().set_slot(0, {});
    rig_.backend().begin_step({{rig_.prompt(0, tokens, 0, Keep::kAll)}});
    const kernels::Rows x = x_.prefix(count);
    rig_.backend().write(x, std::span(values_).first(static_cast<std::size_t>(count * kHidden)));
    rig_.backend().ffn(weights_, 0.7F, x);
    std::vector<float> out = rig_.read(x);
    EXPECT_TRUE(rig_.backend().end_step().ok());
    return out;
  }

 private:
  OpRig rig_{std::get<0>(GetParam()), dims()};
  kernels::FfnWeights weights_ = rig_.ffn_weights(std::get<1>(GetParam()), kHidden, kFfn, 1);
  std::vector<float> values_ = random_values(static_cast<std::size_t>(kMostRows * kHidden), 2);
  kernels::Rows x_ = rig_.rows(kMostRows, kHidden, kernels::RowSet::kStep);
};

TEST_P(ProductInvariance, FewRowsHaveTheBitsOfMany) {
  const std::vector<float> whole = run(kMostRows);
  for (const int count : {1, 12, 30, 60, 90, 128, 190}) {
    const std::vector<float> rows = run(count);
    const auto differs = std::mismatch(rows.begin(), rows.end(), whole.begin()).first;
    EXPECT_EQ(differs, rows.end())
        << count << " rows, the first to differ: " << (differs - rows.begin()) / kHidden;
  }
}

std::vector<std::tuple<BackendFactory, DType>> cuda_cases() {
  std::vector<std::tuple<BackendFactory, DType>> cases;
  for (const auto& c : all_cases()) {
    if (std::get<0>(c).name == "cuda") cases.push_back(c);
  }
  return cases;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ProductInvariance);  // without a GPU
INSTANTIATE_TEST_SUITE_P(All, ProductInvariance, ::testing::ValuesIn(cuda_cases()), case_name);

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
