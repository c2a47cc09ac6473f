#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/tensor.h"
#include "tandem/formats/mapped_file.h"

namespace tandem::formats {

/// One .safetensors file, fully checked at open: the header is JSON of the right shape, every
/// tensor's bytes lie inside the file, match its type and shape, and the tensors fill the data
/// section without gap or overlap. Views die with the file and may be misaligned; a size of 0 in
/// a shape is legal. Thread: any once open. Source: spec/formats.md section 5.
class SafetensorsFile {
 public:
  /// Fails with kNotFound or kInvalidArgument (see MappedFile::open), kDataLoss (what, where) or
  /// kUnimplemented (a type that is not in DType, more than 4 dimensions). Messages name the path.
  static core::Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return file_.path(); }

  struct Tensor {
    std::string name;
    core::TensorView view;
  };
  /// In the order of their bytes.
  std::span<const Tensor> tensors() const { return tensors_; }
  /// Null when absent.
  const core::TensorView* find(std::string_view name) const;

  /// The header's "__metadata__" strings.
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }

  const MappedFile& file() const { return file_; }

 private:
  friend class SafetensorsParser;

  MappedFile file_;
  std::map<std::string, std::string, std::less<>> metadata_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> tensor_index_;
};

}  // namespace tandem::formats
