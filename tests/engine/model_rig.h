#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tandem/engine/engine_core.h"
#include "tandem/model/model.h"

namespace tandem::testing {

using engine::EngineOptions;
using engine::EngineStats;
using engine::Request;

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
  core::Result<kernels::StepResult> step(const kernels::StepPlan& plan,
                                         const std::function<void()>& meanwhile) override {
    return model_->step(plan, meanwhile);
  }

 private:
  model::Model* model_;
  Limits limits_;
};

/// What a request said.
struct Said {
  std::vector<TokenId> tokens;
  std::string text;
  std::vector<float> logprobs;  ///< per token: its own, then those of the likeliest
  std::vector<float> prompt_logprobs;
  engine::FinishReason finish = engine::FinishReason::kError;

  bool operator==(const Said&) const = default;
};
using Outputs = std::map<std::uint64_t, Said>;

struct Served {
  Outputs outputs;
  EngineStats stats;
};

/// Runs requests through a fresh engine; `stagger` steps lie between two arrivals. With
/// `preempt_every` > 0, every so many steps a request is preempted.
Served serve(model::StepRunner& runner, const tokenizer::Tokenizer& tokenizer,
             const EngineOptions& options, const std::vector<Request>& requests, int stagger = 0,
             int preempt_every = 0);

/// Each request alone, without drafts and cache, its prompt in one chunk.
Outputs serve_alone(model::StepRunner& runner, const tokenizer::Tokenizer& tokenizer,
                    const std::vector<Request>& requests);

struct Loaded {
  std::unique_ptr<model::Model> model;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
};

/// A pair with its tokenizer; no model where the pair cannot be loaded, see load().
Loaded load_served(const std::string& target, const std::string& draft, const std::string& backend,
                   std::size_t kv_mebibytes);

void expect_same(const Outputs& expected, const Outputs& outputs, const std::string& what);

/// KV bytes that `sequences` texts of `tokens` tokens fill.
std::size_t kv_bytes(const model::StepRunner& runner, int sequences, int tokens);

/// First questions of the demo's conversations as prompts.
std::vector<std::vector<TokenId>> demo_prompts(const tokenizer::Tokenizer& tokenizer, int count);

}  // namespace tandem::testing
