#include "support.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "tandem/formats/gguf.h"
#include "tandem/kernels/cpu/cpu_backend.h"
#include "tandem/kernels/reference/reference_backend.h"

namespace tandem::testing {
namespace fs = std::filesystem;

std::string data_dir() {
  const char* dir = std::getenv("TANDEM_TEST_DATA");
  return dir != nullptr ? dir : std::string(TANDEM_SOURCE_DIR) + "/tests/data";
}

std::string demo_path(std::string_view name) {
  return std::string(TANDEM_SOURCE_DIR) + "/models/demo/" + std::string(name);
}

std::unique_ptr<kernels::Backend> make_backend(std::string_view name, int threads) {
  if (name == "reference") return kernels::make_reference_backend();
  kernels::CpuOptions options;
  options.threads = threads;
  auto backend = kernels::make_cpu_backend(options);
  EXPECT_TRUE(backend.ok()) << backend.status().message();
  return std::move(backend).value();
}

std::vector<GoldenModel> golden_models() {
  std::vector<GoldenModel> models;
  const fs::path root = data_dir();
  for (const auto& entry : fs::directory_iterator(root / "tiny")) {
    const std::string stem = entry.path().stem();
    if (entry.path().extension() != ".gguf" || stem.find("-assistant") != std::string::npos) {
      continue;
    }
    const std::size_t dash = stem.rfind('-');
    std::string golden = stem;
    for (std::string_view suffix : {"-F32", "-BF16", "-F16"}) {
      if (stem.ends_with(suffix)) golden = stem.substr(0, dash);
    }
    const fs::path golden_path = root / "goldens/tiny" / (golden + ".safetensors");
    if (!fs::exists(golden_path)) {
      std::cout << "no golden for " << entry.path() << "\n";
      continue;
    }
    const fs::path draft =
        root / "tiny" / (stem.substr(0, dash) + "-assistant" + stem.substr(dash) + ".gguf");
    models.push_back({golden, golden_path, entry.path(), fs::exists(draft) ? draft.string() : ""});
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

bool is_quantized(const std::string& gguf_path) {
  auto file = formats::GgufFile::open(gguf_path);
  EXPECT_TRUE(file.ok());
  const auto tensors = file->tensors();
  return std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return core::is_block_quantized(tensor.view.dtype);
  });
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
