#include "tandem/model/write_config.h"

#include <algorithm>
#include <boost/json.hpp>

#include "tandem/model/config_build.h"

namespace tandem::model {
namespace {

namespace json = boost::json;
using kernels::AttentionKind;

/// What all layers of a kind have in common; a kind that no layer has takes the other's.
const LayerConfig& layer_of(const ModelConfig& config, AttentionKind kind) {
  for (const LayerConfig& layer : config.layers) {
    if (layer.kind == kind) return layer;
  }
  return config.layers.front();
}

json::object rope_json(const ModelConfig& config) {
  json::object out = {{"sliding_attention",
                       {{"rope_type", "default"},
                        {"rope_theta", config.rope_bases[index_of(AttentionKind::kSliding)]}}}};
  const auto& full = config.rope_frequencies[index_of(AttentionKind::kFull)];
  double rotated = 0.25;  // a drafter's file may leave it to the target
  if (!full.empty()) {
    const auto turning = std::count_if(full.begin(), full.end(), [](float f) { return f != 0.0F; });
    rotated = static_cast<double>(turning) / static_cast<double>(full.size());
  }
  out["full_attention"] = {{"rope_type", "proportional"},
                           {"partial_rotary_factor", rotated},
                           {"rope_theta", config.rope_bases[index_of(AttentionKind::kFull)]}};
  return out;
}

json::object text_json(const ModelConfig& config) {
  const LayerConfig& sliding = layer_of(config, AttentionKind::kSliding);
  const LayerConfig& full = layer_of(config, AttentionKind::kFull);
  json::array kinds;
  for (const LayerConfig& layer : config.layers) {
    kinds.emplace_back(layer.kind == AttentionKind::kFull ? "full_attention" : "sliding_attention");
  }
  const int first_ffn = config.layers.front().ffn;
  const int last_ffn = config.layers.back().ffn;
  // In a file of the family the layers that share KV are twice as wide, or all are alike.
  const bool is_double_wide = last_ffn == 2 * first_ffn;
  const bool value_is_key =
      full.value_is_key || (config.is_drafter() && full.kv_heads != sliding.kv_heads);
  json::object out = {
      {"model_type", "gemma4_text"},
      {"vocab_size", config.vocab},
      {"hidden_size", config.hidden},
      {"intermediate_size", first_ffn},
      {"num_hidden_layers", config.layers.size()},
      {"num_attention_heads", sliding.heads},
      {"num_key_value_heads", sliding.kv_heads},
      {"num_global_key_value_heads", value_is_key ? json::value(full.kv_heads) : nullptr},
      {"head_dim", sliding.head_size},
      {"global_head_dim", full.head_size},
      {"layer_types", std::move(kinds)},
      {"sliding_window", config.window},
      {"attention_k_eq_v", value_is_key},
      {"num_kv_shared_layers", static_cast<int>(config.layers.size()) - config.num_kv_owners()},
      {"use_double_wide_mlp", is_double_wide},
      {"hidden_size_per_layer_input", config.ple_width},
      {"vocab_size_per_layer_input", config.ple_width > 0 ? config.vocab : 0},
      {"enable_moe_block", false},
      {"max_position_embeddings", config.max_context},
      {"rms_norm_eps", config.rms_eps},
      {"hidden_activation", "gelu_pytorch_tanh"},
      {"final_logit_softcapping",
       config.final_softcap > 0.0F ? json::value(config.final_softcap) : nullptr},
      {"attention_bias", false},
      {"tie_word_embeddings", true},
      {"pad_token_id", 0},
      {"eos_token_id", 1},
      {"bos_token_id", 2},
      {"dtype", "bfloat16"},
      {"rope_parameters", rope_json(config)},
  };
  return out;
}

json::object fp8_scheme() {
  const auto side = [](const char* strategy, bool is_dynamic) {
    return json::object{{"num_bits", 8},
                        {"type", "float"},
                        {"strategy", strategy},
                        {"symmetric", true},
                        {"dynamic", is_dynamic}};
  };
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"quantization_status", "compressed"},
          {"kv_cache_scheme", nullptr},
          {"ignore", json::array{"lm_head"}},
          {"config_groups",
           {{"group_0",
             {{"targets", json::array{"Linear"}},
              {"weights", side("channel", false)},
              {"input_activations", side("token", true)},
              {"output_activations", nullptr}}}}}};
}

}  // namespace

std::string write_config_json(const ModelConfig& config, WeightForm form) {
  json::object out;
  if (config.is_drafter()) {
    out = {{"model_type", "gemma4_assistant"},
           {"architectures", json::array{"Gemma4AssistantForCausalLM"}},
           {"backbone_hidden_size", config.backbone_hidden},
           {"use_ordered_embeddings", true},
           {"centroid_intermediate_top_k", config.centroids_per_token},
           {"tie_word_embeddings", true},
           {"dtype", "bfloat16"},
           {"text_config", text_json(config)}};
  } else {
    out = text_json(config);
    out["architectures"] = json::array{"Gemma4ForCausalLM"};
  }
  out["tie_word_embeddings"] = form.is_tied;
  if (form.is_fp8) out["quantization_config"] = fp8_scheme();
  return json::serialize(out);
}

std::string write_generation_json(const ModelConfig& config, const tokenizer::VocabData& vocab,
                                  const kernels::SamplingParams& sampling) {
  std::vector<TokenId> ends = vocab.end_tokens;
  for (const TokenId id : {vocab.eos, vocab.eot}) {
    if (id >= 0) ends.push_back(id);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  json::object out = {{"bos_token_id", vocab.bos >= 0 ? vocab.bos : 2},
                      {"pad_token_id", 0},
                      {"eos_token_id", json::array(ends.begin(), ends.end())},
                      {"do_sample", sampling.temperature > 0.0F},
                      {"temperature", sampling.temperature},
                      {"top_k", sampling.top_k},
                      {"top_p", sampling.top_p}};
  if (!config.suppressed.empty()) {
    out["suppress_tokens"] = json::array(config.suppressed.begin(), config.suppressed.end());
  }
  return json::serialize(out);
}

namespace {

void add_tokenizer_keys(const tokenizer::VocabData& vocab, const std::string& chat_template,
                        formats::GgufKeys& keys) {
  std::vector<std::int32_t> kinds;
  for (const tokenizer::TokenKind kind : vocab.kinds)
    kinds.push_back(static_cast<std::int32_t>(kind));
  std::vector<std::string> merges;
  for (const auto& [left, right] : vocab.merges) merges.push_back(left + " " + right);
  keys.set("tokenizer.ggml.model", "gemma4");
  keys.set("tokenizer.ggml.tokens", vocab.tokens);
  keys.set("tokenizer.ggml.scores", std::vector<float>(vocab.tokens.size(), 0.0F));
  keys.set("tokenizer.ggml.token_type", kinds);
  keys.set("tokenizer.ggml.merges", merges);
  keys.set("tokenizer.ggml.bos_token_id", std::uint32_t{2});
  keys.set("tokenizer.ggml.eos_token_id", std::uint32_t{1});
  keys.set("tokenizer.ggml.unknown_token_id", std::uint32_t{3});
  keys.set("tokenizer.ggml.padding_token_id", std::uint32_t{0});
  keys.set("tokenizer.ggml.add_space_prefix", false);
  keys.set("tokenizer.ggml.add_bos_token", true);
  if (!chat_template.empty()) keys.set("tokenizer.chat_template", chat_template);
}

}  // namespace

formats::GgufKeys write_drafter_keys(const ModelConfig& config, const tokenizer::VocabData& vocab,
                                     const std::string& chat_template) {
  const LayerConfig& sliding = layer_of(config, AttentionKind::kSliding);
  const LayerConfig& full = layer_of(config, AttentionKind::kFull);
  const auto num_layers = static_cast<std::uint32_t>(config.layers.size());
  std::vector<bool> pattern;
  std::vector<std::int32_t> kv_heads;
  for (const LayerConfig& layer : config.layers) {
    pattern.push_back(layer.kind == AttentionKind::kSliding);
    kv_heads.push_back(layer.kv_heads);
  }
  formats::GgufKeys keys;
  const auto set = [&keys](std::string_view key, auto value) {
    keys.set("gemma4-assistant." + std::string(key), value);
  };
  const auto set_uint = [&set](std::string_view key, int value) {
    set(key, static_cast<std::uint32_t>(value));
  };
  keys.set("general.architecture", kDrafterFamily);
  keys.set("general.name", config.name);
  keys.set("general.file_type", std::uint32_t{7});
  keys.set("general.quantization_version", std::uint32_t{2});
  set("block_count", num_layers);
  set("nextn_predict_layers", num_layers);
  set("attention.shared_kv_layers", num_layers);
  set_uint("embedding_length", config.hidden);
  set_uint("embedding_length_out", config.backbone_hidden);
  set_uint("context_length", config.max_context);
  set_uint("feed_forward_length", config.layers.front().ffn);
  set_uint("attention.head_count", sliding.heads);
  set("attention.head_count_kv", kv_heads);
  for (const char* key :
       {"attention.key_length", "attention.value_length", "rope.dimension_count"}) {
    set_uint(key, full.head_size);
    set_uint(std::string(key) + "_swa", sliding.head_size);
  }
  set_uint("attention.sliding_window", config.window);
  set("attention.sliding_window_pattern", pattern);
  set("attention.layer_norm_rms_epsilon", config.rms_eps);
  set_uint("embedding_length_per_layer_input", 0);
  set_uint(kCentroidsKey, config.centroids_per_token);
  set("rope.freq_base", static_cast<float>(config.rope_bases[index_of(AttentionKind::kFull)]));
  set("rope.freq_base_swa",
      static_cast<float>(config.rope_bases[index_of(AttentionKind::kSliding)]));
  if (!config.suppressed.empty()) {
    keys.set(kSuppressKey, std::vector<std::int32_t>(config.suppressed));
  }
  add_tokenizer_keys(vocab, chat_template, keys);
  return keys;
}

}  // namespace tandem::model
