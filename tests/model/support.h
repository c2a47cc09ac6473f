#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/kernels/backend.h"
#include "tandem/model/model.h"

namespace tandem::testing {

/// TANDEM_TEST_DATA if set, else tests/data of the source tree.
std::string data_dir();
/// Path of a file of the demo pair.
std::string demo_path(std::string_view name);
inline constexpr std::string_view kDemoTarget = "demo-it-Q4_K_M.gguf";
inline constexpr std::string_view kDemoDrafter = "mtp-demo-it-Q8_0.gguf";

/// A backend under test, by name: "reference", "cpu", "cpu_avx2" and so on (cpu_names()) or "cuda".
/// Cases are parametrized by it alone: the models come from a directory that may change after the
/// cases were listed. The number of threads of cpu changes no bits; on tiny models barriers would
/// be all of the work.
std::unique_ptr<kernels::Backend> make_backend(std::string_view name, int threads = 1);

/// The backends that this machine runs; a line in the log says why cuda is not among them.
std::vector<std::string> backend_names();

/// The CPU's backend with each instruction set of this machine, the plain code first and the
/// fastest one last.
std::vector<std::string> cpu_names();

class PerBackend : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<kernels::Backend> backend(int threads = 1) const {
    return make_backend(GetParam(), threads);
  }
};

/// Instantiates a PerBackend suite under "prefix" for every backend.
#define TANDEM_FOR_EACH_BACKEND(prefix, suite)                                           \
  INSTANTIATE_TEST_SUITE_P(prefix, suite, ::testing::ValuesIn(testing::backend_names()), \
                           [](const auto& info) { return info.param; })

/// A tiny model with what the reference implementation computed on the same weights.
struct GoldenModel {
  std::string name;                      ///< of the golden
  std::string golden_path;               ///< .safetensors
  std::string model_path;                ///< GGUF file or Hugging Face directory
  std::vector<std::string> draft_paths;  ///< of either kind

  /// The first drafter, or empty.
  std::string draft_path() const { return draft_paths.empty() ? "" : draft_paths.front(); }
};

/// Every target of the data directory that has a golden: of its own name, or for GGUF files of
/// unquantized weights of the name without the type.
std::vector<GoldenModel> golden_models();

/// Loads a model, or records why not: nullptr with a failure, or for a feature that Tandem does
/// not have with a line in the log.
std::unique_ptr<model::Model> load(const std::string& target, const std::string& draft,
                                   std::unique_ptr<kernels::Backend> backend,
                                   model::LoadOptions options = {});

/// The same on the reference backend with little KV memory, as Model::load() answers.
core::Result<std::unique_ptr<model::Model>> load_files(const std::string& target,
                                                       const std::string& draft = "",
                                                       model::LoadOptions options = {});

/// Logits [12, V] of a fixed text by load_files(); empty, and a failure, if that does not load.
std::vector<float> score(const std::string& target);

/// How a model's linears are stored, which decides how their inputs are rounded.
enum class Weights {
  kPlain,      ///< not rounded
  kQuantized,  ///< in blocks: integer backends round inputs
  kExperts,    ///< the same with a router, which may choose another expert for it
  kFp8,        ///< every backend rounds inputs to e4m3
};
Weights weights_of(const std::string& model_path);

/// Index of the largest of `count` values.
TokenId argmax(std::span<const float> values);

/// log softmax(logits)[token], in double.
double log_probability(std::span<const float> logits, TokenId token);

}  // namespace tandem::testing
