// Models split over several files by llama-gguf-split, spec/formats.md section 1.

#include <fmt/format.h>

#include <utility>

#include "tandem/core/printable.h"
#include "tandem/formats/gguf.h"

namespace tandem::formats {
namespace {

using core::Result;
using core::Status;

constexpr std::uint64_t kMaxParts = 99999;  // five digits

std::string part_ending(std::uint64_t number, std::uint64_t num_parts) {
  return fmt::format("-{:05}-of-{:05}.gguf", number + 1, num_parts);
}

}  // namespace

Result<GgufFile> GgufFile::open(const std::string& path) {
  TANDEM_ASSIGN(GgufFile file, open_part(path));
  if (!file.has("split.count")) return file;
  TANDEM_ASSIGN(const std::uint64_t num_parts, file.get_uint("split.count"));
  if (num_parts > 1) TANDEM_TRY(file.join_parts(num_parts));
  return file;
}

Status GgufFile::join_parts(std::uint64_t num_parts) {
  std::uint64_t number = 0;
  if (has("split.no")) {
    TANDEM_ASSIGN(number, get_uint("split.no"));
  }
  const std::string own_path = path();
  if (num_parts > kMaxParts || number >= num_parts ||
      !own_path.ends_with(part_ending(number, num_parts))) {
    return core::invalid_argument(fmt::format(
        "{}: the file is part {} of {}, but is not called NAME{}; give it its name back, beside "
        "the other parts",
        own_path, number + 1, num_parts, part_ending(number, num_parts)));
  }
  const std::string base =
      own_path.substr(0, own_path.size() - part_ending(number, num_parts).size());
  if (number != 0) {
    return core::invalid_argument(fmt::format("{}: the file is part {} of {}; give the first, {}{}",
                                              own_path, number + 1, num_parts, base,
                                              part_ending(0, num_parts)));
  }
  for (std::uint64_t i = 1; i < num_parts; ++i) {
    auto part = open_part(base + part_ending(i, num_parts));
    if (part.status().code() == core::Code::kNotFound) {
      return core::not_found(
          fmt::format("{}{}: part {} of the model is missing; put all {} parts into one directory",
                      base, part_ending(i, num_parts), i + 1, num_parts));
    }
    if (!part.ok()) return part.status();
    TANDEM_TRY(add_part(std::move(part).value(), i, num_parts));
  }
  if (!has("split.tensors.count")) return {};
  TANDEM_ASSIGN(const std::uint64_t total, get_uint("split.tensors.count"));
  if (total == tensors_.size()) return {};
  return core::data_loss(fmt::format(
      "{}: the {} parts hold {} tensors where key \"split.tensors.count\" names {}; download them "
      "again",
      own_path, num_parts, tensors_.size(), total));
}

Status GgufFile::add_part(GgufFile part, std::uint64_t number, std::uint64_t num_parts) {
  TANDEM_ASSIGN(const std::uint64_t part_number, part.get_uint("split.no"));
  TANDEM_ASSIGN(const std::uint64_t part_count, part.get_uint("split.count"));
  if (part_number != number || part_count != num_parts) {
    return core::data_loss(
        fmt::format("{}: the file says that it is part {} of {}, not part {} of {}; download it "
                    "again",
                    part.path(), part_number + 1, part_count, number + 1, num_parts));
  }
  for (Tensor& tensor : part.tensors_) {
    if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) {
      return core::data_loss(
          fmt::format("{}: tensor \"{}\" is in another part, too; download the "
                      "parts again",
                      part.path(), core::printable(tensor.name, 128)));
    }
    tensors_.push_back(std::move(tensor));
  }
  other_files_.push_back(std::move(part.file_));
  return {};
}

const MappedFile* GgufFile::file_of(const core::TensorView& view) const {
  if (file_.holds(view.data)) return &file_;
  for (const MappedFile& file : other_files_) {
    if (file.holds(view.data)) return &file;
  }
  return nullptr;
}

void GgufFile::forget_all() const {
  file_.forget(file_.bytes());
  for (const MappedFile& file : other_files_) file.forget(file.bytes());
}

}  // namespace tandem::formats
