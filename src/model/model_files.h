#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/tensor.h"
#include "tandem/formats/mapped_file.h"
#include "tandem/kernels/step.h"
#include "tandem/kernels/weight.h"
#include "tandem/model/config.h"
#include "tandem/model/tensor_role.h"
#include "tandem/tokenizer/vocab.h"

namespace tandem::model {

/// The files of a target or a drafter: one GGUF file, or a Hugging Face directory. Offers under one
/// set of names what the two keep under names of their own. Views die with it. Thread: any.
class ModelFiles {
 public:
  static constexpr std::size_t kMaxNameBytes = 128;

  /// Maps and checks the containers: kNotFound, kInvalidArgument, kDataLoss or kUnimplemented with
  /// one sentence that names the file. What is in them is judged by the calls below.
  static core::Result<std::unique_ptr<ModelFiles>> open(const std::string& path);
  virtual ~ModelFiles() = default;

  virtual const std::string& path() const = 0;
  /// What the files call themselves, for people: general.name, or the directory's; may be empty.
  /// Printable, at most kMaxNameBytes.
  virtual std::string name() const = 0;
  /// "GGUF" or "Hugging Face".
  virtual std::string_view kind() const = 0;

  virtual core::Result<ModelConfig> config() const = 0;
  virtual core::Result<tokenizer::VocabData> vocab() const = 0;
  /// The entries of the vocabulary alone; empty if the files have none.
  virtual core::Result<std::vector<std::string>> tokens() const = 0;
  /// A file with nothing but the vocabulary, equal in files with equal ones; kNotFound if there is
  /// none.
  virtual core::Result<formats::MappedFile> vocab_text() const {
    return core::not_found("the vocabulary has no file of its own");
  }
  /// Jinja; kNotFound if the files have none.
  virtual core::Result<std::string> chat_template() const = 0;
  /// What the files recommend, else Gemma's defaults; the seed is not set.
  virtual kernels::SamplingParams sampling() const = 0;

  /// How the files spell a tensor's name; empty for one that this kind of files cannot hold.
  virtual std::string tensor_name(TensorKey key) const = 0;
  /// A weight of that name with its scales, if it has any. kNotFound if it is absent, kDataLoss if
  /// a scale is missing or none of the shapes that it may have.
  virtual core::Result<kernels::WeightView> weight(const std::string& name) const = 0;
  virtual bool has_weight(const std::string& name) const = 0;
  /// The file that holds a tensor's bytes.
  virtual const formats::MappedFile* file_of(const core::TensorView& view) const = 0;
  /// Says that a tensor's bytes will not be read soon: their pages leave the resident set.
  void forget(const core::TensorView& view) const;
  /// The same of everything that is mapped.
  virtual void forget_all() const = 0;

  struct Tensor {
    std::string_view name;
    const core::TensorView* view;
  };
  /// Every tensor of the files, used or not.
  virtual std::vector<Tensor> tensors() const = 0;
  /// Says in half a sentence which tensors no text model needs; empty if there are none.
  virtual std::string describe_unused() const { return ""; }
  /// Every key with its value on one line, for inspect.
  virtual std::vector<std::pair<std::string, std::string>> describe_metadata() const = 0;
};

/// What Google recommends for every size, where the files say nothing.
inline kernels::SamplingParams gemma_sampling() {
  return {.temperature = 1.0F, .top_k = 64, .top_p = 0.95F};
}

/// kNotFound: "PATH: tensor NAME is missing".
core::Status missing_tensor(const std::string& path, std::string_view name);

/// Whether two models spell the same tokens under the same ids: kFailedPrecondition names the first
/// that differs. Files without a vocabulary agree with any.
core::Status check_same_vocab(const ModelFiles& target, const ModelFiles& drafter);

}  // namespace tandem::model
