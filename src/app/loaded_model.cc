#include "tandem/app/loaded_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "tandem/app/option_text.h"
#include "tandem/core/log.h"
#include "tandem/kernels/cpu/cpu_backend.h"
#include "tandem/kernels/reference/reference_backend.h"

namespace tandem::app {
namespace {

using core::Result;

constexpr int kMinStepRows = 512;

Result<std::unique_ptr<kernels::Backend>> make_backend(const ModelOptions& options) {
  if (options.backend == "reference") return kernels::make_reference_backend();
  kernels::CpuOptions cpu;
  cpu.threads = options.threads;
  return kernels::make_cpu_backend(cpu);
}

kernels::SamplingParams read_sampling(const formats::GgufFile& file) {
  kernels::SamplingParams out;
  out.temperature = 1.0F;
  out.top_k = 64;
  out.top_p = 0.95F;
  const auto temperature = file.get_float("general.sampling.temp");
  if (temperature.ok() && *temperature >= 0.0) out.temperature = static_cast<float>(*temperature);
  const auto top_k = file.get_uint("general.sampling.top_k");
  if (top_k.ok() && *top_k <= 1u << 30) out.top_k = static_cast<std::int32_t>(*top_k);
  const auto top_p = file.get_float("general.sampling.top_p");
  if (top_p.ok() && *top_p > 0.0 && *top_p <= 1.0) out.top_p = static_cast<float>(*top_p);
  return out;
}

/// FNV-1a over names, types and shapes of all tensors: tells files of different quantizations and
/// sizes apart without reading the weights.
std::uint32_t digest(const formats::GgufFile& file) {
  std::uint32_t hash = 2166136261u;
  const auto add = [&hash](std::string_view bytes) {
    for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  };
  for (const formats::GgufFile::Tensor& tensor : file.tensors()) {
    add(tensor.name);
    add(core::name(tensor.view.dtype));
    for (const std::int64_t size : tensor.view.shape) add(fmt::format(" {}", size));
  }
  return hash;
}

model::LoadOptions load_options(const ModelOptions& options) {
  model::LoadOptions out;
  out.target_path = options.model;
  out.draft_path = options.draft;
  out.max_sequences = options.max_sequences;
  // Room for every sequence's decode span beside prompt chunks.
  out.max_rows = std::max(kMinStepRows, options.max_sequences * (1 + kMaxDraft));
  out.max_context = options.context;
  out.kv_memory_bytes = options.kv_memory_bytes;
  return out;
}

}  // namespace

Result<LoadedModel> load_model(const ModelOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  LoadedModel out;
  {
    // A mapping of its own: the model keeps the file only as long as it needs it.
    TANDEM_ASSIGN(const formats::GgufFile file, formats::GgufFile::open(options.model));
    TANDEM_TRY(model::read_config(file).status());  // says first if it is no model at all
    TANDEM_ASSIGN(tokenizer::VocabData vocab, model::read_vocab(file));
    auto tokenizer = tokenizer::Tokenizer::create(std::move(vocab));
    if (!tokenizer.ok()) return tokenizer.status().with_context(options.model);
    out.tokenizer = std::move(tokenizer).value();
    TANDEM_ASSIGN(const std::string chat_template, model::read_chat_template(file));
    const auto variant = chat::detect_variant(chat_template);
    if (!variant.ok()) return variant.status().with_context(options.model);
    out.template_variant = *variant;
    out.sampling = read_sampling(file);
    out.fingerprint =
        fmt::format("tandem-{}-{}-{:08x}", TANDEM_VERSION, options.backend, digest(file));
  }
  TANDEM_ASSIGN(auto backend, make_backend(options));
  TANDEM_ASSIGN(out.model, model::Model::load(load_options(options), std::move(backend)));
  out.max_context = out.model->limits().max_context;

  engine::EngineOptions engine_options;
  engine_options.draft_length = options.draft_length;
  engine_options.max_context = options.context;
  engine_options.max_queue = options.max_queue;
  TANDEM_ASSIGN(out.engine, engine::Engine::create(*out.model, *out.tokenizer, engine_options));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  core::log_info(
      fmt::format("loaded {}{} in {:.1f} s; {}, {} sequences, context {}, KV memory up to {}",
                  options.model, options.draft.empty() ? "" : " with drafter " + options.draft,
                  elapsed.count(), out.model->backend().describe(), options.max_sequences,
                  out.max_context, format_size(options.kv_memory_bytes)));
  return out;
}

}  // namespace tandem::app
