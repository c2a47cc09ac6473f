#include "tandem/app/loaded_model.h"

#include <fmt/core.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <chrono>
#include <utility>

#include "tandem/app/memory_need.h"
#include "tandem/app/option_text.h"
#include "tandem/app/self_test.h"
#include "tandem/app/step_rows.h"
#include "tandem/core/log.h"
#include "tandem/core/thread_team.h"
#include "tandem/kernels/cpu/cpu_backend.h"
#include "tandem/kernels/cuda/cuda_backend.h"
#include "tandem/kernels/reference/reference_backend.h"
#include "tandem/model/model_files.h"

namespace tandem::app {
namespace {

using core::Result;

Result<std::unique_ptr<kernels::Backend>> make_cpu_backend(const ModelOptions& options) {
  if (options.threads > core::usable_cores()) {
    core::log_warning(fmt::format(
        "--threads {} is more than the {} cores that this process may use: it will be slow",
        options.threads, core::usable_cores()));
  }
  kernels::CpuOptions cpu;
  cpu.threads = options.threads;
  return kernels::make_cpu_backend(cpu);
}

Result<std::unique_ptr<kernels::Backend>> make_cuda_backend(const ModelOptions& options) {
  kernels::CudaOptions cuda;
  cuda.tables_on_host = options.ple_on_host;
  return kernels::open_cuda_backend(cuda);
}

/// Does a device compute the model's shapes rightly? What it cannot run at all, loading says.
core::Status check_device(const ModelOptions& options) {
  TANDEM_ASSIGN(const auto files, model::ModelFiles::open(options.model));
  TANDEM_ASSIGN(const model::ModelConfig target, files->config());
  model::ModelConfig drafter;
  if (!options.draft.empty()) {
    TANDEM_ASSIGN(const auto draft_files, model::ModelFiles::open(options.draft));
    TANDEM_ASSIGN(drafter, draft_files->config());
  }
  const auto status = check_attention([&] { return make_cuda_backend(options); }, target,
                                      options.draft.empty() ? nullptr : &drafter);
  return status.code() == core::Code::kUnimplemented ? core::Status() : status;
}

/// FNV-1a over names, types and shapes of all tensors: tells files of different quantizations and
/// sizes apart without reading the weights.
std::uint32_t digest(const model::ModelFiles& files) {
  std::uint32_t hash = 2166136261u;
  const auto add = [&hash](std::string_view bytes) {
    for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  };
  for (const model::ModelFiles::Tensor& tensor : files.tensors()) {
    add(tensor.name);
    add(core::name(tensor.view->dtype));
    for (const std::int64_t size : tensor.view->shape) add(fmt::format(" {}", size));
  }
  return hash;
}

/// Warns of options for a GPU where there is none, and of memory that is not there: the machine or
/// its container kills the process when the texts have grown long enough.
core::Status check_host(const ModelOptions& options) {
  if (options.gpu_memory_bytes > 0 || options.ple_on_host) {
    core::log_warning("--gpu-memory and --ple are for a GPU; this runs on the CPU without them");
  }
  TANDEM_ASSIGN(const auto target, model::ModelFiles::open(options.model));
  std::unique_ptr<model::ModelFiles> drafter;
  if (!options.draft.empty()) {
    TANDEM_ASSIGN(drafter, model::ModelFiles::open(options.draft));
  }
  ServeBounds bounds{.context = options.context, .max_sequences = options.max_sequences};
  if (options.kv_memory_bytes > 0) bounds.kv_memory_bytes = options.kv_memory_bytes;
  TANDEM_ASSIGN(const MemoryNeed need, memory_need(*target, drafter.get(), bounds));
  const auto available = available_memory();
  if (available && need.total() > *available) {
    core::log_warning(fmt::format(
        "up to {} of memory will be taken, {} of it for KV, but {} are available; lower "
        "--kv-memory, --context or --max-sequences",
        format_size(need.total()), format_size(need.kv()), format_size(*available)));
  }
  return {};
}

/// Reading a vocabulary leaves free blocks behind that the weights, which do not come from the
/// heap, would not use.
void give_back_free_memory() {
#if defined(__GLIBC__)
  ::malloc_trim(0);
#endif
}

/// Of a steady clock.
double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// At most so long a start waits for the costs of steps with and without drafts.
constexpr double kMeasureSeconds = 1.0;

model::LoadOptions load_options(const ModelOptions& options) {
  model::LoadOptions out;
  out.target_path = options.model;
  out.draft_path = options.draft;
  out.max_sequences = options.max_sequences;
  out.max_rows = rows_of_step(options.max_sequences);
  out.max_context = options.context;
  out.kv_memory_bytes = options.kv_memory_bytes;
  out.kv_type = options.kv_type;
  out.device_memory_bytes = options.gpu_memory_bytes;
  out.draft_acceptance = options.draft_acceptance;
  return out;
}

}  // namespace

Result<std::optional<chat::TemplateVariant>> read_template_variant(const model::ModelFiles& files) {
  const auto text = files.chat_template();
  if (text.status().code() == core::Code::kNotFound) return std::optional<chat::TemplateVariant>();
  if (!text.ok()) return text.status();
  const auto variant = chat::detect_variant(*text);
  if (!variant.ok()) return variant.status().with_context(files.path());
  return std::optional(*variant);
}

Result<std::unique_ptr<kernels::Backend>> make_backend(const ModelOptions& options) {
  if (options.device == "reference") return kernels::make_reference_backend();
  if (options.device == "cpu") return make_cpu_backend(options);
  auto cuda = make_cuda_backend(options);
  if (cuda.ok() || options.device == "cuda") return cuda;
  core::log_info(fmt::format("running on the CPU: {}", cuda.status().message()));
  return make_cpu_backend(options);
}

Result<LoadedModel> load_model(const ModelOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  LoadedModel out;
  {
    // A mapping of its own: the model keeps its files only as long as it needs them.
    TANDEM_ASSIGN(const auto files, model::ModelFiles::open(options.model));
    TANDEM_TRY(files->config().status());  // says first if it is no model at all
    TANDEM_ASSIGN(tokenizer::VocabData vocab, files->vocab());
    auto tokenizer = tokenizer::Tokenizer::create(std::move(vocab));
    if (!tokenizer.ok()) return tokenizer.status().with_context(options.model);
    out.tokenizer = std::move(tokenizer).value();
    TANDEM_ASSIGN(out.template_variant, read_template_variant(*files));
    if (!out.template_variant) core::log_warning(files->chat_template().status().message());
    out.sampling = files->sampling();
    out.fingerprint = fmt::format("tandem-{}-{:08x}", TANDEM_VERSION, digest(*files));
  }
  give_back_free_memory();
  TANDEM_ASSIGN(auto backend, make_backend(options));
  TANDEM_TRY(backend->device_memory() ? check_device(options) : check_host(options));
  auto model = model::Model::load(load_options(options), std::move(backend));
  if (options.device == "auto" && model.status().code() == core::Code::kUnimplemented) {
    core::log_info(fmt::format("running on the CPU: {}", model.status().message()));
    TANDEM_ASSIGN(backend, make_cpu_backend(options));
    TANDEM_TRY(check_host(options));
    model = model::Model::load(load_options(options), std::move(backend));
  }
  if (!model.ok()) return model.status();
  out.model = std::move(model).value();
  // What runs it decides the last bits, and so near-ties of a text.
  const std::string device = out.model->backend().describe();
  out.fingerprint += "-" + device.substr(0, device.find(' '));
  engine::EngineOptions engine_options;
  engine_options.draft_length = options.draft_length;
  engine_options.max_context = options.context;
  engine_options.max_queue = options.max_queue;
  if (options.draft_length < 0 && out.model->has_drafter()) {
    TANDEM_ASSIGN(engine_options.step_costs,
                  engine::measure_steps(*out.model, seconds_now, kMeasureSeconds));
  }
  TANDEM_ASSIGN(out.engine, engine::Engine::create(*out.model, *out.tokenizer, engine_options));
  out.max_context = out.engine->context();
  if (out.max_context < options.context) {
    core::log_warning(fmt::format(
        "the context is {} tokens instead of {}: the model was made for {}, and {} of KV memory "
        "hold no more",
        out.max_context, options.context, out.model->limits().max_context,
        format_size(out.model->limits().kv_memory_bytes)));
  }
  if (!options.draft_acceptance.empty()) {
    core::log_warning(
        "--draft-acceptance is set: drafts are accepted by chance and every answer is INVALID");
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  core::log_info(
      fmt::format("loaded {}{}{} in {:.1f} s; {}, {} sequences, context {}, KV memory up to {}",
                  options.model, options.draft.empty() ? "" : " with drafter " + options.draft,
                  out.model->drafts_by_centroids() ? " (centroid head)" : "", elapsed.count(),
                  out.model->backend().describe(), options.max_sequences, out.max_context,
                  format_size(out.model->limits().kv_memory_bytes)));
  return out;
}

}  // namespace tandem::app
