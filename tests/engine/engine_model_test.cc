// The flagship rule through the whole engine: what a request says depends on its prompt and its
// seed alone; not on drafts, chunks, other requests, preemption or the prefix cache.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "support.h"
#include "tandem/engine/engine_core.h"
#include "tandem/formats/gguf.h"

namespace tandem::engine {
namespace {

/// A model that pretends to have less KV memory, so that sequences must be preempted.
class SmallerRunner final : public model::StepRunner {
 public:
  SmallerRunner(model::Model& model, std::size_t kv_memory_bytes)
      : model_(&model), limits_(model.limits()) {
    limits_.kv_memory_bytes = kv_memory_bytes;
  }
  const Limits& limits() const override { return limits_; }
  void set_slot(int slot, const kernels::SamplingParams& sampling) override {
    model_->set_slot(slot, sampling);
  }
  core::Result<kernels::StepResult> step(const kernels::StepPlan& plan) override {
    return model_->step(plan);
  }

 private:
  model::Model* model_;
  Limits limits_;
};

using Outputs = std::map<std::uint64_t, std::vector<TokenId>>;

struct Served {
  Outputs outputs;
  EngineStats stats;
};

/// Runs requests through a fresh engine; `stagger` steps lie between two arrivals. With
/// `preempt_every` > 0, every so many steps a request is preempted.
Served serve(model::StepRunner& runner, const tokenizer::Tokenizer& tokenizer,
             const EngineOptions& options, const std::vector<Request>& requests, int stagger = 0,
             int preempt_every = 0) {
  std::mt19937 random(1);
  double time = 0;
  auto made = EngineCore::create(runner, tokenizer, options, [&time] { return time += 1e-3; });
  EXPECT_TRUE(made.ok()) << made.status().message();
  EngineCore& core = **made;
  Served run;
  std::size_t added = 0;
  for (int step = 0; added < requests.size() || core.has_work(); ++step) {
    while (added < requests.size() && (stagger == 0 || step >= stagger * static_cast<int>(added))) {
      EXPECT_TRUE(core.check_request(requests[added]).ok());
      core.add(requests[added++], [&run](const Event& event) {
        std::vector<TokenId>& tokens = run.outputs[event.request_id];
        tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
        EXPECT_TRUE(event.error.ok()) << event.error.message();
      });
    }
    if (!core.has_work()) continue;
    if (preempt_every > 0 && step % preempt_every == 0) {
      core.preempt(requests[random() % added].id);
    }
    core.step();
    core.deliver();
    const core::Status invariants = core.check_invariants();
    EXPECT_TRUE(invariants.ok()) << invariants.message();
    if (::testing::Test::HasFailure()) break;
  }
  run.stats = core.stats();
  return run;
}

/// Each request alone, without drafts and cache, its prompt in one chunk.
Outputs serve_alone(model::StepRunner& runner, const tokenizer::Tokenizer& tokenizer,
                    const std::vector<Request>& requests) {
  Outputs outputs;
  for (const Request& request : requests) {
    const EngineOptions options = {.draft_length = 0, .prefix_cache = false};
    outputs.merge(serve(runner, tokenizer, options, {request}).outputs);
  }
  return outputs;
}

struct Loaded {
  std::unique_ptr<model::Model> model;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
};

Loaded load(const std::string& target, const std::string& draft, const std::string& backend,
            std::size_t kv_mebibytes) {
  model::LoadOptions options;
  options.kv_memory_bytes = kv_mebibytes << 20;
  Loaded loaded;
  loaded.model = testing::load(target, draft, testing::make_backend(backend), options);
  if (loaded.model == nullptr) return {};
  auto file = formats::GgufFile::open(target);
  EXPECT_TRUE(file.ok());
  auto vocab = model::read_vocab(*file);
  EXPECT_TRUE(vocab.ok()) << vocab.status().message();
  auto made = tokenizer::Tokenizer::create(std::move(vocab).value());
  EXPECT_TRUE(made.ok()) << made.status().message();
  loaded.tokenizer = std::move(made).value();
  return loaded;
}

std::vector<TokenId> random_tokens(std::mt19937& random, int vocab, int count) {
  std::uniform_int_distribution<TokenId> token(3, vocab - 7);
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  std::generate(tokens.begin(), tokens.end(), [&] { return token(random); });
  return tokens;
}

/// Requests of many lengths of which every second one begins like another one; every third one
/// is sampled.
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
    request.ignore_eos = true;
    request.sampling = {.temperature = 0.0F};
    if (i % 3 == 2) request.sampling = {.temperature = 0.9F, .top_k = 50, .seed = random()};
    requests.push_back(std::move(request));
  }
  return requests;
}

void expect_same(const Outputs& expected, const Outputs& outputs, const std::string& what) {
  EXPECT_EQ(outputs.size(), expected.size()) << what;
  for (const auto& [id, tokens] : expected) {
    const auto it = outputs.find(id);
    ASSERT_NE(it, outputs.end()) << what;
    EXPECT_EQ(it->second, tokens) << "request " << id << ", " << what;
  }
}

/// KV bytes that `sequences` texts of `tokens` tokens fill.
std::size_t kv_bytes(const model::StepRunner& runner, int sequences, int tokens) {
  const kernels::KvLayout& kv = runner.limits().kv;
  const auto pages = static_cast<std::size_t>(tokens / kv.page_tokens + 2);
  return static_cast<std::size_t>(sequences) * pages * (kv.page_bytes[0] + kv.page_bytes[1]);
}

class EngineOnTinyModels : public testing::PerBackend {};

TEST_P(EngineOnTinyModels, NothingChangesAnOutput) {
  int models = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t cached_tokens = 0;
  for (const auto& entry : testing::golden_models()) {
    if (entry.draft_path.empty()) continue;
    SCOPED_TRACE(entry.model_path);
    const Loaded loaded = load(entry.model_path, entry.draft_path, GetParam(), 64);
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

TANDEM_FOR_EACH_BACKEND(Backend, EngineOnTinyModels);

/// First questions of the demo's conversations, as plain text.
std::vector<std::vector<TokenId>> demo_prompts(const tokenizer::Tokenizer& tokenizer, int count) {
  std::ifstream file(std::string(TANDEM_SOURCE_DIR) + "/models/demo/sharegpt-bench.json");
  std::stringstream text;
  text << file.rdbuf();
  std::vector<std::vector<TokenId>> prompts;
  const boost::json::value conversations = boost::json::parse(text.str());
  for (const auto& entry : conversations.as_array()) {
    const auto& turn = entry.at("conversations").at(0).at("value").as_string();
    const std::string question = fmt::format("<|turn>user\n{}<turn|>\n<|turn>model\n",
                                             std::string_view(turn.data(), turn.size()));
    prompts.push_back(tokenizer.encode(question, true));
    prompts.back().insert(prompts.back().begin(), tokenizer.bos());
    if (static_cast<int>(prompts.size()) == count) break;
  }
  return prompts;
}

class EngineOnDemo : public ::testing::Test {
 protected:
  void SetUp() override {
    loaded_ = load(testing::demo_path(testing::kDemoTarget),
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
        auto& tokens = outputs[event.request_id];
        tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
      });
    }
    while ((*made)->has_work()) {
      (*made)->step();
      (*made)->deliver();
    }
  };
  run(requests_);
  std::vector<Request> second = requests_;
  const auto question =
      loaded_.tokenizer->encode("\n<|turn>user\nWhy?<turn|>\n<|turn>model\n", true);
  int history = 0;
  for (Request& request : second) {
    const auto& answer = outputs.at(request.id);
    request.prompt.insert(request.prompt.end(), answer.begin(), answer.end());
    history += static_cast<int>(request.prompt.size());
    request.prompt.insert(request.prompt.end(), question.begin(), question.end());
    request.id += 1000;
  }
  run(second);
  const Outputs expected = serve_alone(*loaded_.model, *loaded_.tokenizer, second);
  for (const Request& request : second) {
    EXPECT_EQ(outputs.at(request.id), expected.at(request.id));
  }
  // All of the history but the last page, which is not full.
  const int page = loaded_.model->limits().kv.page_tokens;
  EXPECT_GE(static_cast<int>((*made)->stats().cached_tokens), history - 16 * (page + 1));
}

}  // namespace
}  // namespace tandem::engine
