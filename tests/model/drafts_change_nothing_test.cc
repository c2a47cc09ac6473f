// The flagship rule: what a sequence says depends on its prompt and its seed alone, not on drafts,
// chunks, the other sequences of the batch, or where its pages lie.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "driver.h"
#include "support.h"

namespace tandem {
namespace {

using testing::Driver;
using testing::Sequence;

constexpr int kMaxK = 6;

std::vector<TokenId> random_prompt(std::mt19937& random, int vocab, int size) {
  std::uniform_int_distribution<TokenId> token(3, vocab - 7);
  std::vector<TokenId> prompt(static_cast<std::size_t>(size));
  std::generate(prompt.begin(), prompt.end(), [&] { return token(random); });
  return prompt;
}

/// The same sequence alone, without drafts, its prompt in one chunk.
std::vector<TokenId> alone(model::Model& model, Sequence sequence) {
  sequence.drafts = 0;
  sequence.chunk = 512;
  sequence.first_step = 0;
  return Driver(model).generate(sequence).tokens;
}

/// Runs the batch and compares each of its sequences with itself alone; names those that differ.
std::string differences(model::Model& model, const std::vector<Sequence>& batch, unsigned seed) {
  const auto generated = Driver(model, seed).generate(batch);
  std::string out;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Sequence& s = batch[i];
    if (generated[i].tokens == alone(model, s)) continue;
    out += fmt::format("[prompt of {}, {} tokens, k {}, chunk {}, from step {}]", s.prompt.size(),
                       s.num_tokens, s.drafts, s.chunk, s.first_step);
  }
  return out;
}

class DraftsChangeNothing : public testing::PerBackend {
 protected:
  std::unique_ptr<model::Model> load_tiny(const testing::GoldenModel& entry) const {
    model::LoadOptions options;
    options.kv_memory_bytes = 64 << 20;
    options.max_sequences = 16;
    return testing::load(entry.model_path, entry.draft_path(), backend(), options);
  }
  std::unique_ptr<model::Model> load_demo() const {
    model::LoadOptions options;
    options.kv_memory_bytes = std::size_t{256} << 20;
    return testing::load(testing::demo_path(testing::kDemoTarget),
                         testing::demo_path(testing::kDemoDrafter), backend(/*threads=*/2),
                         options);
  }
};

// One sequence for every k and every chunk size, joining one after the other.
std::vector<Sequence> sweep(const std::vector<TokenId>& prompt, int num_tokens) {
  std::vector<Sequence> batch;
  for (int k = 0; k <= kMaxK; ++k) {
    Sequence sequence;
    sequence.prompt = prompt;
    sequence.num_tokens = num_tokens;
    sequence.drafts = k;
    constexpr int kChunks[] = {1, 7, 64, 512};
    sequence.chunk = kChunks[k % 4];
    sequence.first_step = 2 * k;
    batch.push_back(sequence);
  }
  return batch;
}

TEST_P(DraftsChangeNothing, EveryKAndChunkOnTinyModels) {
  int models = 0;
  for (const auto& entry : testing::golden_models()) {
    if (entry.draft_path().empty()) continue;
    SCOPED_TRACE(entry.model_path);
    const auto model = load_tiny(entry);
    if (model == nullptr) continue;
    ++models;
    std::mt19937 random(7);
    for (int size : {1, 9, 150}) {  // the windows are 64 wide
      EXPECT_EQ(differences(*model, sweep(random_prompt(random, model->config().vocab, size), 40),
                            static_cast<unsigned>(size)),
                "");
    }
  }
  EXPECT_GT(models, 0);
}

TEST_P(DraftsChangeNothing, SampledTextKeepsItsSeed) {
  for (const auto& entry : testing::golden_models()) {
    if (entry.draft_path().empty()) continue;
    SCOPED_TRACE(entry.model_path);
    const auto model = load_tiny(entry);
    if (model == nullptr) continue;
    std::mt19937 random(11);
    auto batch = sweep(random_prompt(random, model->config().vocab, 20), 30);
    for (Sequence& sequence : batch) {
      sequence.sampling = {.temperature = 0.8F, .top_k = 40, .top_p = 0.95F, .seed = 42};
    }
    EXPECT_EQ(differences(*model, batch, 3), "");
  }
}

// Random batches: any mix of lengths, drafts, chunks, starts and sampling.
TEST_P(DraftsChangeNothing, RandomBatchesOnTinyModels) {
  std::vector<std::unique_ptr<model::Model>> models;
  for (const auto& entry : testing::golden_models()) {
    if (entry.draft_path().empty()) continue;
    auto model = load_tiny(entry);
    if (model != nullptr) models.push_back(std::move(model));
  }
  ASSERT_FALSE(models.empty());
  const auto property = [&] {
    model::Model& model = *models[*rc::gen::inRange<std::size_t>(0, models.size())];
    const auto seed = *rc::gen::arbitrary<unsigned>();
    std::mt19937 random(seed);
    std::vector<Sequence> batch(*rc::gen::inRange<std::size_t>(1, 5));
    for (Sequence& sequence : batch) {
      const int size = *rc::gen::inRange(1, 90);
      sequence.prompt = random_prompt(random, model.config().vocab, size);
      sequence.num_tokens = *rc::gen::inRange(1, 24);
      sequence.drafts = *rc::gen::inRange(0, kMaxDraft + 1);
      sequence.chunk = *rc::gen::element(1, 2, 7, 31, 64, 512);
      sequence.first_step = *rc::gen::inRange(0, 20);
      sequence.sampling.temperature = *rc::gen::element(0.0F, 0.0F, 1.0F);
      sequence.sampling.seed = seed;
    }
    RC_ASSERT(differences(model, batch, seed) == "");
  };
  EXPECT_TRUE(rc::check("a batch says what its sequences say alone", property));
}

// A real vocabulary, real head sizes and drafts that are accepted. The window is 512 wide.
TEST_P(DraftsChangeNothing, LongRunOnTheDemoPair) {
  const auto model = load_demo();
  ASSERT_NE(model, nullptr);
  const bool is_slow = GetParam() == "reference";
  std::mt19937 random(5);
  EXPECT_EQ(differences(*model, sweep(random_prompt(random, model->config().vocab, 40), 24), 1),
            "");
  auto batch = sweep(random_prompt(random, model->config().vocab, 530), is_slow ? 6 : 48);
  if (is_slow) batch.erase(batch.begin() + 1, batch.end() - 2);
  EXPECT_EQ(differences(*model, batch, 2), "");
}

TEST_P(DraftsChangeNothing, ScoresDoNotDependOnTheChunk) {
  for (const auto& entry : testing::golden_models()) {
    SCOPED_TRACE(entry.model_path);
    const auto model = load_tiny(entry);
    if (model == nullptr) continue;
    std::mt19937 random(3);
    const auto text = random_prompt(random, model->config().vocab, 130);
    const auto vocab = static_cast<std::size_t>(model->config().vocab);
    const auto whole = model->score(text, 130, 0).value();
    for (int chunk : {1, 7, 64}) {
      EXPECT_EQ(model->score(text, chunk, 0).value(), whole) << chunk;
    }
    // Rows before first_row leave after the last KV-owning layer.
    const auto last = model->score(text, 50, 129).value();
    EXPECT_TRUE(std::equal(last.begin(), last.end(), whole.end() - static_cast<long>(vocab)));
  }
}

TANDEM_FOR_EACH_BACKEND(tiny_and_demo, DraftsChangeNothing);

}  // namespace
}  // namespace tandem
