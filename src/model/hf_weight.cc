#include "tandem/model/hf_weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "tandem/core/checked_math.h"
#include "tandem/formats/dequantize.h"
#include "tandem/model/config_build.h"
#include "tandem/model/model_files.h"

namespace tandem::model {
namespace {

namespace json = boost::json;
using core::DType;
using core::Result;
using core::Status;
using core::TensorView;
using kernels::WeightView;

constexpr std::string_view kWeight = "weight";
constexpr IntRange kBlock = {1, 1 << 16};
constexpr int kNvfp4Group = 16;

/// Two block sizes, [rows, columns], under `key`; zeros when missing.
Status read_block(const JsonReader& keys, std::string_view key, WeightScheme& scheme) {
  TANDEM_ASSIGN(const auto sizes, keys.optional_ints(key, kBlock));
  if (sizes.empty()) return {};
  if (sizes.size() != 2) {
    return keys.error(
        fmt::format("\"{}\" must be two sizes, but has {}", keys.name(key), sizes.size()));
  }
  scheme.block_rows = sizes[0];
  scheme.block_cols = sizes[1];
  return {};
}

/// The groups of compressed-tensors; all of a checkpoint's groups have one kind of activations.
Status read_groups(const JsonReader& groups, const json::object& names, WeightScheme& scheme) {
  scheme.rounds_activations = names.empty();
  for (const auto& [name, value] : names) {
    TANDEM_ASSIGN(const auto group, groups.optional_object(name));
    if (!group) continue;
    TANDEM_ASSIGN(const auto inputs, group->optional_object("input_activations"));
    TANDEM_ASSIGN(const auto weights, group->optional_object("weights"));
    scheme.rounds_activations = scheme.rounds_activations || inputs.has_value();
    if (weights) TANDEM_TRY(read_block(*weights, "block_structure", scheme));
  }
  return {};
}

Result<WeightScheme> read_scheme(const JsonReader& keys) {
  WeightScheme scheme;
  TANDEM_ASSIGN(const std::string method, keys.required_string("quant_method"));
  TANDEM_ASSIGN(const std::string format, keys.optional_string("format", ""));
  const auto formats_read = {"float-quantized", "nvfp4-pack-quantized", "naive-quantized",
                             "dense",           "mixed-precision",      ""};
  const bool is_read =
      method == "modelopt" || method == "fp8" ||
      (method == "compressed-tensors" &&
       std::find(formats_read.begin(), formats_read.end(), format) != formats_read.end());
  if (!is_read) {
    return core::unimplemented(fmt::format(
        "{}: weights quantized by {}{}{} are not supported; use a BF16, FP8 or NVFP4 checkpoint "
        "or a GGUF file",
        keys.file(), method, format.empty() ? "" : " as ", format));
  }
  TANDEM_TRY(read_block(keys, "weight_block_size", scheme));
  TANDEM_ASSIGN(const auto groups, keys.optional_object("config_groups"));
  if (method == "compressed-tensors" && groups) {
    TANDEM_TRY(read_groups(*groups, keys.find("config_groups")->get_object(), scheme));
  }
  return scheme;
}

/// Tensors that belong to one weight: "layers.0.mlp.up_proj." + "weight", "weight_scale", ...
class Companions {
 public:
  Companions(const formats::SafetensorsSet& tensors, const std::string& name,
             const std::string& path)
      : tensors_(tensors), base_(name.substr(0, name.size() - kWeight.size())), path_(path) {}

  const TensorView* find(std::string_view suffix) const {
    return tensors_.find(base_ + std::string(suffix));
  }
  Result<const TensorView*> require(std::string_view suffix) const {
    const TensorView* view = find(suffix);
    if (view != nullptr) return view;
    return core::data_loss(
        fmt::format("{}: tensor \"{}{}\" has no \"{}{}\"; the checkpoint is damaged, get it again",
                    path_, base_, kWeight, base_, suffix));
  }
  /// The one positive value of a tensor.
  Result<float> positive(std::string_view suffix) const {
    TANDEM_ASSIGN(const TensorView* view, require(suffix));
    float value = 0.0F;
    const bool is_plain = view->dtype == DType::kF32 || view->dtype == DType::kBF16;
    if (is_plain && view->elements() == 1) {
      formats::dequantize_row(view->dtype, view->data, 1, &value);
    }
    if (std::isfinite(value) && value > 0.0F) return value;
    return bad(suffix, "must be one positive F32 number");
  }
  Status bad(std::string_view suffix, std::string_view what) const {
    return core::data_loss(
        fmt::format("{}: tensor \"{}{}\" {}; the checkpoint is damaged, get it again", path_, base_,
                    suffix, what));
  }

 private:
  const formats::SafetensorsSet& tensors_;
  std::string base_;
  const std::string& path_;
};

Result<WeightView> fp8_weight(const TensorView& tensor, const WeightScheme& scheme,
                              const Companions& companions) {
  const std::string_view suffix =
      companions.find("weight_scale_inv") != nullptr ? "weight_scale_inv" : "weight_scale";
  TANDEM_ASSIGN(const TensorView* scales, companions.require(suffix));
  WeightView out = tensor;
  out.scales = *scales;
  const bool is_block = scheme.block_rows > 0;
  out.scale_rows = is_block ? scheme.block_rows : 1;
  out.scale_cols = is_block ? scheme.block_cols : tensor.cols();
  if (scales->elements() == 1) {
    out.scale_rows = tensor.rows();
    out.scale_cols = tensor.cols();
  }
  const std::int64_t expected =
      core::ceil_div(tensor.rows(), out.scale_rows) * core::ceil_div(tensor.cols(), out.scale_cols);
  if (scales->elements() != expected) {
    return companions.bad(suffix,
                          fmt::format("has {} values where {} are expected for {} x {} "
                                      "weights",
                                      scales->elements(), expected, tensor.rows(), tensor.cols()));
  }
  if (!scheme.rounds_activations) return out;
  out.e4m3_group = static_cast<int>(std::min<std::int64_t>(
      tensor.cols(), is_block && scales->elements() > 1 ? out.scale_cols : tensor.cols()));
  return out;
}

Result<WeightView> nvfp4_weight(const TensorView& tensor, float factor,
                                const Companions& companions) {
  TANDEM_ASSIGN(const TensorView* scales, companions.require("weight_scale"));
  WeightView out = tensor;
  out.scales = *scales;
  out.scale_rows = 1;
  out.scale_cols = kNvfp4Group;
  out.factor = factor;
  if (scales->dtype != DType::kF8E4M3 || out.cols() % kNvfp4Group != 0 ||
      scales->elements() != out.rows() * (out.cols() / kNvfp4Group)) {
    return companions.bad("weight_scale",
                          fmt::format("must be F8_E4M3 with one value for {} of the {} x {} "
                                      "weights",
                                      kNvfp4Group, out.rows(), out.cols()));
  }
  return out;
}

}  // namespace

Result<WeightScheme> read_weight_scheme(const JsonReader& top) {
  TANDEM_ASSIGN(const auto text, top.optional_object("text_config"));
  for (const JsonReader& place : {top, text.value_or(top)}) {
    TANDEM_ASSIGN(const auto keys, place.optional_object("quantization_config"));
    if (keys) return read_scheme(*keys);
  }
  return WeightScheme();
}

Result<WeightView> hf_weight(const formats::SafetensorsSet& tensors, const WeightScheme& scheme,
                             const std::string& name, const std::string& path) {
  const TensorView* tensor = tensors.find(name);
  if (!name.ends_with(".weight")) {
    return tensor == nullptr ? Result<WeightView>(missing_tensor(path, name)) : WeightView(*tensor);
  }
  const Companions companions(tensors, name, path);
  if (tensor == nullptr) {
    const TensorView* packed = companions.find("weight_packed");
    if (packed == nullptr) return missing_tensor(path, name);
    TANDEM_ASSIGN(const float divisor, companions.positive("weight_global_scale"));
    return nvfp4_weight(*packed, 1.0F / divisor, companions);
  }
  if (tensor->dtype == DType::kF8E4M3) return fp8_weight(*tensor, scheme, companions);
  if (tensor->dtype == DType::kU8) {
    TANDEM_ASSIGN(const float factor, companions.positive("weight_scale_2"));
    return nvfp4_weight(*tensor, factor, companions);
  }
  return WeightView(*tensor);
}

bool has_hf_weight(const formats::SafetensorsSet& tensors, const std::string& name) {
  if (tensors.find(name) != nullptr) return true;
  return name.ends_with(".weight") && tensors.find(name + "_packed") != nullptr;
}

}  // namespace tandem::model
