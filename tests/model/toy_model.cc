#include "toy_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <string_view>

namespace tandem::testing {
namespace {

constexpr int kVocab = 64;
constexpr int kTargetWidth = 32;
constexpr int kHeadSizes[] = {32, 64};  // sliding, full

struct Shape {
  std::string family;
  int width = 0;
  int ffn = 0;
  int ple = 0;
  std::string layers;  // "SSF"
  int shared = 0;
  int heads = 0;
  int kv_heads_sliding = 0;
  int kv_heads_full = 0;
  bool value_is_key = false;
};

class Builder {
 public:
  explicit Builder(const Shape& shape) : s_(shape) {}

  GgufContents build() {
    add_keys();
    add_tokenizer();
    matrix("token_embd.weight", kVocab, s_.width);
    norm("output_norm.weight", s_.width);
    add_rope_factors();
    if (s_.ple > 0) add_ple_inputs();
    for (std::size_t l = 0; l < s_.layers.size(); ++l) add_layer(static_cast<int>(l));
    return std::move(out_);
  }

 private:
  template <typename T>
  void key(std::string_view name, T value) {
    out_.keys[fmt::format("{}.{}", s_.family, name)] = value;
  }
  void uint_key(std::string_view name, int value) { key(name, static_cast<std::uint32_t>(value)); }

  void matrix(const std::string& name, int rows, int cols) {
    std::normal_distribution<float> value(0.0F, 1.0F / std::sqrt(static_cast<float>(cols)));
    fill(name, {rows, cols}, value);
  }
  void norm(const std::string& name, int size) {
    std::uniform_real_distribution<float> value(0.7F, 1.3F);
    fill(name, {size}, value);
  }
  template <typename Distribution>
  void fill(const std::string& name, std::vector<std::int64_t> shape, Distribution& value) {
    std::int64_t count = 1;
    for (std::int64_t n : shape) count *= n;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& x : values) x = value(random_);
    out_.set_f32(name, std::move(shape), values);
  }

  void add_keys() {
    std::vector<bool> sliding;
    std::vector<std::int32_t> kv_heads;
    for (char kind : s_.layers) {
      sliding.push_back(kind == 'S');
      kv_heads.push_back(kind == 'S' ? s_.kv_heads_sliding : s_.kv_heads_full);
    }
    out_.keys["general.architecture"] = s_.family;
    out_.keys["general.name"] = std::string("Toy");
    uint_key("block_count", static_cast<int>(s_.layers.size()));
    uint_key("context_length", 1024);
    uint_key("embedding_length", s_.width);
    uint_key("feed_forward_length", s_.ffn);
    uint_key("attention.head_count", s_.heads);
    key("attention.head_count_kv", kv_heads);
    key("attention.sliding_window_pattern", sliding);
    uint_key("attention.sliding_window", 8);
    uint_key("attention.shared_kv_layers", s_.shared);
    key("attention.layer_norm_rms_epsilon", 1e-6F);
    for (const auto& [suffix, size] : {std::pair("_swa", kHeadSizes[0]), {"", kHeadSizes[1]}}) {
      uint_key(fmt::format("attention.key_length{}", suffix), size);
      uint_key(fmt::format("attention.value_length{}", suffix), size);
      uint_key(fmt::format("rope.dimension_count{}", suffix), size);
    }
    key("rope.freq_base", 1e6F);
    key("rope.freq_base_swa", 1e4F);
    uint_key("embedding_length_per_layer_input", s_.ple);
    if (s_.family == "gemma4") key("final_logit_softcapping", 30.0F);
  }

  void add_tokenizer() {
    std::vector<std::string> tokens = {"<pad>", "<eos>", "<bos>", "<unk>"};
    std::vector<std::int32_t> kinds = {3, 3, 3, 3};
    while (tokens.size() < kVocab) {
      tokens.push_back(fmt::format("t{}", tokens.size()));
      kinds.push_back(1);
    }
    out_.keys["tokenizer.ggml.model"] = std::string("gemma4");
    out_.keys["tokenizer.ggml.tokens"] = tokens;
    out_.keys["tokenizer.ggml.token_type"] = kinds;
    out_.keys["tokenizer.ggml.merges"] = std::vector<std::string>{"t4 t5"};
    out_.keys["tokenizer.ggml.bos_token_id"] = std::uint32_t{2};
    out_.keys["tokenizer.ggml.eos_token_id"] = std::uint32_t{1};
    out_.keys["tokenizer.chat_template"] = std::string("{{ bos_token }}");
  }

  void add_rope_factors() {
    std::vector<float> factors(static_cast<std::size_t>(kHeadSizes[1]) / 2, 1e30F);
    std::fill_n(factors.begin(), factors.size() / 4, 1.0F);
    out_.set_f32("rope_freqs.weight", {kHeadSizes[1] / 2}, factors);
  }

  void add_ple_inputs() {
    const int width = s_.ple * static_cast<int>(s_.layers.size());
    matrix("per_layer_token_embd.weight", kVocab, width);
    matrix("per_layer_model_proj.weight", width, s_.width);
    norm("per_layer_proj_norm.weight", s_.ple);
  }

  void add_layer(int l) {
    const bool is_full = s_.layers[static_cast<std::size_t>(l)] == 'F';
    const int head_size = kHeadSizes[is_full ? 1 : 0];
    const int kv_heads = is_full ? s_.kv_heads_full : s_.kv_heads_sliding;
    const auto name = [l](std::string_view tensor) {
      return fmt::format("blk.{}.{}.weight", l, tensor);
    };
    for (std::string_view tensor :
         {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"}) {
      norm(name(tensor), s_.width);
    }
    matrix(name("attn_q"), s_.heads * head_size, s_.width);
    norm(name("attn_q_norm"), head_size);
    matrix(name("attn_output"), s_.width, s_.heads * head_size);
    if (l < static_cast<int>(s_.layers.size()) - s_.shared) {
      matrix(name("attn_k"), kv_heads * head_size, s_.width);
      norm(name("attn_k_norm"), head_size);
      if (!is_full || !s_.value_is_key) matrix(name("attn_v"), kv_heads * head_size, s_.width);
    }
    matrix(name("ffn_gate"), s_.ffn, s_.width);
    matrix(name("ffn_up"), s_.ffn, s_.width);
    matrix(name("ffn_down"), s_.width, s_.ffn);
    norm(name("layer_output_scale"), 1);
    if (s_.ple == 0) return;
    matrix(name("inp_gate"), s_.ple, s_.width);
    matrix(name("proj"), s_.width, s_.ple);
    norm(name("post_norm"), s_.width);
  }

  Shape s_;
  GgufContents out_;
  std::mt19937 random_{1};
};

}  // namespace

GgufContents toy_e_series() {
  Shape shape;
  shape.family = "gemma4";
  shape.width = kTargetWidth;
  shape.ffn = 64;
  shape.ple = 32;
  shape.layers = "SFSF";
  shape.shared = 2;
  shape.heads = 4;
  shape.kv_heads_sliding = shape.kv_heads_full = 1;
  return Builder(shape).build();
}

GgufContents toy_dense() {
  Shape shape;
  shape.family = "gemma4";
  shape.width = kTargetWidth;
  shape.ffn = 64;
  shape.layers = "SSF";
  shape.heads = 4;
  shape.kv_heads_sliding = 2;
  shape.kv_heads_full = 1;
  shape.value_is_key = true;
  return Builder(shape).build();
}

GgufContents toy_drafter() {
  Shape shape;
  shape.family = "gemma4-assistant";
  shape.width = 32;
  shape.ffn = 64;
  shape.layers = "SSSF";
  shape.shared = 4;
  shape.heads = 2;
  shape.kv_heads_sliding = shape.kv_heads_full = 1;
  GgufContents out = Builder(shape).build();
  out.keys["gemma4-assistant.embedding_length_out"] = std::uint32_t{kTargetWidth};
  const std::vector<float> pre(32 * 2 * kTargetWidth, 0.1F);
  const std::vector<float> post(kTargetWidth * 32, 0.1F);
  out.set_f32("nextn.pre_projection.weight", {32, 2 * kTargetWidth}, pre);
  out.set_f32("nextn.post_projection.weight", {kTargetWidth, 32}, post);
  return out;
}

TemporaryFile::TemporaryFile(const GgufContents& contents) {
  static int count = 0;
  path_ = fmt::format("{}tandem-{}-{}.gguf", ::testing::TempDir(), getpid(), count++);
  contents.write(path_);
}

TemporaryFile::~TemporaryFile() {
  std::filesystem::remove(path_);
}

}  // namespace tandem::testing
