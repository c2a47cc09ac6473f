#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tandem/app/commands.h"
#include "tandem/chat/template_gemma4.h"
#include "tandem/core/status.h"
#include "tandem/engine/engine.h"
#include "tandem/model/model.h"
#include "tandem/model/model_files.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::app {

/// A target with its drafter, tokenizer and running engine. Destroyed last to first: the engine
/// uses the others.
struct LoadedModel {
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::optional<chat::TemplateVariant> template_variant;  ///< nothing: only plain completions
  /// What the model's files recommend; what they lack is Gemma's recommendation.
  kernels::SamplingParams sampling;
  std::string fingerprint;  ///< version, weights and backend, for system_fingerprint
  int max_context = 0;      ///< tokens of one request, after the model's own limit
  std::unique_ptr<model::Model> model;
  std::unique_ptr<engine::Engine> engine;
};

/// The template that a model's files bring along; nothing if they have none.
core::Result<std::optional<chat::TemplateVariant>> read_template_variant(
    const model::ModelFiles& files);

/// The backend that options.device names, or where it says auto the best that there is.
core::Result<std::unique_ptr<kernels::Backend>> make_backend(const ModelOptions& options);

/// Opens, checks and packs the pair and starts its engine; says so in the log. Every failure is one
/// sentence. Blocks for as long as packing takes.
core::Result<LoadedModel> load_model(const ModelOptions& options);

}  // namespace tandem::app
