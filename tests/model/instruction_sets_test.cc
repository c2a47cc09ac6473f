// The CPU's instruction sets, each forced by name: the same bits from all, with either cache, and
// on each of them drafts that change nothing.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "driver.h"
#include "support.h"

namespace tandem {
namespace {

using kernels::KvType;
using testing::Driver;
using testing::Sequence;

struct Path {
  std::string backend;
  KvType kv;
};

std::vector<Path> paths() {
  std::vector<Path> all;
  for (const std::string& name : testing::cpu_names()) {
    for (const KvType kv : {KvType::kF16, KvType::kInt8}) all.push_back({name, kv});
  }
  return all;
}

class InstructionSets : public ::testing::TestWithParam<Path> {
 protected:
  std::unique_ptr<model::Model> load(const std::string& target, const std::string& draft,
                                     const std::string& backend) const {
    model::LoadOptions options;
    options.kv_memory_bytes = std::size_t{128} << 20;
    options.max_sequences = 8;
    options.kv_type = GetParam().kv;
    return testing::load(target, draft, testing::make_backend(backend, /*threads=*/2), options);
  }
  std::unique_ptr<model::Model> load_demo(const std::string& backend) const {
    return load(testing::demo_path(testing::kDemoTarget), testing::demo_path(testing::kDemoDrafter),
                backend);
  }
};

std::vector<TokenId> random_text(const model::Model& model, unsigned seed, int size) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<TokenId> token(3, model.config().vocab - 7);
  std::vector<TokenId> text(static_cast<std::size_t>(size));
  std::generate(text.begin(), text.end(), [&] { return token(random); });
  return text;
}

std::vector<std::uint32_t> logit_bits(model::Model& model, const std::vector<TokenId>& text) {
  const std::vector<float> logits = model.score(text, 24, 0).value();
  std::vector<std::uint32_t> bits;
  for (const float x : logits) bits.push_back(std::bit_cast<std::uint32_t>(x));
  return bits;
}

TEST_P(InstructionSets, GiveTheBitsOfTheFastestOnTheDemo) {
  const auto fastest = load_demo("cpu");
  const auto model = load_demo(GetParam().backend);
  ASSERT_TRUE(fastest != nullptr && model != nullptr);
  EXPECT_NE(model->backend().describe().find(GetParam().backend.substr(4)), std::string::npos);
  const auto text = random_text(*model, 3, 40);
  EXPECT_EQ(logit_bits(*model, text), logit_bits(*fastest, text));
}

TEST_P(InstructionSets, GiveTheBitsOfTheFastestOnTinyModels) {
  for (const auto& entry : testing::golden_models()) {
    SCOPED_TRACE(entry.model_path);
    const auto fastest = load(entry.model_path, "", "cpu");
    const auto model = load(entry.model_path, "", GetParam().backend);
    if (fastest == nullptr || model == nullptr) continue;
    const auto text = random_text(*model, 5, 70);  // the windows are 64 wide
    ASSERT_EQ(logit_bits(*model, text), logit_bits(*fastest, text));
  }
}

TEST_P(InstructionSets, DraftsChangeNothing) {
  int num_models = 0;
  for (const auto& entry : testing::golden_models()) {
    if (entry.draft_path().empty()) continue;
    SCOPED_TRACE(entry.model_path);
    const auto model = load(entry.model_path, entry.draft_path(), GetParam().backend);
    if (model == nullptr) continue;
    std::vector<Sequence> batch;
    for (const int k : {0, 1, 3, 5}) {
      Sequence& sequence = batch.emplace_back();
      sequence.prompt = random_text(*model, 7, 70);
      sequence.num_tokens = 24;
      sequence.drafts = k;
      sequence.chunk = k % 2 == 0 ? 512 : 9;
      sequence.first_step = 2 * k;
    }
    const auto generated = Driver(*model).generate(batch);
    const auto alone = Driver(*model).generate(batch[0]).tokens;
    for (const auto& out : generated) ASSERT_EQ(out.tokens, alone);
    ++num_models;
  }
  EXPECT_GT(num_models, 0);
}

INSTANTIATE_TEST_SUITE_P(cpu, InstructionSets, ::testing::ValuesIn(paths()), [](const auto& info) {
  return info.param.backend + (info.param.kv == KvType::kInt8 ? "_int8" : "_f16");
});

}  // namespace
}  // namespace tandem
