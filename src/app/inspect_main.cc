#include <fmt/core.h>

#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <string>

#include "tandem/app/commands.h"
#include "tandem/app/loaded_model.h"
#include "tandem/app/memory_need.h"
#include "tandem/app/option_text.h"
#include "tandem/chat/template_gemma4.h"
#include "tandem/core/print.h"
#include "tandem/model/config.h"
#include "tandem/model/dry_run_backend.h"
#include "tandem/model/loader.h"
#include "tandem/model/model_files.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::app {
namespace {

namespace json = boost::json;
using kernels::AttentionKind;
using model::kv_bytes_per_token;
using model::ModelConfig;
using model::ModelFiles;

struct TypeTotal {
  int tensors = 0;
  std::int64_t elements = 0;
  std::size_t bytes = 0;
};

/// Everything that inspect knows, printed as text or as JSON.
struct Report {
  const ModelFiles& files;
  core::Result<ModelConfig> config;
  std::map<std::string, TypeTotal, std::less<>> types;
  TypeTotal all;
  std::string chat_template;
  core::Status servable;
  std::string draft_head;  ///< of a drafter
  ServeBounds bounds;
  core::Result<MemoryNeed> need;
};

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

/// A letter for each layer: S sliding, F full; small ones own no KV.
std::string pattern(const ModelConfig& config) {
  std::string out;
  for (const model::LayerConfig& layer : config.layers) {
    const bool is_sliding = layer.kind == AttentionKind::kSliding;
    out += layer.owns_kv ? (is_sliding ? 'S' : 'F') : (is_sliding ? 's' : 'f');
  }
  return out;
}

std::string template_text(const ModelFiles& files) {
  const auto variant = read_template_variant(files);
  if (!variant.ok()) return "not one of Gemma 4's";
  if (!*variant) return "none";
  return **variant == chat::TemplateVariant::kOpenTurn
             ? "Gemma 4 E-series (the model's turn is opened and nothing added)"
             : "Gemma 4 (an empty thought is added to the model's turn)";
}

/// Which head serving would choose for a drafter; empty if the drafter cannot be loaded.
std::string draft_head_text(const ModelFiles& files, const ModelConfig& config) {
  const auto backend = model::make_dry_run_backend(nullptr);
  const auto weights = model::load_drafter(files, config, {}, *backend, model::DraftHead::kAuto);
  if (!weights.ok()) return "";
  const kernels::CentroidHead& head = weights->ends.centroids;
  if (head.centroids != nullptr) {
    return fmt::format("by centroids, the best {} of {}", head.top_clusters,
                       head.centroids->rows());
  }
  const bool has_centroids = files.has_weight(files.tensor_name({model::TensorRole::kCentroids}));
  return has_centroids ? "dense; its centroids would not be faster" : "dense";
}

/// Whether serve and run would take the files; everything but the weights' values is checked.
core::Status check_servable(const ModelFiles& files, const ModelConfig& config) {
  const auto backend = model::make_dry_run_backend(nullptr);
  if (config.is_drafter()) {
    return model::load_drafter(files, config, {}, *backend, model::DraftHead::kAuto).status();
  }
  TANDEM_TRY(model::load_target(files, config, *backend).status());
  TANDEM_ASSIGN(tokenizer::VocabData vocab, files.vocab());
  const auto tokenizer = tokenizer::Tokenizer::create(std::move(vocab));
  if (!tokenizer.ok()) return tokenizer.status().with_context(files.path());
  return read_template_variant(files).status();
}

Report make_report(const ModelFiles& files, const ModelFiles* drafter, const ServeBounds& bounds) {
  Report report = {files, files.config(), {},          {}, template_text(files), {},
                   {},    bounds,         MemoryNeed()};
  for (const ModelFiles::Tensor& tensor : files.tensors()) {
    for (TypeTotal* total :
         {&report.types[std::string(core::name(tensor.view->dtype))], &report.all}) {
      ++total->tensors;
      total->elements += tensor.view->elements();
      total->bytes += tensor.view->bytes();
    }
  }
  report.servable =
      report.config.ok() ? check_servable(files, *report.config) : report.config.status();
  if (!report.config.ok()) {
    report.need = report.config.status();
  } else if (report.config->is_drafter()) {
    report.draft_head = draft_head_text(files, *report.config);
    report.need = core::failed_precondition("a drafter is not served alone");
  } else {
    report.need = memory_need(files, drafter, bounds);
  }
  return report;
}

// ---- text --------------------------------------------------------------------------------------

void print_field(std::string_view name, std::string_view value) {
  core::print(stdout, fmt::format("{:<15} {}\n", name, value));
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
  if (config.experts > 0) {
    print_field("experts", fmt::format("{} of width {}, {} a token", config.experts,
                                       config.expert_ffn, config.experts_per_token));
  }
  if (config.is_drafter()) {
    print_field("drafts for", fmt::format("a target of width {}", config.backbone_hidden));
    return;
  }
  print_field("context", fmt::format("up to {} tokens", config.max_context));
  print_field(
      "KV per token",
      fmt::format("{} in full layers, and {} in sliding layers for the "
                  "last {} tokens (16 bits)",
                  format_size(kv_bytes_per_token(config, AttentionKind::kFull)),
                  format_size(kv_bytes_per_token(config, AttentionKind::kSliding)), config.window));
}

void print_need(const Report& report) {
  const MemoryNeed& need = *report.need;
  print_field("to be served",
              fmt::format("{} on the CPU at {} sequences of {} tokens: weights {}, KV {}, "
                          "workspace {}, program and tokenizer {}",
                          format_size(need.total()), report.bounds.max_sequences,
                          std::min(report.bounds.context, report.config->max_context),
                          format_size(need.weights), format_size(need.kv()),
                          format_size(need.workspace), format_size(need.program)));
  print_field("", fmt::format("KV: {} at full length and {} kept for prompts that begin alike; "
                              "--kv-memory bounds both to {}",
                              format_size(need.kv_live), format_size(need.kv_kept),
                              format_size(need.kv_budget)));
  if (need.in_file == 0) return;
  print_field("", fmt::format("tables of {} stay in the file: rows are read from the page cache, "
                              "which the system may take back",
                              format_size(need.in_file)));
}

void print_text(const Report& report) {
  const ModelFiles& files = report.files;
  const auto& config = report.config;
  print_field("path", fmt::format("{} ({})", files.path(), files.kind()));
  print_field("family",
              fmt::format("{}, \"{}\"", config.ok() ? config->family : "not known", files.name()));
  if (config.ok()) print_config(*config);
  print_field("tensors", fmt::format("{}, {:.1f} M values, {}", report.all.tensors,
                                     static_cast<double>(report.all.elements) / 1e6,
                                     format_size(report.all.bytes)));
  for (const auto& [type, total] : report.types) {
    print_field(
        "", fmt::format("{:<8} {:>4} tensors, {}", type, total.tensors, format_size(total.bytes)));
  }
  if (const std::string unused = files.describe_unused(); !unused.empty()) {
    print_field("not used", unused);
  }
  if (!report.draft_head.empty()) print_field("draft head", report.draft_head);
  print_field("chat template", report.chat_template);
  print_field("can be served", !report.servable.ok()  ? "no: " + report.servable.message()
                               : config->is_drafter() ? "as the --draft of its target"
                               : report.chat_template == "none"
                                   ? "only plain completions: there is no chat template"
                                   : "yes");
  if (report.need.ok()) print_need(report);
  core::print(stdout, "metadata\n");
  for (const auto& [key, value] : files.describe_metadata()) {
    core::print(stdout, fmt::format("  {:<46} {}\n", key, value));
  }
}

// ---- JSON --------------------------------------------------------------------------------------

json::array layers_json(const ModelConfig& config) {
  json::array layers;
  for (const model::LayerConfig& layer : config.layers) {
    layers.push_back({{"kind", layer.kind == AttentionKind::kSliding ? "sliding" : "full"},
                      {"heads", layer.heads},
                      {"kv_heads", layer.kv_heads},
                      {"head_size", layer.head_size},
                      {"ffn", layer.ffn},
                      {"owns_kv", layer.owns_kv},
                      {"value_is_key", layer.value_is_key}});
  }
  return layers;
}

void add_config(json::object& out, const ModelConfig& config) {
  out["family"] = config.family;
  out["hidden"] = config.hidden;
  out["vocabulary"] = config.vocab;
  out["per_layer_embeddings"] = config.ple_width;
  out["experts"] = config.experts;
  out["window"] = config.window;
  out["max_context"] = config.max_context;
  out["layers"] = layers_json(config);
  if (config.is_drafter()) {
    out["target_hidden"] = config.backbone_hidden;
    return;
  }
  out["kv_bytes_per_token"] = {{"full", kv_bytes_per_token(config, AttentionKind::kFull)},
                               {"sliding", kv_bytes_per_token(config, AttentionKind::kSliding)}};
}

void print_json(const Report& report) {
  json::object out = {
      {"path", report.files.path()}, {"kind", report.files.kind()}, {"name", report.files.name()}};
  if (report.config.ok()) add_config(out, *report.config);
  json::object types;
  for (const auto& [type, total] : report.types) {
    types[type] = {{"tensors", total.tensors}, {"bytes", total.bytes}};
  }
  out["tensors"] = report.all.tensors;
  out["values"] = report.all.elements;
  out["bytes"] = report.all.bytes;
  out["types"] = std::move(types);
  if (!report.draft_head.empty()) out["draft_head"] = report.draft_head;
  out["can_be_served"] = report.servable.ok();
  if (!report.servable.ok()) out["why_not"] = report.servable.message();
  if (report.need.ok()) {
    const MemoryNeed& need = *report.need;
    out["to_be_served"] = {{"sequences", report.bounds.max_sequences},
                           {"context", report.bounds.context},
                           {"program_bytes", need.program},
                           {"weights_bytes", need.weights},
                           {"in_file_bytes", need.in_file},
                           {"kv_bytes", need.kv()},
                           {"kv_full_length_bytes", need.kv_live},
                           {"kv_kept_bytes", need.kv_kept},
                           {"workspace_bytes", need.workspace},
                           {"total_bytes", need.total()}};
  }
  core::print(stdout, fmt::format("{}\n", json::serialize(out)));
}

}  // namespace

int inspect_main(const InspectOptions& options) {
  const auto files = ModelFiles::open(options.path);
  if (!files.ok()) return fail(files.status());
  std::unique_ptr<ModelFiles> drafter;
  if (!options.draft.empty()) {
    auto opened = ModelFiles::open(options.draft);
    if (!opened.ok()) return fail(opened.status());
    drafter = std::move(opened).value();
  }
  const Report report = make_report(**files, drafter.get(), options.bounds);
  if (drafter != nullptr && !report.need.ok()) return fail(report.need.status());
  options.as_json ? print_json(report) : print_text(report);
  return report.servable.ok() ? 0 : fail(report.servable);
}

}  // namespace tandem::app
