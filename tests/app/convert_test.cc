// A model written in another form is the same model, as far as the form can hold it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "../formats/temporary_directory.h"
#include "tandem/app/commands.h"
#include "tandem/formats/safetensors_set.h"
#include "tandem/kernels/reference/reference_backend.h"
#include "tandem/model/model.h"
#include "tandem/model/model_files.h"

namespace tandem::app {
namespace {

using tandem::testing::TemporaryDirectory;
using ::testing::HasSubstr;

std::string tiny(const std::string& name) {
  return TANDEM_SOURCE_DIR "/tests/data/tiny/" + name;
}

std::unique_ptr<model::Model> load(const std::string& target, const std::string& draft = "") {
  model::LoadOptions options;
  options.target_path = target;
  options.draft_path = draft;
  options.kv_memory_bytes = 16 << 20;
  auto model = model::Model::load(options, kernels::make_reference_backend());
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? std::move(model).value() : nullptr;
}

std::vector<float> score(const std::string& path) {
  const auto model = load(path);
  if (model == nullptr) return {};
  const std::vector<TokenId> text = {2, 9, 33, 60, 7, 7, 21, 5, 44, 13, 50, 3};
  return model->score(text, 5, 0).value();
}

double rms_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += std::pow(a[i] - b[i], 2);
  return std::sqrt(squares / static_cast<double>(a.size()));
}

TEST(Convert, ABf16DirectoryKeepsEveryBit) {
  const TemporaryDirectory directory;
  for (const char* name : {"tiny-e2", "tiny-e2-assistant"}) {
    const std::string out = directory.file(name);
    ASSERT_EQ(convert_main({tiny(name), out, "bf16"}), 0);
    const auto before = formats::SafetensorsSet::open(tiny(name)).value();
    const auto after = formats::SafetensorsSet::open(out).value();
    ASSERT_EQ(after.tensors().size(), before.tensors().size());
    for (const auto& [tensor, view] : before.tensors()) {
      const core::TensorView* copy = after.find(tensor);
      ASSERT_NE(copy, nullptr) << tensor;
      EXPECT_EQ(copy->shape, view->shape) << tensor;
      ASSERT_EQ(copy->bytes(), view->bytes()) << tensor;
      EXPECT_TRUE(std::equal(view->data, view->data + view->bytes(), copy->data)) << tensor;
    }
  }
  EXPECT_EQ(score(directory.file("tiny-e2")), score(tiny("tiny-e2")));
  EXPECT_TRUE(
      load(directory.file("tiny-e2"), directory.file("tiny-e2-assistant"))->drafts_by_centroids());
}

TEST(Convert, ADirectoryMadeOfAGgufFileIsTheSameModel) {
  const TemporaryDirectory directory;
  const std::string out = directory.file("out");
  ASSERT_EQ(convert_main({tiny("tiny-e2-F16.gguf"), out, "bf16"}), 0);
  EXPECT_LT(rms_difference(score(out), score(tiny("tiny-e2-F16.gguf"))), 1e-3);
  const auto before = model::ModelFiles::open(tiny("tiny-e2-F16.gguf")).value();
  const auto after = model::ModelFiles::open(out).value();
  EXPECT_TRUE(model::check_same_vocab(*before, *after).ok());
  EXPECT_EQ(*after->chat_template(), *before->chat_template());
  EXPECT_EQ(after->sampling().top_k, before->sampling().top_k);
  EXPECT_EQ(after->vocab()->merges, before->vocab()->merges);
}

TEST(Convert, Fp8StaysCloseAndNamesItsScheme) {
  const TemporaryDirectory directory;
  const std::string out = directory.file("out");
  ASSERT_EQ(convert_main({tiny("tiny-e2"), out, "fp8"}), 0);
  const auto tensors = formats::SafetensorsSet::open(out).value();
  EXPECT_EQ(tensors.find("model.layers.0.mlp.up_proj.weight")->dtype, core::DType::kF8E4M3);
  EXPECT_EQ(tensors.find("model.layers.0.mlp.up_proj.weight_scale")->dtype, core::DType::kBF16);
  EXPECT_EQ(tensors.find("model.embed_tokens.weight")->dtype, core::DType::kBF16);
  EXPECT_THAT(directory.read("out/config.json"), HasSubstr("\"float-quantized\""));
  const double difference = rms_difference(score(out), score(tiny("tiny-e2")));
  EXPECT_GT(difference, 0.0);
  EXPECT_LT(difference, 0.5);
  ASSERT_EQ(convert_main({out, directory.file("back"), "bf16"}), 0);
  EXPECT_LT(rms_difference(score(directory.file("back")), score(tiny("tiny-e2"))), 0.5);
}

TEST(Convert, AnAssistantBecomesAGgufFileWithItsCentroids) {
  const TemporaryDirectory directory;
  const std::string out = directory.file("draft.gguf");
  ASSERT_EQ(convert_main({tiny("tiny-e2-assistant"), out, "q8_0"}), 0);
  const auto files = model::ModelFiles::open(out).value();
  const auto config = files->config();
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->family, "gemma4-assistant");
  EXPECT_EQ(config->hidden, 32);
  EXPECT_EQ(config->centroids_per_token, 4);
  for (const char* target : {"tiny-e2", "tiny-e2-Q8_0.gguf"}) {
    const auto model = load(tiny(target), out);
    ASSERT_NE(model, nullptr);
    EXPECT_TRUE(model->drafts_by_centroids());
  }
}

TEST(Convert, SaysWhatItCannotWrite) {
  const TemporaryDirectory directory;
  EXPECT_EQ(convert_main({tiny("tiny-e2"), directory.file("x"), "q8_0"}), 1);
  EXPECT_EQ(convert_main({tiny("tiny-e2-assistant"), directory.file("x"), "fp8"}), 1);
  EXPECT_EQ(convert_main({tiny("tiny-moe-Q8_0.gguf"), directory.file("x"), "bf16"}), 1);
  EXPECT_EQ(convert_main({tiny("tiny-e2"), directory.path(), "bf16"}), 1);
  EXPECT_EQ(convert_main({tiny("tiny-e2"), "/dev/null/place", "bf16"}), 1);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(Convert, LeavesNothingBehindWhenItFails) {
  const TemporaryDirectory directory;
  // The directory of the output cannot be written over: something else has its name at the end.
  const std::string cut = directory.file("cut");
  std::filesystem::copy(tiny("tiny-e2"), cut);
  directory.write("cut/tokenizer.json", "{}");
  EXPECT_EQ(convert_main({cut, directory.file("out"), "fp8"}), 1);
  EXPECT_EQ(convert_main({tiny("tiny-e2-assistant"), directory.file("no/place/x.gguf"), "q8_0"}),
            1);
  for (const char* name : {"out", "out.incomplete", "no"}) {
    EXPECT_FALSE(std::filesystem::exists(directory.file(name))) << name;
  }
}

TEST(Convert, DoesNotWriteOverWhatAnEarlierRunLeft) {
  const TemporaryDirectory directory;
  directory.write("out.incomplete", "kept");
  EXPECT_EQ(convert_main({tiny("tiny-e2"), directory.file("out/"), "bf16"}), 1);
  EXPECT_EQ(directory.read("out.incomplete"), "kept");
}

TEST(Convert, SuppressedTokensStayWithAnAssistant) {
  const TemporaryDirectory directory;
  const std::string source = directory.file("assistant");
  std::filesystem::copy(tiny("tiny-e2-assistant"), source);
  directory.write("assistant/generation_config.json", R"({"suppress_tokens": [7, 9]})");
  for (const char* form : {"bf16", "q8_0"}) {
    const std::string out = directory.file(form);
    ASSERT_EQ(convert_main({source, out, form}), 0);
    EXPECT_EQ(model::ModelFiles::open(out).value()->config()->suppressed,
              (std::vector<TokenId>{7, 9}));
  }
}

}  // namespace
}  // namespace tandem::app
