// Hugging Face directories that are damaged or do not belong together: each is refused with the one
// sentence that names the file, the tensor or member, and what to do.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>

#include "../formats/safetensors_image.h"
#include "../formats/temporary_directory.h"
#include "hf_copy.h"
#include "support.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing::SafetensorsImage;
using testing::TemporaryDirectory;

/// A change to a copy of a tiny model and the sentence it must cause.
struct Refusal {
  std::string name;
  std::function<void(const TemporaryDirectory&)> change;
  core::Code code;
  std::string message;
  std::string source = "tiny-e2";
};

/// Loads a directory as serving would: model, tokenizer and, where there is one, template.
core::Status load(const std::string& path) {
  TANDEM_ASSIGN(const auto files, model::ModelFiles::open(path));
  TANDEM_TRY(testing::load_files(path).status());
  TANDEM_ASSIGN(tokenizer::VocabData vocab, files->vocab());
  TANDEM_TRY(tokenizer::Tokenizer::create(std::move(vocab)).status());
  const core::Status chat_template = files->chat_template().status();
  return chat_template.code() == core::Code::kNotFound ? core::Status() : chat_template;
}

class DamagedHf : public ::testing::TestWithParam<Refusal> {};

TEST_P(DamagedHf, IsRefusedWithOneSentence) {
  const TemporaryDirectory directory;
  directory.copy_from(testing::tiny_directory(GetParam().source));
  ASSERT_TRUE(load(directory.path()).ok());
  GetParam().change(directory);
  const core::Status status = load(directory.path());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), GetParam().code) << status.message();
  EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
}

auto remove(std::string name) {
  return [=](const TemporaryDirectory& d) {
    d.remove(name);
  };
}
auto write(std::string name, std::string text) {
  return [=](const TemporaryDirectory& d) {
    d.write(name, text);
  };
}
auto replace(std::string name, std::string from, std::string to) {
  return [=](const TemporaryDirectory& d) {
    testing::replace_in(d, name, from, to);
  };
}
auto tensors(std::function<void(SafetensorsImage&)> change) {
  return [=](const TemporaryDirectory& d) {
    SafetensorsImage image = testing::read_image(d.path());
    change(image);
    d.write("model.safetensors", image.bytes());
  };
}
auto lose(std::string name) {
  return tensors([=](SafetensorsImage& image) { image.tensors.erase(name); });
}
/// Another shape over the same bytes.
auto reshape(std::string name, std::vector<std::int64_t> shape) {
  return tensors([=](SafetensorsImage& image) { image.tensors.at(name).shape = shape; });
}
auto set(std::string name, SafetensorsImage::Tensor tensor) {
  return tensors([=](SafetensorsImage& image) { image.tensors[name] = tensor; });
}

const core::Code kBad = core::Code::kDataLoss;
const core::Code kMissing = core::Code::kNotFound;
const core::Code kOther = core::Code::kUnimplemented;
const std::string kQ = "model.layers.0.self_attn.q_proj.weight";
const std::string kFp8Q = "model.language_model.layers.0.self_attn.q_proj.weight";
const std::string kNan = std::string("\xc0\x7f", 2);

INSTANTIATE_TEST_SUITE_P(
    Files, DamagedHf,
    ::testing::Values(
        Refusal{"NoConfig", remove("config.json"), kMissing, "there is no config.json"},
        Refusal{"EmptyConfig", write("config.json", ""), core::Code::kInvalidArgument,
                "config.json: the file is empty"},
        Refusal{"ConfigNotJson", write("config.json", "{\"a\":"), kBad, "config.json: is not JSON"},
        Refusal{"ConfigAsList", write("config.json", "[1]"), kBad,
                "config.json: is not a JSON object"},
        Refusal{"ConfigTooDeep", write("config.json", std::string(1000, '[')), kBad,
                "config.json: is not JSON"},
        Refusal{"ConfigNotUtf8", write("config.json", "{\"a\": \"\xff\"}"), kBad,
                "config.json: is not UTF-8, which JSON must be; download it again"},
        Refusal{"NoModelType", replace("config.json", "model_type", "model_kind"), kMissing,
                "\"model_type\" is missing"},
        Refusal{"NoWidth", replace("config.json", "\"hidden_size\"", "\"hidden\""), kMissing,
                "\"hidden_size\" is missing"},
        Refusal{"WidthAsText",
                replace("config.json", "\"hidden_size\": 64", "\"hidden_size\": \"64\""), kBad,
                "\"hidden_size\" must be 1 to 65536, but is \"64\""},
        Refusal{"NegativeLayers",
                replace("config.json", "\"num_hidden_layers\": 4", "\"num_hidden_layers\": -4"),
                kBad, "\"num_hidden_layers\" must be 1 to 1024, but is -4"},
        Refusal{"HugeVocabulary",
                replace("config.json", "\"vocab_size\": 512", "\"vocab_size\": 99999999999"), kBad,
                "\"vocab_size\" must be 1 to 4194304, but is 99999999999"},
        Refusal{"ContextOfOne",
                replace("config.json", "\"max_position_embeddings\": ",
                        "\"max_position_embeddings\": 1, \"was\": "),
                kBad, "\"max_position_embeddings\" must be 2 to 16777216, but is 1"},
        Refusal{"UnevenHeads",
                replace("config.json", "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 3"),
                kBad, "query heads"},
        Refusal{"UnknownLayerKind",
                replace("config.json", "\"full_attention\"", "\"no_attention\""), kBad,
                "names \"no_attention\" for layer"},
        Refusal{"GenerationNotJson", write("generation_config.json", "x"), kBad,
                "generation_config.json: is not JSON"},
        Refusal{"SuppressesUnknownToken",
                write("generation_config.json", R"({"suppress_tokens": [512]})"), kBad,
                "\"suppress_tokens\" must be 0 to 511, but is 512"},
        Refusal{"EndTokenUnknown", write("generation_config.json", R"({"eos_token_id": 512})"),
                kBad, "the end token id 512 is outside the vocabulary of 512"},
        Refusal{"EndTokenAsText", write("generation_config.json", R"({"eos_token_id": "x"})"), kBad,
                "\"eos_token_id\" must be 0 to"},
        Refusal{"NoWeights", remove("model.safetensors"), kMissing,
                "there is neither model.safetensors nor"},
        Refusal{"NoTokenizer", remove("tokenizer.json"), kMissing, "tokenizer.json: cannot open"},
        Refusal{"TokenizerNotJson", write("tokenizer.json", "?"), kBad,
                "tokenizer.json: the text is not JSON"},
        Refusal{"TokenizerConfigNotJson",
                [](const TemporaryDirectory& d) {
                  d.remove("chat_template.jinja");
                  d.write("tokenizer_config.json", "[");
                },
                kBad, "tokenizer_config.json: is not JSON"},
        Refusal{"OtherModel", replace("config.json", "gemma4_text", "gemma3_text"), kOther,
                "model_type \"gemma3_text\" is not supported"},
        Refusal{"IntegerWeights",
                replace("config.json", "{\n",
                        "{\"quantization_config\": {\"quant_method\": \"gptq\"},\n"),
                kOther, "weights quantized by gptq are not supported"},
        Refusal{"FourBitIntegers",
                replace("config.json", "{\n",
                        "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", "
                        "\"format\": \"pack-quantized\"},\n"),
                kOther, "quantized by compressed-tensors as pack-quantized are not supported"},
        Refusal{"ThreeBlockSizes",
                replace("config.json", "{\n",
                        "{\"quantization_config\": {\"quant_method\": \"fp8\", "
                        "\"weight_block_size\": [1, 2, 3]},\n"),
                kBad, "must be two sizes, but has 3"}),
    [](const auto& info) { return info.param.name; });

/// Damages tokenizer.json.
auto tokenizer(std::string from, std::string to) {
  return replace("tokenizer.json", std::move(from), std::move(to));
}

INSTANTIATE_TEST_SUITE_P(
    Tokenizers, DamagedHf,
    ::testing::Values(
        Refusal{"TokenizerNotUtf8", tokenizer("\"<eos>\"", "\"<e\xf0s>\""), kBad,
                "tokenizer.json: the text is not UTF-8, which JSON must be; download"},
        Refusal{"TokenizerCut", tokenizer("\"merges\"", "\"merges"), kBad,
                "tokenizer.json: the text is not JSON"},
        Refusal{"TokenizerAsList", write("tokenizer.json", "[]"), kBad,
                "there is no \"model\" object"},
        Refusal{"OtherTokenizer", tokenizer("\"BPE\"", "\"Unigram\""), kOther,
                "the tokenizer's model is not BPE"},
        Refusal{"OtherNormalizer", tokenizer("\"Replace\"", "\"NFKC\""), kOther,
                "the normalizer is not Gemma 4's"},
        Refusal{"NoByteFallback", tokenizer("\"byte_fallback\"", "\"byte_fall\""), kOther,
                "the tokenizer has no byte fallback"},
        Refusal{"NoVocabulary", tokenizer("\"vocab\"", "\"words\""), kBad,
                "there is no \"model.vocab\" object"},
        Refusal{"NoMerges", tokenizer("\"merges\"", "\"joins\""), kBad,
                "there is no \"model.merges\" array"},
        Refusal{"MergesOfNumbers", tokenizer("\"merges\":[", "\"merges\":[7, "), kBad,
                "\"model.merges\" entry 0 is not a pair of pieces; download the file again"},
        Refusal{
            "MergeOfUnknownPieces",
            tokenizer("\"merges\":[", "\"merges\":[[\"\\u0007q\\u0000\", \"zz\"], "), kBad,
            "merge 0 (\"\\x07q\\x00\" + \"zz\") names a piece that the vocabulary lacks; the file "
            "is damaged"}),
    [](const auto& info) { return info.param.name; });

/// An index beside the file that holds all tensors, renamed.
auto index(std::string text) {
  return [=](const TemporaryDirectory& d) {
    std::filesystem::rename(d.file("model.safetensors"), d.file("part.safetensors"));
    d.write("model.safetensors.index.json", text);
  };
}

INSTANTIATE_TEST_SUITE_P(
    Indexes, DamagedHf,
    ::testing::Values(
        Refusal{"IndexNotJson", index("{"), kBad, "index.json: is not JSON"},
        Refusal{"IndexNotUtf8", index("{\"\x80\": 1}"), kBad, "index.json: is not UTF-8"},
        Refusal{"IndexWithoutMap", index(R"({"metadata": {}})"), kBad,
                "has no \"weight_map\" object"},
        Refusal{"IndexOfNumbers", index(R"({"weight_map": {"a": 1}})"), kBad, "\"a\""},
        Refusal{"IndexOutside", index(R"({"weight_map": {"a": "../part.safetensors"}})"), kBad,
                "../part.safetensors"},
        Refusal{"IndexOfAMissingFile", index(R"({"weight_map": {"a": "b.safetensors"}})"), kMissing,
                "b.safetensors: the file is missing, but model.safetensors.index.json names it"},
        Refusal{"IndexOfAMissingTensor", index(R"({"weight_map": {"a": "part.safetensors"}})"),
                kBad, "names tensor \"a\" in part.safetensors, which does not have it"},
        Refusal{"IndexWithoutTensors", index(R"({"weight_map": {}})"), kBad, "index.json"}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Tensors, DamagedHf,
    ::testing::Values(
        Refusal{"NoEmbedding", lose("model.embed_tokens.weight"), kBad,
                "tensor \"model.embed_tokens.weight\" is missing"},
        Refusal{"NoQuery", lose(kQ), kBad, "tensor \"" + kQ + "\" is missing"},
        Refusal{"NoKeyNorm", lose("model.layers.1.self_attn.k_norm.weight"), kBad,
                "tensor \"model.layers.1.self_attn.k_norm.weight\" is missing"},
        Refusal{"NoPleTable", lose("model.embed_tokens_per_layer.weight"), kBad,
                "tensor \"model.embed_tokens_per_layer.weight\" is missing"},
        Refusal{"QueryTransposed", reshape(kQ, {64, 128}), kBad,
                "tensor \"" + kQ + "\" has 64 x 128 values, expected 128 x 64"},
        Refusal{"NormAsIntegers", set("model.norm.weight", {"I16", {64}, std::string(128, 'x')}),
                kBad, "tensor \"model.norm.weight\" must be F32, F16 or BF16, but is I16"},
        Refusal{"IntegerMatrix", set(kQ, {"I8", {128, 64}, std::string(8192, 'x')}), kOther,
                "has type I8, which cannot be used as a weight"},
        Refusal{"ScaleNotFinite", set("model.layers.2.layer_scalar", {"BF16", {1}, kNan}), kBad,
                "tensor \"model.layers.2.layer_scalar\" is not a finite number"},
        Refusal{"MoreRowsThanTokens",
                set("model.embed_tokens.weight", {"BF16", {513, 64}, std::string(65664, '\0')}),
                kBad, "\"model.embed_tokens.weight\" has 513 x 64 values, expected 512 x 64"}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Scales, DamagedHf,
    ::testing::Values(
        Refusal{"NoFp8Scale", lose(kFp8Q + "_scale"), kBad,
                "tensor \"" + kFp8Q + "\" has no \"" + kFp8Q + "_scale\"", "tiny-e-fp8"},
        Refusal{"TooFewFp8Scales", set(kFp8Q + "_scale", {"F32", {2}, std::string(8, '\0')}), kBad,
                "has 2 values where 128 are expected for 128 x 128 weights", "tiny-e-fp8"},
        Refusal{"IntegerFp8Scales", set(kFp8Q + "_scale", {"I8", {128}, std::string(128, '\1')}),
                kOther, "scale has type I8", "tiny-e-fp8"},
        Refusal{"NoGroupScales", lose(kFp8Q + "_scale"), kBad, "has no \"" + kFp8Q + "_scale\"",
                "tiny-dense-nvfp4"},
        Refusal{"NoGlobalScale", lose(kFp8Q + "_global_scale"), kBad,
                "has no \"" + kFp8Q + "_global_scale\"", "tiny-dense-nvfp4"},
        Refusal{"GlobalScaleZero", set(kFp8Q + "_global_scale", {"F32", {1}, std::string(4, '\0')}),
                kBad, "_global_scale\" must be one positive F32 number", "tiny-dense-nvfp4"},
        Refusal{"GroupScalesOfAnotherType",
                set(kFp8Q + "_scale", {"U8", {256, 4}, std::string(1024, '\1')}), kBad,
                "must be F8_E4M3 with one value for 16 of the 256 x 64 weights",
                "tiny-dense-nvfp4"},
        Refusal{"GroupScalesOfAnotherSize",
                set(kFp8Q + "_scale", {"F8_E4M3", {256, 2}, std::string(512, '\1')}), kBad,
                "must be F8_E4M3 with one value for 16", "tiny-dense-nvfp4"}),
    [](const auto& info) { return info.param.name; });

/// A change to a copy of the assistant of tiny-e2 and the sentence it must cause.
class UnfitAssistant : public ::testing::TestWithParam<Refusal> {};

TEST_P(UnfitAssistant, IsRefusedWithOneSentence) {
  const TemporaryDirectory directory;
  directory.copy_from(testing::tiny_directory("tiny-e2-assistant"));
  GetParam().change(directory);
  for (const char* target : {"tiny-e2", "tiny-e2-F16.gguf"}) {
    model::LoadOptions options;
    options.target_path = testing::tiny_directory(target);
    options.draft_path = directory.path();
    options.kv_memory_bytes = 16 << 20;
    const auto status = model::Model::load(options, testing::make_backend("reference")).status();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), GetParam().code) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
  }
}

const core::Code kUnfit = core::Code::kFailedPrecondition;

INSTANTIATE_TEST_SUITE_P(
    Pairs, UnfitAssistant,
    ::testing::Values(
        Refusal{
            "OfAnotherWidth",
            replace("config.json", "\"backbone_hidden_size\": 64", "\"backbone_hidden_size\": 128"),
            kUnfit, "its target width is 128, the target's is 64"},
        Refusal{"OfAnotherHeadSize", replace("config.json", "\"head_dim\": 32", "\"head_dim\": 16"),
                kUnfit, "its sliding head size is 16, the target's is 32"},
        Refusal{"OfOtherKvHeads",
                replace("config.json", "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 2"),
                kUnfit, "its number of sliding KV heads is 2, the target's is 1"},
        Refusal{"OfAnotherWindow",
                replace("config.json", "\"sliding_window\": 64", "\"sliding_window\": 65"), kUnfit,
                "its sliding window is 65, the target's is 64"},
        Refusal{"OfAnotherRotation", replace("config.json", "1000000.0", "500000.0"), kUnfit,
                "its rotary frequencies of full layers differ"},
        Refusal{"OfOtherTokens",
                [](const TemporaryDirectory& d) {
                  testing::replace_in(d, "tokenizer.json", "\"<|audio>\"", "\"<|sound>\"");
                  testing::replace_in(d, "tokenizer.json", "\"<|audio>\"", "\"<|sound>\"");
                },
                kUnfit, "their vocabularies differ at token 508"},
        Refusal{
            "ThatOwnsKv",
            replace("config.json", "\"num_kv_shared_layers\": 4", "\"num_kv_shared_layers\": 3"),
            kBad, "must be 4 (every layer of an assistant), but is 3"},
        Refusal{"OfUnevenClusters",
                set("masked_embedding.centroids.weight", {"BF16", {3, 32}, std::string(192, '\0')}),
                kBad, "there are 3 centroids, which do not share 512 tokens evenly"},
        Refusal{"OfUnknownTokens",
                set("masked_embedding.token_ordering", {"I64", {512}, std::string(4096, '\1')}),
                kBad, "but the vocabulary has 512"},
        Refusal{"OfTooFewTokens",
                set("masked_embedding.token_ordering", {"I64", {2}, std::string(16, '\0')}), kBad,
                "has 1 x 2 values, expected 1 x 512"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem
