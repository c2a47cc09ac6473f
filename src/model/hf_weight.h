#pragma once

#include <string>

#include "tandem/core/status.h"
#include "tandem/formats/safetensors_set.h"
#include "tandem/kernels/weight.h"
#include "tandem/model/json_reader.h"

namespace tandem::model {

/// What config.json says of its quantized weights beyond the dtypes, spec/formats.md sections 6, 7.
struct WeightScheme {
  /// Activations are rounded to e4m3 before they meet F8_E4M3 weights.
  bool rounds_activations = true;
  /// FP8 weights have a scale for each block of this size; 0: for each output or one in all.
  int block_rows = 0;
  int block_cols = 0;
};

/// The scheme of a config.json, whose quantization_config may be at the top or in text_config.
/// kUnimplemented names a method that is not read.
core::Result<WeightScheme> read_weight_scheme(const JsonReader& top);

/// The weight `name` ("....weight") with its scales. The dtypes decide: F8_E4M3 with weight_scale
/// or weight_scale_inv, U8 with weight_scale and weight_scale_2 (ModelOpt), weight_packed with
/// weight_scale and weight_global_scale (compressed-tensors); anything else has no scales. Errors
/// as ModelFiles::weight; `path` is for messages.
core::Result<kernels::WeightView> hf_weight(const formats::SafetensorsSet& tensors,
                                            const WeightScheme& scheme, const std::string& name,
                                            const std::string& path);

bool has_hf_weight(const formats::SafetensorsSet& tensors, const std::string& name);

}  // namespace tandem::model
