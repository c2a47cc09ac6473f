#pragma once

#include <memory>
#include <string>

#include "tandem/app/commands.h"
#include "tandem/chat/template_gemma4.h"
#include "tandem/core/status.h"
#include "tandem/engine/engine.h"
#include "tandem/model/model.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::app {

/// A target with its drafter, tokenizer and running engine. Destroyed last to first: the engine
/// uses the others.
struct LoadedModel {
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  chat::TemplateVariant template_variant = chat::TemplateVariant::kOpenTurn;
  /// What the model's files recommend; what they lack is Gemma's recommendation.
  kernels::SamplingParams sampling;
  std::string fingerprint;  ///< version, weights and backend, for system_fingerprint
  int max_context = 0;      ///< tokens of one request, after the model's own limit
  std::unique_ptr<model::Model> model;
  std::unique_ptr<engine::Engine> engine;
};

/// Opens, checks and packs the pair and starts its engine; says so in the log. Every failure is one
/// sentence. Blocks for as long as packing takes.
core::Result<LoadedModel> load_model(const ModelOptions& options);

}  // namespace tandem::app
