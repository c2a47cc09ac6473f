// Hugging Face directories as people have them: other prefixes, shards, odd offsets, scales of
// every kind; and what must be refused with one sentence.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "../formats/safetensors_image.h"
#include "../formats/temporary_directory.h"
#include "hf_copy.h"
#include "support.h"
#include "tandem/model/model_files.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing::load_files;
using testing::read_image;
using testing::replace_in;
using testing::SafetensorsImage;
using testing::score;
using testing::TemporaryDirectory;
using testing::tiny_directory;

/// A copy of a tiny checkpoint with other tensors.
void write_copy(const TemporaryDirectory& directory, const std::string& source,
                const SafetensorsImage& image) {
  directory.copy_from(tiny_directory(source));
  directory.write("model.safetensors", image.bytes());
}

SafetensorsImage with_prefix(const SafetensorsImage& image, const std::string& prefix) {
  SafetensorsImage out;
  for (const auto& [name, tensor] : image.tensors) {
    out.tensors[prefix + name.substr(std::string("model.").size())] = tensor;
  }
  return out;
}

TEST(HfLoad, AnyPrefixAndAnyOffset) {
  const auto expected = score(tiny_directory("tiny-e2"));
  const SafetensorsImage image = read_image(tiny_directory("tiny-e2"));
  for (const char* prefix : {"model.", "model.language_model.", "language_model.model.", ""}) {
    SCOPED_TRACE(prefix);
    const TemporaryDirectory directory;
    write_copy(directory, "tiny-e2", with_prefix(image, prefix));
    EXPECT_EQ(score(directory.path()), expected);
  }
}

TEST(HfLoad, ShardsAreOneModel) {
  const SafetensorsImage image = read_image(tiny_directory("tiny-e2"));
  SafetensorsImage halves[2];
  std::string map;
  for (const auto& [name, tensor] : image.tensors) {
    const std::size_t half = std::hash<std::string>()(name) % 2;
    halves[half].tensors[name] = tensor;
    map += fmt::format("{}\"{}\": \"part-{}.safetensors\"", map.empty() ? "" : ", ", name, half);
  }
  const TemporaryDirectory directory;
  directory.copy_from(tiny_directory("tiny-e2"));
  directory.remove("model.safetensors");
  for (int half : {0, 1}) {
    directory.write(fmt::format("part-{}.safetensors", half), halves[half].bytes());
  }
  directory.write("model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
  EXPECT_EQ(score(directory.path()), score(tiny_directory("tiny-e2")));
}

TEST(HfLoad, TowersAndATiedHeadStayUnused) {
  SafetensorsImage image =
      with_prefix(read_image(tiny_directory("tiny-e2")), "model.language_model.");
  image.tensors["model.vision_tower.patch.weight"] = {"F32", {1}, std::string(4, '\0')};
  image.tensors["model.audio_tower.conv.weight"] = {"I8", {1}, "x"};
  image.tensors["lm_head.weight"] = {"F32", {1}, std::string(4, '\0')};
  const TemporaryDirectory directory;
  write_copy(directory, "tiny-e2", image);
  EXPECT_EQ(score(directory.path()), score(tiny_directory("tiny-e2")));
  const auto files = model::ModelFiles::open(directory.path());
  ASSERT_TRUE(files.ok());
  EXPECT_EQ((*files)->describe_unused(),
            "1 tensors of model.audio_tower, 1 tensors of model.vision_tower");
}

TEST(HfLoad, KvTensorsOfLayersThatShareStayUnused) {
  SafetensorsImage image = read_image(tiny_directory("tiny-e2"));
  image.tensors["model.layers.3.self_attn.k_proj.weight"] = {"U8", {1}, "x"};
  const TemporaryDirectory directory;
  write_copy(directory, "tiny-e2", image);
  EXPECT_EQ(score(directory.path()), score(tiny_directory("tiny-e2")));
}

/// Renames "...weight_packed" and what belongs to it as ModelOpt does.
SafetensorsImage as_modelopt(const SafetensorsImage& image) {
  SafetensorsImage out;
  for (const auto& [name, tensor] : image.tensors) {
    if (name.ends_with("weight_packed")) {
      out.tensors[name.substr(0, name.size() - 7)] = tensor;
    } else if (name.ends_with("weight_global_scale")) {
      float divisor = 0;
      std::memcpy(&divisor, tensor.bytes.data(), sizeof divisor);
      const float factor = 1.0F / divisor;
      auto scale = tensor;
      scale.shape = {};
      std::memcpy(scale.bytes.data(), &factor, sizeof factor);
      const std::string base = name.substr(0, name.size() - std::strlen("weight_global_scale"));
      out.tensors[base + "weight_scale_2"] = scale;
      out.tensors[base + "input_scale"] = scale;
    } else {
      out.tensors[name] = tensor;
    }
  }
  return out;
}

TEST(HfLoad, BothSpellingsOfNvfp4AreTheSame) {
  const SafetensorsImage image = as_modelopt(read_image(tiny_directory("tiny-dense-nvfp4")));
  const TemporaryDirectory directory;
  write_copy(directory, "tiny-dense-nvfp4", image);
  replace_in(directory, "config.json", "\"compressed-tensors\"", "\"modelopt\"");
  EXPECT_EQ(score(directory.path()), score(tiny_directory("tiny-dense-nvfp4")));
}

TEST(HfLoad, Fp8ScalesOfAllShapesAndTypesAreTheSame) {
  const SafetensorsImage image = read_image(tiny_directory("tiny-e-fp8"));
  SafetensorsImage flat, wide;
  for (const auto& [name, tensor] : image.tensors) {
    flat.tensors[name] = wide.tensors[name] = tensor;
    if (!name.ends_with("weight_scale")) continue;
    flat.tensors[name].shape = {tensor.shape[0]};
    auto& values = wide.tensors[name];
    values.dtype = "F32";
    values.bytes.clear();
    for (std::size_t i = 0; i < tensor.bytes.size(); i += 2) {
      values.bytes += std::string(2, '\0') + tensor.bytes.substr(i, 2);
    }
  }
  const auto expected = score(tiny_directory("tiny-e-fp8"));
  for (const SafetensorsImage* changed : {&flat, &wide}) {
    const TemporaryDirectory directory;
    write_copy(directory, "tiny-e-fp8", *changed);
    EXPECT_EQ(score(directory.path()), expected);
  }
}

/// One scale for each block of 128 x 128, as two checkpoints spell it.
TEST(HfLoad, Fp8ScalesByBlock) {
  SafetensorsImage image = read_image(tiny_directory("tiny-e-fp8"));
  for (auto& [name, tensor] : image.tensors) {
    if (!name.ends_with("weight_scale")) continue;
    const std::int64_t rows = (tensor.shape[0] + 127) / 128;
    tensor.shape = {rows, 1};
    tensor.bytes.clear();
    for (std::int64_t r = 0; r < rows; ++r) tensor.bytes += std::string("\x80\x3b", 2);  // 1/256
  }
  SafetensorsImage inverse;
  for (const auto& [name, tensor] : image.tensors) {
    inverse.tensors[name + (name.ends_with("weight_scale") ? "_inv" : "")] = tensor;
  }
  std::vector<std::vector<float>> scores;
  for (const SafetensorsImage* spelled : {&image, &inverse}) {
    const TemporaryDirectory directory;
    write_copy(directory, "tiny-e-fp8", *spelled);
    replace_in(directory, "config.json", "\"quant_method\": \"compressed-tensors\",",
               "\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128],");
    scores.push_back(score(directory.path()));
    EXPECT_FALSE(scores.back().empty());
  }
  EXPECT_EQ(scores[0], scores[1]);
}

TEST(HfLoad, SamplingAndEndTokensComeFromGenerationConfig) {
  const TemporaryDirectory directory;
  directory.copy_from(tiny_directory("tiny-e2"));
  directory.write("generation_config.json",
                  R"({"eos_token_id": [1, 17], "temperature": 0.5, "top_k": 3, "top_p": 0.25})");
  const auto files = model::ModelFiles::open(directory.path());
  ASSERT_TRUE(files.ok());
  const auto sampling = (*files)->sampling();
  EXPECT_EQ(sampling.temperature, 0.5F);
  EXPECT_EQ(sampling.top_k, 3);
  EXPECT_EQ(sampling.top_p, 0.25F);
  const auto vocab = (*files)->vocab();
  ASSERT_TRUE(vocab.ok());
  EXPECT_THAT(vocab->end_tokens, ::testing::ElementsAre(1, 106, 1, 17));
  directory.write("generation_config.json", R"({"do_sample": false})");
  EXPECT_EQ((*model::ModelFiles::open(directory.path()))->sampling().temperature, 0.0F);
}

TEST(HfLoad, ChatTemplatesOfTokenizerConfig) {
  const TemporaryDirectory directory;
  directory.copy_from(tiny_directory("tiny-e2"));
  directory.remove("chat_template.jinja");
  const auto open = [&] {
    return model::ModelFiles::open(directory.path()).value();
  };
  EXPECT_EQ(open()->chat_template().status().code(), core::Code::kNotFound);
  directory.write("tokenizer_config.json", R"({"chat_template": "one"})");
  EXPECT_EQ(*open()->chat_template(), "one");
  directory.write("tokenizer_config.json",
                  R"({"chat_template": [{"name": "tool", "template": "t"},)"
                  R"({"name": "default", "template": "d"}]})");
  EXPECT_EQ(*open()->chat_template(), "d");
}

}  // namespace
}  // namespace tandem
