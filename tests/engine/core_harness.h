#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "scripted_runner.h"
#include "tandem/engine/engine_core.h"

namespace tandem::testing {

using engine::EngineCore;
using engine::EngineOptions;
using engine::Event;
using engine::FinishReason;
using engine::Request;
using engine::Usage;

/// What came out of one request.
struct Received {
  std::vector<TokenId> tokens;
  std::string text;
  std::vector<kernels::TokenLogprobs> prompt_logprobs;
  std::optional<FinishReason> finish;
  core::Status error;
  Usage usage;
  int events_after_finish = 0;
  int longest_event = 0;
};

/// An EngineCore on a ScriptedRunner that checks every invariant after every step.
class Harness {
 public:
  Harness(const ScriptedRunner::Options& runner_options, const EngineOptions& options)
      : runner_(runner_options), tokenizer_(scripted_tokenizer()) {
    auto made = EngineCore::create(runner_, *tokenizer_, options, [this] { return time_ += 1e-3; });
    EXPECT_TRUE(made.ok()) << made.status().message();
    core_ = std::move(made).value();
  }

  EngineCore& core() { return *core_; }
  ScriptedRunner& runner() { return runner_; }
  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }
  Received& received(std::uint64_t id) { return received_[id]; }

  void add(const Request& request) {
    ASSERT_TRUE(core_->check_request(request).ok()) << core_->check_request(request).message();
    core_->add(request, [this](const Event& event) {
      Received& r = received_[event.request_id];
      if (r.finish.has_value()) ++r.events_after_finish;
      r.tokens.insert(r.tokens.end(), event.tokens.begin(), event.tokens.end());
      r.longest_event = std::max(r.longest_event, static_cast<int>(event.tokens.size()));
      r.text += event.text;
      r.prompt_logprobs.insert(r.prompt_logprobs.end(), event.prompt_logprobs.begin(),
                               event.prompt_logprobs.end());
      if (event.finish) r.finish = event.finish;
      r.error = event.error;
      r.usage = event.usage;
    });
  }

  void step() {
    step_without_delivery();
    core_->deliver();
    check();
  }
  /// What the step gathers is delivered during the next one.
  void step_without_delivery() {
    core_->step([this] { core_->deliver(); });
    check();
  }

  void run() {
    for (int i = 0; core_->has_work(); ++i) {
      ASSERT_LT(i, 100000) << "no end";
      step();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }

  void check() {
    const core::Status status = core_->check_invariants();
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(runner_.faults().empty()) << runner_.faults().front();
  }

  void expect_output(const ScriptedRunner::Options& options, const Request& request) {
    const Received& r = received_[request.id];
    const Expected expected = oracle(options.model, *tokenizer_, request, core_->context());
    EXPECT_EQ(r.tokens, expected.tokens) << "request " << request.id;
    EXPECT_EQ(r.text, expected.text) << "request " << request.id;
    ASSERT_TRUE(r.finish.has_value()) << "request " << request.id;
    EXPECT_EQ(*r.finish, expected.finish) << "request " << request.id;
    EXPECT_EQ(r.events_after_finish, 0);
    EXPECT_EQ(r.usage.prompt_tokens, static_cast<int>(request.prompt.size()));
    EXPECT_EQ(r.usage.completion_tokens, static_cast<int>(r.tokens.size()));
    EXPECT_LE(r.usage.accepted_tokens, r.usage.drafted_tokens);
    EXPECT_LT(r.usage.cached_tokens, r.usage.prompt_tokens);
  }

 private:
  ScriptedRunner runner_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::unique_ptr<EngineCore> core_;
  std::map<std::uint64_t, Received> received_;
  double time_ = 0;
};

inline std::vector<TokenId> letters(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> out;
  for (int i = 0; i < count; ++i) {
    out.push_back(kFirstLetter + static_cast<TokenId>(random() % 26));
  }
  return out;
}

inline Request make_request(std::uint64_t id, int prompt, int max_tokens, unsigned seed = 1) {
  Request request;
  request.id = id;
  request.prompt = letters(prompt, seed);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0.0F;
  return request;
}

}  // namespace tandem::testing
