#include "tandem/model/hf_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <map>
#include <utility>

#include "tandem/core/printable.h"
#include "tandem/formats/mapped_file.h"
#include "tandem/formats/safetensors_set.h"
#include "tandem/model/hf_weight.h"
#include "tandem/model/json_reader.h"
#include "tandem/tokenizer/tokenizer_json.h"

namespace tandem::model {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

/// Longest configuration or template that is read; the published ones have a few KiB.
constexpr std::size_t kMaxTextBytes = 64u << 20;
/// Ids beyond any vocabulary are refused by the tokenizer, which knows its size.
constexpr IntRange kTokenIds = {0, 1 << 30};

/// Where the text model's tensors begin: multimodal checkpoints first, then text-only ones.
constexpr std::string_view kPrefixes[] = {"model.language_model.", "model.",
                                          "language_model.model.", ""};
/// Parts of multimodal checkpoints that no text needs.
constexpr std::string_view kUnusedParts[] = {"model.vision_tower.", "model.audio_tower.",
                                             "model.embed_vision.", "model.embed_audio.",
                                             "model.vision_embedder."};

std::string_view text_of(const formats::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

class HfFiles final : public ModelFiles {
 public:
  static core::Result<std::unique_ptr<ModelFiles>> open(const std::string& directory);

  const std::string& path() const override { return directory_; }
  std::string name() const override;
  std::string_view kind() const override { return "Hugging Face"; }

  core::Result<ModelConfig> config() const override {
    TANDEM_ASSIGN(ModelConfig config,
                  read_config(directory_, text_of(config_), text_of(generation_)));
    config.name = name();
    return config;
  }
  core::Result<tokenizer::VocabData> vocab() const override;
  core::Result<std::vector<std::string>> tokens() const override;
  core::Result<formats::MappedFile> vocab_text() const override {
    return open_text("tokenizer.json");
  }
  core::Result<std::string> chat_template() const override;
  kernels::SamplingParams sampling() const override;

  std::string tensor_name(TensorKey key) const override {
    // A tied head may be in the file a second time.
    if (key.role == TensorRole::kOutput && is_tied_) return "";
    return hf_name(key, prefix_);
  }
  core::Result<kernels::WeightView> weight(const std::string& name) const override {
    return hf_weight(tensors_, scheme_, name, directory_);
  }
  bool has_weight(const std::string& name) const override { return has_hf_weight(tensors_, name); }
  const formats::MappedFile* file_of(const core::TensorView& view) const override {
    return tensors_.file_of(view);
  }
  void forget_all() const override { tensors_.forget_all(); }

  std::vector<Tensor> tensors() const override {
    std::vector<Tensor> out;
    for (const auto& [name, view] : tensors_.tensors()) out.push_back({name, view});
    return out;
  }
  std::string describe_unused() const override;
  std::vector<std::pair<std::string, std::string>> describe_metadata() const override;

 private:
  std::string file(std::string_view name) const { return (fs::path(directory_) / name).string(); }
  bool has(std::string_view name) const {
    std::error_code error;
    return fs::exists(file(name), error);
  }
  core::Result<formats::MappedFile> open_text(std::string_view name) const;
  /// config.json and, where there is one, generation_config.json.
  core::Result<std::vector<json::object>> read_configs() const;

  std::string directory_;
  formats::SafetensorsSet tensors_;
  std::string_view prefix_;
  bool is_tied_ = true;
  WeightScheme scheme_;
  formats::MappedFile config_;
  formats::MappedFile generation_;  // empty: none
};

core::Result<formats::MappedFile> HfFiles::open_text(std::string_view name) const {
  TANDEM_ASSIGN(formats::MappedFile mapped, formats::MappedFile::open(file(name)));
  if (mapped.bytes().size() <= kMaxTextBytes) return mapped;
  return core::data_loss(
      fmt::format("{}: the file has {} bytes, more than the {} that it may; "
                  "download it again",
                  file(name), mapped.bytes().size(), kMaxTextBytes));
}

core::Result<std::unique_ptr<ModelFiles>> HfFiles::open(const std::string& directory) {
  auto files = std::make_unique<HfFiles>();
  files->directory_ = directory;
  if (!files->has("config.json")) {
    return core::not_found(
        fmt::format("{}: there is no config.json in this directory; give the directory of a "
                    "Hugging Face checkpoint or a GGUF file",
                    directory));
  }
  TANDEM_ASSIGN(files->config_, files->open_text("config.json"));
  if (files->has("generation_config.json")) {
    TANDEM_ASSIGN(files->generation_, files->open_text("generation_config.json"));
  }
  TANDEM_ASSIGN(const auto configs, files->read_configs());
  const JsonReader top(configs[0], files->file("config.json"));
  TANDEM_ASSIGN(files->is_tied_, top.optional_bool("tie_word_embeddings", true));
  TANDEM_ASSIGN(files->scheme_, read_weight_scheme(top));
  TANDEM_ASSIGN(files->tensors_, formats::SafetensorsSet::open(directory));
  files->prefix_ = kPrefixes[1];
  for (const std::string_view prefix : kPrefixes) {
    if (files->tensors_.find(hf_name({TensorRole::kEmbedding}, prefix)) == nullptr) continue;
    files->prefix_ = prefix;
    break;
  }
  return std::unique_ptr<ModelFiles>(std::move(files));
}

core::Result<std::vector<json::object>> HfFiles::read_configs() const {
  std::vector<json::object> out;
  TANDEM_ASSIGN(auto config, parse_json_object(text_of(config_), file("config.json")));
  out.push_back(std::move(config));
  if (generation_.bytes().empty()) return out;
  TANDEM_ASSIGN(auto generation,
                parse_json_object(text_of(generation_), file("generation_config.json")));
  out.push_back(std::move(generation));
  return out;
}

std::string HfFiles::name() const {
  // "." has no name, and "DIR/" ends in an empty part.
  std::error_code error;
  const fs::path path = fs::absolute(directory_, error).lexically_normal();
  const fs::path last = (path.has_filename() ? path : path.parent_path()).filename();
  return core::printable(last.string(), kMaxNameBytes);
}

core::Result<tokenizer::VocabData> HfFiles::vocab() const {
  TANDEM_ASSIGN(const auto text, open_text("tokenizer.json"));
  auto vocab = tokenizer::parse_tokenizer_json(text_of(text));
  if (!vocab.ok()) return vocab.status().with_context(file("tokenizer.json"));
  TANDEM_ASSIGN(const auto configs, read_configs());
  const char* const names[] = {"config.json", "generation_config.json"};
  for (std::size_t i = 0; i < configs.size(); ++i) {
    const JsonReader keys(configs[i], file(names[i]));
    TANDEM_ASSIGN(const auto ends, keys.optional_ints("eos_token_id", kTokenIds));
    vocab->end_tokens.insert(vocab->end_tokens.end(), ends.begin(), ends.end());
  }
  return vocab;
}

core::Result<std::vector<std::string>> HfFiles::tokens() const {
  if (!has("tokenizer.json")) return std::vector<std::string>();
  TANDEM_ASSIGN(tokenizer::VocabData data, vocab());
  return std::move(data.tokens);
}

/// chat_template.jinja, else the template inside tokenizer_config.json: one string, or a list of
/// named ones.
core::Result<std::string> HfFiles::chat_template() const {
  if (has("chat_template.jinja")) {
    TANDEM_ASSIGN(const auto text, open_text("chat_template.jinja"));
    return std::string(text_of(text));
  }
  if (has("tokenizer_config.json")) {
    TANDEM_ASSIGN(const auto text, open_text("tokenizer_config.json"));
    TANDEM_ASSIGN(const auto object,
                  parse_json_object(text_of(text), file("tokenizer_config.json")));
    const json::value* value = object.if_contains("chat_template");
    if (value != nullptr && value->is_string()) return std::string(value->get_string());
    if (value != nullptr && value->is_array()) {
      for (const json::value& entry : value->get_array()) {
        const json::object* named = entry.if_object();
        const json::value* name = named == nullptr ? nullptr : named->if_contains("name");
        const json::value* body = named == nullptr ? nullptr : named->if_contains("template");
        if (name != nullptr && *name == "default" && body != nullptr && body->is_string()) {
          return std::string(body->get_string());
        }
      }
    }
  }
  return core::not_found(fmt::format(
      "{}: there is no chat_template.jinja and none in tokenizer_config.json; only plain "
      "completions can be served from this directory",
      directory_));
}

kernels::SamplingParams HfFiles::sampling() const {
  kernels::SamplingParams out = gemma_sampling();
  const auto configs = read_configs();
  if (!configs.ok() || configs->size() < 2) return out;
  const JsonReader keys((*configs)[1], file("generation_config.json"));
  const auto is_sampled = keys.optional_bool("do_sample", true);
  const auto temperature = keys.optional_float("temperature", {0.0, 100.0}, out.temperature);
  const auto top_k = keys.optional_int("top_k", {0, 1 << 30}, out.top_k);
  const auto top_p = keys.optional_float("top_p", {1e-6, 1.0}, out.top_p);
  if (temperature.ok()) out.temperature = static_cast<float>(*temperature);
  if (is_sampled.ok() && !*is_sampled) out.temperature = 0.0F;
  if (top_k.ok()) out.top_k = *top_k;
  if (top_p.ok()) out.top_p = static_cast<float>(*top_p);
  return out;
}

std::string HfFiles::describe_unused() const {
  std::map<std::string_view, int> counts;
  for (const auto& [name, view] : tensors_.tensors()) {
    for (const std::string_view part : kUnusedParts) {
      if (name.starts_with(part)) ++counts[part.substr(0, part.size() - 1)];
    }
  }
  std::string out;
  for (const auto& [part, count] : counts) {
    out += fmt::format("{}{} tensors of {}", out.empty() ? "" : ", ", count, part);
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> HfFiles::describe_metadata() const {
  constexpr std::size_t kMaxShownBytes = 100;
  std::vector<std::pair<std::string, std::string>> out;
  const auto configs = read_configs();
  if (!configs.ok()) return out;
  const auto add = [&out](const std::string& prefix, const json::object& object) {
    for (const auto& [key, value] : object) {
      if (value.is_object() && key == "text_config") continue;
      out.emplace_back(prefix + std::string(key),
                       core::printable(json::serialize(value), kMaxShownBytes));
    }
  };
  const json::object& top = (*configs)[0];
  add("", top);
  if (const json::value* text = top.if_contains("text_config"); text && text->is_object()) {
    add("text_config.", text->get_object());
  }
  if (configs->size() > 1) add("generation_config.", (*configs)[1]);
  return out;
}

}  // namespace

core::Result<std::unique_ptr<ModelFiles>> open_hf_files(const std::string& directory) {
  return HfFiles::open(directory);
}

}  // namespace tandem::model
