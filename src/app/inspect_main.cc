#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "tandem/app/commands.h"
#include "tandem/app/dry_run_backend.h"
#include "tandem/app/option_text.h"
#include "tandem/chat/template_gemma4.h"
#include "tandem/formats/gguf.h"
#include "tandem/model/config.h"
#include "tandem/model/loader_gguf.h"
#include "tandem/model/vocab_gguf.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::app {
namespace {

using kernels::AttentionKind;
using model::ModelConfig;

constexpr std::size_t kKvValueBytes = 2;  // f16, as the CPU backend keeps it

void print_field(std::string_view name, std::string_view value) {
  fmt::print("{:<15} {}\n", name, value);
}

/// "4" if all layers agree, else the values by layer with repetitions counted: "2x8 1x1".
template <typename Get>
std::string by_layer(const ModelConfig& config, Get get) {
  std::string out;
  for (std::size_t i = 0; i < config.layers.size();) {
    std::size_t end = i;
    while (end < config.layers.size() && get(config.layers[end]) == get(config.layers[i])) ++end;
    if (i == 0 && end == config.layers.size()) return fmt::format("{}", get(config.layers[0]));
    out += fmt::format("{}{}x{}", out.empty() ? "" : " ", end - i, get(config.layers[i]));
    i = end;
  }
  return out;
}

std::string pattern(const ModelConfig& config) {
  std::string out;
  for (const model::LayerConfig& layer : config.layers) {
    const bool is_sliding = layer.kind == AttentionKind::kSliding;
    out += layer.owns_kv ? (is_sliding ? 'S' : 'F') : (is_sliding ? 's' : 'f');
  }
  return out;
}

void print_config(const ModelConfig& config) {
  const auto num_sliding =
      std::count_if(config.layers.begin(), config.layers.end(),
                    [](const auto& layer) { return layer.kind == AttentionKind::kSliding; });
  print_field("layers", fmt::format("{}: {} sliding (window {}), {} full, {} own KV: {}",
                                    config.layers.size(), num_sliding, config.window,
                                    static_cast<std::ptrdiff_t>(config.layers.size()) - num_sliding,
                                    config.kv_layers().size(), pattern(config)));
  print_field("width",
              fmt::format("{}, ffn {}, vocabulary {}", config.hidden,
                          by_layer(config, [](const auto& l) { return l.ffn; }), config.vocab));
  print_field("heads", fmt::format("{} query, {} KV, size {}",
                                   by_layer(config, [](const auto& l) { return l.heads; }),
                                   by_layer(config, [](const auto& l) { return l.kv_heads; }),
                                   by_layer(config, [](const auto& l) { return l.head_size; })));
  if (config.ple_width > 0) {
    print_field("", fmt::format("per-layer embeddings of {}", config.ple_width));
  }
  if (config.is_drafter()) {
    print_field("drafts for", fmt::format("a target of width {}", config.backbone_hidden));
    return;
  }
  print_field("context", fmt::format("up to {} tokens", config.max_context));
  std::array<std::size_t, kernels::kNumAttentionKinds> kv_bytes = {};
  for (const kernels::KvLayerSpec& layer : config.kv_layers()) {
    kv_bytes[static_cast<std::size_t>(layer.kind)] +=
        2 * kKvValueBytes * static_cast<std::size_t>(layer.kv_heads * layer.head_size);
  }
  print_field("KV per token",
              fmt::format("{} in full layers, and {} in sliding layers for the "
                          "last {} tokens (f16)",
                          format_size(kv_bytes[1]), format_size(kv_bytes[0]), config.window));
}

void print_tensors(const formats::GgufFile& file) {
  struct Total {
    int tensors = 0;
    std::int64_t elements = 0;
    std::size_t bytes = 0;
  };
  std::map<std::string_view, Total> by_type;
  Total all;
  for (const formats::GgufFile::Tensor& tensor : file.tensors()) {
    for (Total* total : {&by_type[core::name(tensor.view.dtype)], &all}) {
      ++total->tensors;
      total->elements += tensor.view.elements();
      total->bytes += tensor.view.bytes();
    }
  }
  print_field("tensors",
              fmt::format("{}, {:.1f} M values, {}", all.tensors,
                          static_cast<double>(all.elements) / 1e6, format_size(all.bytes)));
  for (const auto& [type, total] : by_type) {
    print_field(
        "", fmt::format("{:<8} {:>4} tensors, {}", type, total.tensors, format_size(total.bytes)));
  }
}

std::string template_text(const formats::GgufFile& file) {
  const auto text = model::read_chat_template(file);
  if (!text.ok()) return "none";
  const auto variant = chat::detect_variant(*text);
  if (!variant.ok()) return "not one of Gemma 4's";
  return *variant == chat::TemplateVariant::kOpenTurn
             ? "Gemma 4 E-series (the model's turn is opened and nothing added)"
             : "Gemma 4 (an empty thought is added to the model's turn)";
}

/// Whether serve and run would take the file; everything but the weights' values is checked.
core::Status check_servable(const formats::GgufFile& file, const ModelConfig& config) {
  const auto backend = make_dry_run_backend();
  if (config.is_drafter()) return model::load_drafter(file, config, {}, *backend).status();
  TANDEM_TRY(model::load_target(file, config, *backend).status());
  TANDEM_ASSIGN(tokenizer::VocabData vocab, model::read_vocab(file));
  const auto tokenizer = tokenizer::Tokenizer::create(std::move(vocab));
  if (!tokenizer.ok()) return tokenizer.status().with_context(file.path());
  TANDEM_ASSIGN(const std::string chat_template, model::read_chat_template(file));
  const auto variant = chat::detect_variant(chat_template);
  return variant.ok() ? core::Status() : variant.status().with_context(file.path());
}

}  // namespace

int inspect_main(const std::string& path) {
  const auto file = formats::GgufFile::open(path);
  if (!file.ok()) return fail(file.status());
  const auto config = model::read_config(*file);
  const auto family = file->get_string("general.architecture");
  const auto name = file->get_string("general.name");

  print_field("file", path);
  print_field("family", fmt::format("{}, \"{}\"", family.ok() ? *family : "not named",
                                    name.ok() ? *name : ""));
  if (config.ok()) print_config(*config);
  print_tensors(*file);
  print_field("chat template", template_text(*file));
  const core::Status servable = config.ok() ? check_servable(*file, *config) : config.status();
  print_field("can be served", !servable.ok()         ? "no: " + servable.message()
                               : config->is_drafter() ? "as the --draft of its target"
                                                      : "yes");
  fmt::print("metadata\n");
  for (const auto& [key, value] : file->describe_metadata()) {
    fmt::print("  {:<46} {}\n", key, value);
  }
  return 0;
}

}  // namespace tandem::app
