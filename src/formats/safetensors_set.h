#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/tensor.h"
#include "tandem/formats/safetensors.h"

namespace tandem::formats {

/// The tensors of a checkpoint directory: model.safetensors, or else the files that
/// model.safetensors.index.json names. Views die with the set. Thread: any once open.
/// Source: spec/formats.md section 5.
class SafetensorsSet {
 public:
  /// Fails as SafetensorsFile::open; kNotFound also if the directory has neither file or lacks one
  /// that the index names, kDataLoss if the index is not one, names a file outside the directory,
  /// or a tensor that is not in the file that it names.
  static core::Result<SafetensorsSet> open(const std::string& directory);

  std::span<const SafetensorsFile> files() const { return files_; }

  struct Tensor {
    std::string_view name;
    const core::TensorView* view;
  };
  /// By name.
  std::vector<Tensor> tensors() const;
  /// Null when absent.
  const core::TensorView* find(std::string_view name) const;

  /// The file that holds a tensor; null if none does.
  const MappedFile* file_of(const core::TensorView& view) const;
  /// MappedFile::forget of all files.
  void forget_all() const;

 private:
  /// Maps the files of the index and finds its tensors there.
  core::Status open_parts(const std::string& directory, const std::string& index_path);

  std::vector<SafetensorsFile> files_;
  std::map<std::string, core::TensorView, std::less<>> tensors_;
};

}  // namespace tandem::formats
