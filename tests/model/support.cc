#include "support.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "tandem/core/cpu_features.h"
#include "tandem/kernels/cpu/cpu_backend.h"
#include "tandem/kernels/cuda/cuda_backend.h"
#include "tandem/kernels/reference/reference_backend.h"
#include "tandem/model/model_files.h"

namespace tandem::testing {
namespace fs = std::filesystem;

std::string data_dir() {
  const char* dir = std::getenv("TANDEM_TEST_DATA");
  return dir != nullptr ? dir : std::string(TANDEM_SOURCE_DIR) + "/tests/data";
}

std::string demo_path(std::string_view name) {
  return std::string(TANDEM_SOURCE_DIR) + "/models/demo/" + std::string(name);
}

constexpr std::string_view kCpuPrefix = "cpu_";

std::unique_ptr<kernels::Backend> make_backend(std::string_view name, int threads) {
  if (name == "reference") return kernels::make_reference_backend();
  if (name == "cuda") {
    auto cuda = kernels::open_cuda_backend({});
    EXPECT_TRUE(cuda.ok()) << cuda.status().message();
    return std::move(cuda).value();
  }
  kernels::CpuOptions options;
  options.threads = threads;
  if (name.starts_with(kCpuPrefix)) options.isa = name.substr(kCpuPrefix.size());
  auto backend = kernels::make_cpu_backend(options);
  EXPECT_TRUE(backend.ok()) << backend.status().message();
  return std::move(backend).value();
}

namespace {

/// `name` without the ending that tells how weights are stored: "tiny-e-fp8" is a "tiny-e".
std::string base_name(const std::string& name, std::initializer_list<std::string_view> endings) {
  for (const std::string_view ending : endings) {
    if (name.ends_with(ending)) return name.substr(0, name.size() - ending.size());
  }
  return name;
}

GoldenModel golden_model(const fs::path& path) {
  const fs::path root = path.parent_path();
  const bool is_file = path.extension() == ".gguf";
  const std::string stem = is_file ? path.stem() : path.filename();
  GoldenModel model;
  model.model_path = path;
  std::vector<fs::path> drafters;
  if (is_file) {
    model.name = base_name(stem, {"-F32", "-BF16", "-F16"});
    const std::size_t dash = stem.rfind('-');
    drafters.push_back(root / (stem.substr(0, dash) + "-assistant" + stem.substr(dash) + ".gguf"));
    drafters.push_back(root / (model.name + "-assistant"));
  } else {
    model.name = stem;
    const std::string base = base_name(stem, {"-fp8", "-nvfp4"});
    drafters.push_back(root / (base + "-assistant"));
    drafters.push_back(root / (base + "-assistant-F16.gguf"));
  }
  for (const fs::path& drafter : drafters) {
    if (fs::exists(drafter)) model.draft_paths.push_back(drafter);
  }
  return model;
}

}  // namespace

std::vector<std::string> backend_names() {
  std::vector<std::string> names = {"reference", "cpu"};
  const auto cuda = kernels::open_cuda_backend({});
  if (cuda.ok()) {
    names.push_back("cuda");
  } else {
    std::cout << "no cases on cuda: " << cuda.status().message() << "\n";
  }
  return names;
}

std::vector<std::string> cpu_names() {
  using core::IsaLevel;
  std::vector<std::string> names;
  for (const IsaLevel level :
       {IsaLevel::kScalar, IsaLevel::kNeon, IsaLevel::kAvx2, IsaLevel::kAvx512}) {
    if (!core::has_isa(level)) continue;
    names.push_back(std::string(kCpuPrefix) + std::string(core::isa_name(level)));
  }
  return names;
}

std::vector<GoldenModel> golden_models() {
  std::vector<GoldenModel> models;
  const fs::path root = data_dir();
  for (const auto& entry : fs::directory_iterator(root / "tiny")) {
    if (entry.path().filename().string().find("-assistant") != std::string::npos) continue;
    if (!entry.is_directory() && entry.path().extension() != ".gguf") continue;
    GoldenModel model = golden_model(entry.path());
    model.golden_path = root / "goldens/tiny" / (model.name + ".safetensors");
    if (!fs::exists(model.golden_path)) {
      std::cout << "no golden for " << entry.path() << "\n";
      continue;
    }
    models.push_back(std::move(model));
  }
  std::sort(models.begin(), models.end(),
            [](const auto& a, const auto& b) { return a.model_path < b.model_path; });
  return models;
}

std::unique_ptr<model::Model> load(const std::string& target, const std::string& draft,
                                   std::unique_ptr<kernels::Backend> backend,
                                   model::LoadOptions options) {
  options.target_path = target;
  options.draft_path = draft;
  auto model = model::Model::load(options, std::move(backend));
  if (model.ok()) return std::move(model).value();
  if (model.status().code() == core::Code::kUnimplemented) {
    std::cout << "skipped: " << model.status().message() << "\n";
  } else {
    ADD_FAILURE() << model.status().message();
  }
  return nullptr;
}

core::Result<std::unique_ptr<model::Model>> load_files(const std::string& target,
                                                       const std::string& draft,
                                                       model::LoadOptions options) {
  options.target_path = target;
  options.draft_path = draft;
  options.kv_memory_bytes = 16 << 20;
  return model::Model::load(options, make_backend("reference"));
}

std::vector<float> score(const std::string& target) {
  const auto model = load_files(target);
  EXPECT_TRUE(model.ok()) << model.status().message();
  if (!model.ok()) return {};
  const std::vector<TokenId> text = {2, 9, 33, 60, 7, 7, 21, 5, 44, 13, 50, 3};
  return (*model)->score(text, 5, 0).value();
}

Weights weights_of(const std::string& model_path) {
  const auto files = model::ModelFiles::open(model_path);
  EXPECT_TRUE(files.ok()) << files.status().message();
  bool is_quantized = false;
  bool has_experts = false;
  for (const auto& tensor : (*files)->tensors()) {
    // The scales of NVFP4 weights have that type, too.
    const bool is_scale = tensor.name.find("scale") != std::string_view::npos;
    const core::DType dtype = tensor.view->dtype;
    if (dtype == core::DType::kF8E4M3 && !is_scale) return Weights::kFp8;
    is_quantized = is_quantized || core::is_block_quantized(dtype) || dtype == core::DType::kU8;
    has_experts = has_experts || tensor.view->rank == 3;
  }
  if (!is_quantized) return Weights::kPlain;
  return has_experts ? Weights::kExperts : Weights::kQuantized;
}

TokenId argmax(std::span<const float> values) {
  return static_cast<TokenId>(std::max_element(values.begin(), values.end()) - values.begin());
}

double log_probability(std::span<const float> logits, TokenId token) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (float logit : logits) total += std::exp(logit - max);
  return logits[static_cast<std::size_t>(token)] - max - std::log(total);
}

}  // namespace tandem::testing
