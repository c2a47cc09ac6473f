#include "tandem/model/gguf_files.h"

#include <fmt/format.h>

#include <utility>

#include "tandem/core/printable.h"
#include "tandem/formats/gguf.h"
#include "tandem/model/vocab_gguf.h"

namespace tandem::model {
namespace {

class GgufFiles final : public ModelFiles {
 public:
  explicit GgufFiles(formats::GgufFile file) : file_(std::move(file)) {}

  const std::string& path() const override { return file_.path(); }
  std::string name() const override {
    const auto name = file_.get_string("general.name");
    return name.ok() ? core::printable(*name, kMaxNameBytes) : std::string();
  }
  std::string_view kind() const override { return "GGUF"; }

  core::Result<ModelConfig> config() const override { return read_config(file_); }
  core::Result<tokenizer::VocabData> vocab() const override { return read_vocab(file_); }
  core::Result<std::vector<std::string>> tokens() const override {
    constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
    if (!file_.has(kTokens)) return std::vector<std::string>();
    TANDEM_ASSIGN(const auto tokens, file_.get_strings(kTokens));
    return std::vector<std::string>(tokens.begin(), tokens.end());
  }
  core::Result<std::string> chat_template() const override { return read_chat_template(file_); }
  kernels::SamplingParams sampling() const override;

  std::string tensor_name(TensorKey key) const override { return gguf_name(key); }
  core::Result<kernels::WeightView> weight(const std::string& name) const override;
  bool has_weight(const std::string& name) const override { return file_.find(name) != nullptr; }
  const formats::MappedFile* file_of(const core::TensorView& view) const override {
    return file_.file_of(view);
  }
  void forget_all() const override { file_.forget_all(); }

  std::vector<Tensor> tensors() const override {
    std::vector<Tensor> out;
    for (const formats::GgufFile::Tensor& tensor : file_.tensors()) {
      out.push_back({tensor.name, &tensor.view});
    }
    return out;
  }
  std::vector<std::pair<std::string, std::string>> describe_metadata() const override {
    return file_.describe_metadata();
  }

 private:
  formats::GgufFile file_;
};

kernels::SamplingParams GgufFiles::sampling() const {
  kernels::SamplingParams out = gemma_sampling();
  const auto temperature = file_.get_float("general.sampling.temp");
  if (temperature.ok() && *temperature >= 0.0) out.temperature = static_cast<float>(*temperature);
  const auto top_k = file_.get_uint("general.sampling.top_k");
  if (top_k.ok() && *top_k <= 1u << 30) out.top_k = static_cast<std::int32_t>(*top_k);
  const auto top_p = file_.get_float("general.sampling.top_p");
  if (top_p.ok() && *top_p > 0.0 && *top_p <= 1.0) out.top_p = static_cast<float>(*top_p);
  return out;
}

/// A weight X.weight may have X.scale: one factor, or one for each expert (NVFP4 files).
core::Result<kernels::WeightView> GgufFiles::weight(const std::string& name) const {
  constexpr std::string_view kWeight = ".weight";
  const core::TensorView* view = file_.find(name);
  if (view == nullptr) return missing_tensor(path(), name);
  kernels::WeightView out = *view;
  if (!name.ends_with(kWeight)) return out;
  const std::string scale_name = name.substr(0, name.size() - kWeight.size()) + ".scale";
  // These two are vectors of the router, not scales of the weight beside them.
  for (const std::string_view router : {".ffn_gate_inp.scale", ".ffn_down_exps.scale"}) {
    if (scale_name.ends_with(router)) return out;
  }
  const core::TensorView* scales = file_.find(scale_name);
  if (scales == nullptr) return out;
  const std::int64_t parts = view->rank == 3 ? view->shape[0] : 1;
  if (scales->elements() != parts) {
    return core::data_loss(fmt::format(
        "{}: tensor \"{}\" has {} values, expected {}; the file is damaged, get it again", path(),
        scale_name, scales->elements(), parts));
  }
  out.scales = *scales;
  out.scale_rows = view->rows() / parts;
  out.scale_cols = view->cols();
  return out;
}

}  // namespace

core::Result<std::unique_ptr<ModelFiles>> open_gguf_files(const std::string& path) {
  TANDEM_ASSIGN(formats::GgufFile file, formats::GgufFile::open(path));
  return std::unique_ptr<ModelFiles>(std::make_unique<GgufFiles>(std::move(file)));
}

}  // namespace tandem::model
