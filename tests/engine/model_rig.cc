#include "model_rig.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <random>
#include <sstream>

#include "support.h"
#include "tandem/model/model_files.h"

namespace tandem::testing {
namespace {

void record(const engine::Event& event, Said& said) {
  said.tokens.insert(said.tokens.end(), event.tokens.begin(), event.tokens.end());
  said.text += event.text;
  for (const auto& [from, to] : {std::pair(&event.logprobs, &said.logprobs),
                                 {&event.prompt_logprobs, &said.prompt_logprobs}}) {
    for (const kernels::TokenLogprobs& logprobs : *from) {
      to->push_back(logprobs.chosen.logprob);
      for (const auto& [token, logprob] : logprobs.top) to->push_back(logprob);
    }
  }
  if (event.finish) said.finish = *event.finish;
}

}  // namespace

Served serve(model::StepRunner& runner, const tokenizer::Tokenizer& tokenizer,
             const EngineOptions& options, const std::vector<Request>& requests, int stagger,
             int preempt_every) {
  std::mt19937 random(1);
  double time = 0;
  auto made =
      engine::EngineCore::create(runner, tokenizer, options, [&time] { return time += 1e-3; });
  EXPECT_TRUE(made.ok()) << made.status().message();
  engine::EngineCore& core = **made;
  Served run;
  std::size_t added = 0;
  for (int step = 0; added < requests.size() || core.has_work(); ++step) {
    while (added < requests.size() && (stagger == 0 || step >= stagger * static_cast<int>(added))) {
      EXPECT_TRUE(core.check_request(requests[added]).ok());
      core.add(requests[added++], [&run](const engine::Event& event) {
        record(event, run.outputs[event.request_id]);
        EXPECT_TRUE(event.error.ok()) << event.error.message();
      });
    }
    if (!core.has_work()) continue;
    if (preempt_every > 0 && step % preempt_every == 0) {
      core.preempt(requests[random() % added].id);
    }
    core.step([&core] { core.deliver(); });
    const core::Status invariants = core.check_invariants();
    EXPECT_TRUE(invariants.ok()) << invariants.message();
    if (::testing::Test::HasFailure()) break;
  }
  core.deliver();
  run.stats = core.stats();
  return run;
}

Outputs serve_alone(model::StepRunner& runner, const tokenizer::Tokenizer& tokenizer,
                    const std::vector<Request>& requests) {
  Outputs outputs;
  for (const Request& request : requests) {
    const EngineOptions options = {.draft_length = 0, .prefix_cache = false};
    outputs.merge(serve(runner, tokenizer, options, {request}).outputs);
  }
  return outputs;
}

Loaded load_served(const std::string& target, const std::string& draft, const std::string& backend,
                   std::size_t kv_mebibytes) {
  model::LoadOptions options;
  options.kv_memory_bytes = kv_mebibytes << 20;
  Loaded loaded;
  loaded.model = load(target, draft, make_backend(backend), options);
  if (loaded.model == nullptr) return {};
  const auto files = model::ModelFiles::open(target);
  EXPECT_TRUE(files.ok());
  auto vocab = (*files)->vocab();
  EXPECT_TRUE(vocab.ok()) << vocab.status().message();
  auto made = tokenizer::Tokenizer::create(std::move(vocab).value());
  EXPECT_TRUE(made.ok()) << made.status().message();
  loaded.tokenizer = std::move(made).value();
  return loaded;
}

void expect_same(const Outputs& expected, const Outputs& outputs, const std::string& what) {
  EXPECT_EQ(outputs.size(), expected.size()) << what;
  for (const auto& [id, said] : expected) {
    const auto it = outputs.find(id);
    ASSERT_NE(it, outputs.end()) << what;
    EXPECT_EQ(it->second.tokens, said.tokens) << "request " << id << ", " << what;
    EXPECT_EQ(it->second.logprobs, said.logprobs) << "request " << id << ", " << what;
    EXPECT_EQ(it->second.prompt_logprobs, said.prompt_logprobs) << "request " << id << ", " << what;
    EXPECT_EQ(it->second.text, said.text) << "request " << id << ", " << what;
    EXPECT_EQ(it->second.finish, said.finish) << "request " << id << ", " << what;
  }
}

std::size_t kv_bytes(const model::StepRunner& runner, int sequences, int tokens) {
  const kernels::KvLayout& kv = runner.limits().kv;
  const auto pages = static_cast<std::size_t>(tokens / kv.page_tokens + 2);
  return static_cast<std::size_t>(sequences) * pages * (kv.page_bytes[0] + kv.page_bytes[1]);
}

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

}  // namespace tandem::testing
