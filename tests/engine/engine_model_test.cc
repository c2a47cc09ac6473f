// The flagship rule through the whole engine: what a request says depends on its prompt and its
// seed alone; not on drafts, chunks, other requests, preemption or the prefix cache.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "model_rig.h"
#include "support.h"

namespace tandem::engine {
namespace {

using testing::demo_prompts;
using testing::expect_same;
using testing::kv_bytes;
using testing::load_served;
using testing::Loaded;
using testing::Outputs;
using testing::serve;
using testing::serve_alone;
using testing::Served;
using testing::SmallerRunner;

std::vector<TokenId> random_tokens(std::mt19937& random, int vocab, int count) {
  std::uniform_int_distribution<TokenId> token(3, vocab - 7);
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  std::generate(tokens.begin(), tokens.end(), [&] { return token(random); });
  return tokens;
}

/// Requests of many lengths of which every second one begins like another one; every third one
/// is sampled; some have penalties, or biases, stop tokens and a least length; some ask for
/// logprobs, of the prompt too.
std::vector<Request> mixed_requests(int count, int vocab, int max_prompt, int max_tokens) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request request;
    request.id = static_cast<std::uint64_t>(i) + 1;
    const int length = 1 + static_cast<int>(random() % static_cast<unsigned>(max_prompt));
    request.prompt = random_tokens(random, vocab, length);
    if (i % 2 == 1) {
      const auto& other = requests[random() % requests.size()].prompt;
      const auto shared = std::min(other.size(), request.prompt.size());
      std::copy_n(other.begin(), shared, request.prompt.begin());
    }
    request.max_tokens = 1 + static_cast<int>(random() % static_cast<unsigned>(max_tokens));
    request.ignore_eos = i % 4 != 3;
    if (i % 4 == 1) request.penalties = {.presence = 0.5F, .frequency = 0.8F, .repetition = 1.3F};
    if (i % 4 == 3) {
      request.min_tokens = request.max_tokens / 2;
      for (TokenId token = 0; token < vocab; token += 7) {
        request.logit_bias.push_back({token, token % 2 == 0 ? 3.0F : -100.0F});
      }
      request.logit_bias.resize(std::min(request.logit_bias.size(), kMaxLogitBiases));
      request.stop_tokens = {request.prompt.front(), 9};
    }
    if (i % 5 == 0) request.logprobs = i % 4;
    if (i % 5 < 2) request.prompt_logprobs = i % 3;
    request.sampling = {.temperature = 0.0F};
    if (i % 3 == 2) request.sampling = {.temperature = 0.9F, .top_k = 50, .seed = random()};
    requests.push_back(std::move(request));
  }
  return requests;
}

class EngineOnTinyModels : public testing::PerBackend {};

TEST_P(EngineOnTinyModels, NothingChangesAnOutput) {
  int models = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t cached_tokens = 0;
  for (const auto& entry : testing::golden_models()) {
    if (entry.draft_path().empty()) continue;
    SCOPED_TRACE(entry.model_path);
    const Loaded loaded = load_served(entry.model_path, entry.draft_path(), GetParam(), 64);
    if (loaded.model == nullptr) continue;
    ++models;
    const int vocab = loaded.model->config().vocab;
    const auto requests = mixed_requests(32, vocab, 120, 40);
    const Outputs expected = serve_alone(*loaded.model, *loaded.tokenizer, requests);
    constexpr int kChunks[] = {1, 7, 64, 512};
    for (int k = 0; k <= 6; ++k) {
      const int chunk = kChunks[k % 4];
      const std::string what = fmt::format("k {}, chunk {}", k, chunk);
      const EngineOptions options = {.draft_length = k, .prefill_chunk = chunk};
      expect_same(expected, serve(*loaded.model, *loaded.tokenizer, options, requests).outputs,
                  what + ", 32 streams");
      SmallerRunner tight(*loaded.model, kv_bytes(*loaded.model, 4, 160));
      EngineOptions cached = options;
      cached.prefix_cache_bytes = tight.limits().kv_memory_bytes;
      const Served run = serve(tight, *loaded.tokenizer, cached, requests, k, 5);
      expect_same(expected, run.outputs, what + ", little memory");
      preemptions += run.stats.preemptions;
      cached_tokens += run.stats.cached_tokens;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(models, 0);
  EXPECT_GT(preemptions, 0U);
  EXPECT_GT(cached_tokens, 0U);
}

TEST_P(EngineOnTinyModels, PromptLogprobsAreThoseOfTheModelsLogits) {
  for (const auto& entry : testing::golden_models()) {
    if (entry.draft_path().empty()) continue;
    SCOPED_TRACE(entry.model_path);
    const Loaded loaded = load_served(entry.model_path, entry.draft_path(), GetParam(), 64);
    if (loaded.model == nullptr) continue;
    const auto vocab = static_cast<std::size_t>(loaded.model->config().vocab);
    std::mt19937 random(3);
    Request request;
    request.id = 1;
    request.prompt = random_tokens(random, static_cast<int>(vocab), 70);
    request.prompt_logprobs = 1;
    request.max_tokens = 1;
    std::vector<float> expected;
    const auto logits = loaded.model->score(request.prompt, 32, 0);
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    for (std::size_t i = 0; i + 1 < request.prompt.size(); ++i) {
      const auto row = std::span(*logits).subspan(i * vocab, vocab);
      double total = 0.0;
      for (const float x : row) total += std::exp(static_cast<double>(x));
      const auto logprob = [&](float x) {
        return static_cast<float>(static_cast<double>(x) - std::log(total));
      };
      expected.push_back(logprob(row[static_cast<std::size_t>(request.prompt[i + 1])]));
      expected.push_back(logprob(*std::max_element(row.begin(), row.end())));
    }
    const Outputs outputs = serve_alone(*loaded.model, *loaded.tokenizer, {request});
    const std::vector<float>& said = outputs.at(1).prompt_logprobs;
    ASSERT_EQ(said.size(), expected.size());
    for (std::size_t i = 0; i < said.size(); ++i) EXPECT_NEAR(said[i], expected[i], 1e-4) << i;
  }
}

TANDEM_FOR_EACH_BACKEND(Backend, EngineOnTinyModels);

class EngineOnDemo : public ::testing::Test {
 protected:
  void SetUp() override {
    loaded_ = load_served(testing::demo_path(testing::kDemoTarget),
                          testing::demo_path(testing::kDemoDrafter), "cpu", 512);
    ASSERT_NE(loaded_.model, nullptr);
    // TANDEM_TEST_LONG makes a long run of it.
    const bool is_long = std::getenv("TANDEM_TEST_LONG") != nullptr;
    const auto prompts = demo_prompts(*loaded_.tokenizer, is_long ? 200 : 32);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      Request request;
      request.id = i + 1;
      request.prompt = prompts[i];
      request.max_tokens = is_long ? 256 : 20;
      request.sampling = {.temperature = 0.0F};
      if (i % 4 == 3) request.sampling = {.temperature = 0.8F, .top_p = 0.95F, .seed = i};
      requests_.push_back(std::move(request));
    }
  }
  Loaded loaded_;
  std::vector<Request> requests_;
};

TEST_F(EngineOnDemo, NothingChangesAnOutput) {
  const Outputs expected = serve_alone(*loaded_.model, *loaded_.tokenizer, requests_);
  constexpr int kChunks[] = {512, 64, 7, 1};
  std::uint64_t preemptions = 0;
  for (int k = -1; k <= 6; ++k) {
    const int chunk = kChunks[(k + 1) % 4];
    const EngineOptions options = {.draft_length = k, .prefill_chunk = chunk};
    const Served run = serve(*loaded_.model, *loaded_.tokenizer, options, requests_, 1);
    expect_same(expected, run.outputs, fmt::format("k {}, chunk {}", k, chunk));
    if (k > 0) {
      const double mean = 1.0 + static_cast<double>(run.stats.accepted_at[0]) /
                                    static_cast<double>(run.stats.drafted_at[0]);
      EXPECT_GT(mean, 1.3) << "the demo's drafter accepts more";
    }
    SmallerRunner tight(*loaded_.model, kv_bytes(*loaded_.model, 4, 300));
    EngineOptions cached = options;
    cached.prefix_cache_bytes = tight.limits().kv_memory_bytes;
    const Served small = serve(tight, *loaded_.tokenizer, cached, requests_, 0, 5);
    expect_same(expected, small.outputs, fmt::format("k {}, chunk {}, little memory", k, chunk));
    preemptions += small.stats.preemptions;
    if (HasFailure()) return;
  }
  EXPECT_GT(preemptions, 0U);
}

TEST_F(EngineOnDemo, FollowUpQuestionsHitTheCacheAndSayTheSame) {
  // A second turn: prompt, answer, and one more question; alone, and after the first turn.
  requests_.resize(16);
  const EngineOptions options = {.draft_length = 3,
                                 .prefix_cache_bytes = loaded_.model->limits().kv_memory_bytes};
  double time = 0;
  auto made = EngineCore::create(*loaded_.model, *loaded_.tokenizer, options,
                                 [&time] { return time += 1e-3; });
  ASSERT_TRUE(made.ok());
  Outputs outputs;
  const auto run = [&](const std::vector<Request>& requests) {
    for (const Request& request : requests) {
      (*made)->add(request, [&outputs](const Event& event) {
        auto& tokens = outputs[event.request_id].tokens;
        tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
      });
    }
    while ((*made)->has_work()) {
      (*made)->step([&] { (*made)->deliver(); });
    }
    (*made)->deliver();
  };
  run(requests_);
  std::vector<Request> second = requests_;
  const auto question =
      loaded_.tokenizer->encode("\n<|turn>user\nWhy?<turn|>\n<|turn>model\n", true);
  int history = 0;
  for (Request& request : second) {
    const auto& answer = outputs.at(request.id).tokens;
    request.prompt.insert(request.prompt.end(), answer.begin(), answer.end());
    history += static_cast<int>(request.prompt.size());
    request.prompt.insert(request.prompt.end(), question.begin(), question.end());
    request.id += 1000;
  }
  run(second);
  const Outputs expected = serve_alone(*loaded_.model, *loaded_.tokenizer, second);
  for (const Request& request : second) {
    EXPECT_EQ(outputs.at(request.id).tokens, expected.at(request.id).tokens);
  }
  // All of the history but the last page, which is not full.
  const int page = loaded_.model->limits().kv.page_tokens;
  EXPECT_GE(static_cast<int>((*made)->stats().cached_tokens), history - 16 * (page + 1));
}

}  // namespace
}  // namespace tandem::engine
