#include "tandem/model/model_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "tandem/model/gguf_files.h"
#include "tandem/model/hf_files.h"

namespace tandem::model {

core::Result<std::unique_ptr<ModelFiles>> ModelFiles::open(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return open_hf_files(path);
  return open_gguf_files(path);
}

void ModelFiles::forget(const core::TensorView& view) const {
  if (const auto* file = file_of(view)) file->forget({view.data, view.bytes()});
}

core::Status missing_tensor(const std::string& path, std::string_view name) {
  return core::not_found(
      fmt::format("{}: tensor \"{}\" is missing; the model is damaged, get it again", path, name));
}

namespace {

/// Whether both keep their vocabulary in the same text, which then need not be read.
bool have_one_text(const ModelFiles& a, const ModelFiles& b) {
  const auto text_a = a.vocab_text();
  const auto text_b = b.vocab_text();
  return text_a.ok() && text_b.ok() && std::ranges::equal(text_a->bytes(), text_b->bytes());
}

}  // namespace

core::Status check_same_vocab(const ModelFiles& target, const ModelFiles& drafter) {
  if (have_one_text(target, drafter)) return {};
  TANDEM_ASSIGN(const auto a, target.tokens());
  TANDEM_ASSIGN(const auto b, drafter.tokens());
  if (a.empty() || b.empty()) return {};
  const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (in_a == a.end() && in_b == b.end()) return {};
  return core::failed_precondition(
      fmt::format("the drafter does not fit the target: their vocabularies differ at token {}; use "
                  "the drafter that was made for this model",
                  in_a - a.begin()));
}

}  // namespace tandem::model
