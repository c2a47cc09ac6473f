#pragma once

#include <string>

#include "tandem/formats/tensor_writer.h"
#include "tandem/kernels/step.h"
#include "tandem/model/config.h"
#include "tandem/tokenizer/vocab.h"

namespace tandem::model {

/// What config.json says of the weights.
struct WeightForm {
  bool is_fp8 = false;  ///< FP8-Dynamic
  bool is_tied = true;  ///< the head is the embedding
};

/// The text of a config.json that reads back as `config`: a text-only target without experts, or an
/// assistant.
std::string write_config_json(const ModelConfig& config, WeightForm form);

/// The text of a generation_config.json with end tokens, suppressed tokens and sampling.
std::string write_generation_json(const ModelConfig& config, const tokenizer::VocabData& vocab,
                                  const kernels::SamplingParams& sampling);

/// The metadata of a GGUF file of a drafter, tokenizer included; spec/mtp.md section 2.
formats::GgufKeys write_drafter_keys(const ModelConfig& config, const tokenizer::VocabData& vocab,
                                     const std::string& chat_template);

}  // namespace tandem::model
