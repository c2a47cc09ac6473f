#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tandem/app/commands.h"
#include "tandem/app/pending_output.h"
#include "tandem/core/half.h"
#include "tandem/core/print.h"
#include "tandem/formats/encode.h"
#include "tandem/formats/tensor_writer.h"
#include "tandem/model/dry_run_backend.h"
#include "tandem/model/loader.h"
#include "tandem/model/model_files.h"
#include "tandem/model/tensor_list.h"
#include "tandem/model/write_config.h"
#include "tandem/tokenizer/tokenizer_json.h"

namespace tandem::app {
namespace {

namespace fs = std::filesystem;
using core::DType;
using core::Status;
using formats::TensorFileWriter;
using formats::TensorSpec;
using kernels::WeightView;
using model::ListedTensor;
using model::ModelConfig;
using model::ModelFiles;
using model::TensorUse;

/// A model that was checked and can be written in another form.
struct Source {
  std::unique_ptr<ModelFiles> files;
  ModelConfig config;
  std::vector<ListedTensor> tensors;
};

core::Result<Source> open_source(const std::string& path) {
  Source source;
  TANDEM_ASSIGN(source.files, ModelFiles::open(path));
  TANDEM_ASSIGN(source.config, source.files->config());
  if (source.config.experts > 0) {
    return core::unimplemented(
        fmt::format("{}: a mixture-of-experts model cannot be converted; serve it as it is", path));
  }
  // Says what is missing or has another shape before a byte is written.
  const auto backend = model::make_dry_run_backend(nullptr);
  TANDEM_TRY(
      source.config.is_drafter()
          ? model::load_drafter(*source.files, source.config, {}, *backend, model::DraftHead::kAuto)
                .status()
          : model::load_target(*source.files, source.config, *backend).status());
  source.tensors = model::list_tensors(source.config, *source.files);
  for (const ListedTensor& tensor : source.tensors) {
    const std::string name = source.files->tensor_name(tensor.key);
    if (source.files->has_weight(name)) continue;
    return core::unimplemented(
        fmt::format("{}: there is no tensor \"{}\"; a file with joined tensors cannot be converted",
                    path, name));
  }
  return source;
}

/// Writes the values of a weight row by row, and gives their pages back.
Status write_values(const Source& source, const ListedTensor& tensor, DType dtype,
                    TensorFileWriter& out) {
  TANDEM_ASSIGN(const WeightView view, source.files->weight(source.files->tensor_name(tensor.key)));
  std::vector<float> row(static_cast<std::size_t>(view.cols()));
  std::vector<std::byte> bytes(core::row_bytes(dtype, view.cols()));
  for (std::int64_t r = 0; r < view.rows(); ++r) {
    view.values(r, row);
    formats::encode_row(dtype, row, bytes.data());
    out.append(bytes);
  }
  source.files->forget(view.tensor);
  return {};
}

/// Codes of every row, then the scales of all.
Status write_fp8(const Source& source, const ListedTensor& tensor, TensorFileWriter& out) {
  TANDEM_ASSIGN(const WeightView view, source.files->weight(source.files->tensor_name(tensor.key)));
  std::vector<float> row(static_cast<std::size_t>(view.cols()));
  std::vector<std::byte> codes(row.size());
  std::vector<std::uint16_t> scales;
  for (std::int64_t r = 0; r < view.rows(); ++r) {
    view.values(r, row);
    scales.push_back(core::f32_to_bf16(formats::encode_e4m3_row(row, codes.data())));
    out.append(codes);
  }
  out.append(std::as_bytes(std::span(scales)));
  source.files->forget(view.tensor);
  return {};
}

/// Token ids as I64 or I32.
template <typename T>
Status write_ids(const Source& source, const ListedTensor& tensor, TensorFileWriter& out) {
  const std::string name = source.files->tensor_name(tensor.key);
  TANDEM_ASSIGN(const WeightView view, source.files->weight(name));
  TANDEM_ASSIGN(const auto ids, kernels::read_token_ids(view, source.config.vocab, name));
  const std::vector<T> wide(ids.begin(), ids.end());
  out.append(std::as_bytes(std::span(wide)));
  return {};
}

Status write_text(const std::string& directory, const char* name, const std::string& text) {
  const std::string path = (fs::path(directory) / name).string();
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (out) return {};
  return core::resource_exhausted(
      fmt::format("{}: cannot write the file; is the disk full?", path));
}

/// Everything of a Hugging Face directory but the weights.
Status write_descriptions(const Source& source, const std::string& directory,
                          model::WeightForm form) {
  TANDEM_ASSIGN(const tokenizer::VocabData vocab, source.files->vocab());
  TANDEM_TRY(write_text(directory, "config.json", model::write_config_json(source.config, form)));
  TANDEM_TRY(
      write_text(directory, "generation_config.json",
                 model::write_generation_json(source.config, vocab, source.files->sampling())));
  TANDEM_TRY(write_text(directory, "tokenizer.json", tokenizer::write_tokenizer_json(vocab)));
  const auto chat_template = source.files->chat_template();
  return chat_template.ok() ? write_text(directory, "chat_template.jinja", *chat_template)
                            : Status();
}

Status write_hf(const Source& source, const std::string& directory, bool is_fp8) {
  constexpr std::string_view kPrefix = "model.";
  std::vector<TensorSpec> specs;
  for (const ListedTensor& tensor : source.tensors) {
    const std::string name = model::hf_name(tensor.key, kPrefix);
    if (tensor.use == TensorUse::kTokenIds) {
      specs.push_back({name, DType::kI64, {tensor.cols}});
    } else if (tensor.use == TensorUse::kVector) {
      specs.push_back({name, DType::kBF16, {tensor.cols}});
    } else if (tensor.use == TensorUse::kLinear && is_fp8) {
      specs.push_back({name, DType::kF8E4M3, {tensor.rows, tensor.cols}});
      specs.push_back({name + "_scale", DType::kBF16, {tensor.rows, 1}});
    } else {
      specs.push_back({name, DType::kBF16, {tensor.rows, tensor.cols}});
    }
  }
  const auto is_head = [](const ListedTensor& tensor) {
    return tensor.key.role == model::TensorRole::kOutput;
  };
  const bool is_tied = std::none_of(source.tensors.begin(), source.tensors.end(), is_head);
  TANDEM_TRY(write_descriptions(source, directory, {is_fp8, is_tied}));
  const std::string path = (fs::path(directory) / "model.safetensors").string();
  TANDEM_ASSIGN(auto out, TensorFileWriter::safetensors(path, std::move(specs)));
  for (const ListedTensor& tensor : source.tensors) {
    if (tensor.use == TensorUse::kTokenIds) {
      TANDEM_TRY(write_ids<std::int64_t>(source, tensor, out));
    } else if (tensor.use == TensorUse::kLinear && is_fp8) {
      TANDEM_TRY(write_fp8(source, tensor, out));
    } else {
      TANDEM_TRY(write_values(source, tensor, DType::kBF16, out));
    }
  }
  return out.finish();
}

/// Q8_0 where rows hold whole blocks, else F16; vectors in F32.
DType gguf_dtype(const ListedTensor& tensor) {
  if (tensor.use == TensorUse::kTokenIds) return DType::kI32;
  if (tensor.use == TensorUse::kVector) return DType::kF32;
  return tensor.cols % core::traits(DType::kQ8_0).block_elements == 0 ? DType::kQ8_0 : DType::kF16;
}

Status write_drafter_gguf(const Source& source, const std::string& path) {
  if (!source.config.is_drafter()) {
    return core::unimplemented(
        "only assistants are written as Q8_0; convert a target to bf16 or fp8");
  }
  std::vector<TensorSpec> specs;
  for (const ListedTensor& tensor : source.tensors) {
    const bool is_matrix = tensor.use == TensorUse::kLinear || tensor.use == TensorUse::kTable;
    TensorSpec spec = {model::gguf_name(tensor.key), gguf_dtype(tensor), {tensor.cols}};
    if (is_matrix) spec.shape.insert(spec.shape.begin(), tensor.rows);
    specs.push_back(std::move(spec));
  }
  // Frequencies are divided by these: what does not turn is divided by 1e30.
  const auto& full = source.config.rope_frequencies[1];
  std::vector<float> factors;
  for (const float frequency : full) factors.push_back(frequency == 0.0F ? 1e30F : 1.0F);
  if (!factors.empty()) {
    specs.push_back(
        {"rope_freqs.weight", DType::kF32, {static_cast<std::int64_t>(factors.size())}});
  }
  TANDEM_ASSIGN(const tokenizer::VocabData vocab, source.files->vocab());
  const auto chat_template = source.files->chat_template();
  const auto keys =
      model::write_drafter_keys(source.config, vocab, chat_template.ok() ? *chat_template : "");
  TANDEM_ASSIGN(auto out, TensorFileWriter::gguf(path, keys, std::move(specs)));
  for (const ListedTensor& tensor : source.tensors) {
    TANDEM_TRY(tensor.use == TensorUse::kTokenIds
                   ? write_ids<std::int32_t>(source, tensor, out)
                   : write_values(source, tensor, gguf_dtype(tensor), out));
  }
  if (!factors.empty()) out.append(std::as_bytes(std::span(factors)));
  return out.finish();
}

Status convert(const ConvertOptions& options) {
  TANDEM_ASSIGN(const Source source, open_source(options.input));
  TANDEM_ASSIGN(PendingOutput output, PendingOutput::create(options.output));
  const bool is_fp8 = options.form == "fp8";
  if (is_fp8 && source.config.is_drafter()) {
    return core::unimplemented("an assistant is not written as FP8; convert it to bf16 or q8_0");
  }
  if (options.form == "q8_0") {
    TANDEM_TRY(write_drafter_gguf(source, output.path()));
  } else {
    TANDEM_TRY(output.make_directory());
    TANDEM_TRY(write_hf(source, output.path(), is_fp8));
  }
  return output.commit();
}

}  // namespace

int convert_main(const ConvertOptions& options) {
  const Status status = convert(options);
  if (!status.ok()) return fail(status);
  core::print(stdout, fmt::format("{}\n", options.output));
  return 0;
}

}  // namespace tandem::app
