#include "tandem/formats/safetensors_set.h"

#include <fmt/core.h>

#include <boost/json.hpp>
#include <filesystem>
#include <utility>

#include "tandem/core/printable.h"
#include "tandem/formats/mapped_file.h"

namespace tandem::formats {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using core::Result;
using core::Status;

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
/// A million tensors with names of 200 bytes.
constexpr std::size_t kMaxIndexBytes = 256u << 20;
constexpr std::size_t kMaxParts = 4096;

Status damaged(const std::string& path, std::string_view what) {
  return core::data_loss(fmt::format("{}: {}; download it again", path, what));
}

/// True for a name that cannot lead out of the directory.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() < 256 && name.find('/') == name.npos &&
         name.find('\0') == name.npos && name.find('\\') == name.npos && name != "." &&
         name != "..";
}

/// Tensor name -> file name.
Result<std::map<std::string, std::string>> read_index(const std::string& path) {
  TANDEM_ASSIGN(const MappedFile file, MappedFile::open(path));
  if (file.bytes().size() > kMaxIndexBytes) {
    return damaged(path, fmt::format("an index of {} bytes is too large", file.bytes().size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  json::error_code error;
  const json::value root = json::parse(text, error);
  if (error) return damaged(path, "is " + core::why_not_json(text, error.message()));
  const json::value* map = root.is_object() ? root.get_object().if_contains("weight_map") : nullptr;
  if (map == nullptr || !map->is_object()) return damaged(path, "has no \"weight_map\" object");
  std::map<std::string, std::string> out;
  for (const auto& [name, part] : map->get_object()) {
    if (!part.is_string() || !is_plain_file_name(part.get_string())) {
      return damaged(path, fmt::format("names {} as the file of tensor \"{}\", which is no file of "
                                       "this directory",
                                       core::printable(json::serialize(part), 128),
                                       core::printable(name, 128)));
    }
    out.emplace(name, part.get_string());
  }
  if (out.empty()) return damaged(path, "names no tensor");
  return out;
}

}  // namespace

Result<SafetensorsSet> SafetensorsSet::open(const std::string& directory) {
  SafetensorsSet set;
  const std::string single = (fs::path(directory) / kSingle).string();
  const std::string index = (fs::path(directory) / kIndex).string();
  std::error_code error;
  if (fs::exists(single, error)) {
    TANDEM_ASSIGN(SafetensorsFile file, SafetensorsFile::open(single));
    for (const SafetensorsFile::Tensor& tensor : file.tensors()) {
      set.tensors_.emplace(tensor.name, tensor.view);
    }
    set.files_.push_back(std::move(file));
    return set;
  }
  if (!fs::exists(index, error)) {
    return core::not_found(
        fmt::format("{}: there is neither {} nor {}; give the directory of a Hugging Face "
                    "checkpoint or a GGUF file",
                    directory, kSingle, kIndex));
  }
  TANDEM_TRY(set.open_parts(directory, index));
  return set;
}

Status SafetensorsSet::open_parts(const std::string& directory, const std::string& index_path) {
  TANDEM_ASSIGN(const auto index, read_index(index_path));
  std::map<std::string_view, std::size_t> opened;
  for (const auto& [name, part] : index) {
    auto it = opened.find(part);
    if (it == opened.end()) {
      if (opened.size() == kMaxParts) {
        return damaged(index_path, fmt::format("names more than {} files", kMaxParts));
      }
      const std::string path = (fs::path(directory) / part).string();
      auto file = SafetensorsFile::open(path);
      if (file.status().code() == core::Code::kNotFound) {
        return core::not_found(
            fmt::format("{}: the file is missing, but {} names it; download it too", path, kIndex));
      }
      if (!file.ok()) return file.status();
      it = opened.emplace(part, files_.size()).first;
      files_.push_back(std::move(file).value());
    }
    const core::TensorView* view = files_[it->second].find(name);
    if (view == nullptr) {
      return damaged(index_path, fmt::format("names tensor \"{}\" in {}, which does not have it",
                                             core::printable(name, 128), part));
    }
    tensors_.emplace(name, *view);
  }
  return {};
}

std::vector<SafetensorsSet::Tensor> SafetensorsSet::tensors() const {
  std::vector<Tensor> out;
  out.reserve(tensors_.size());
  for (const auto& [name, view] : tensors_) out.push_back({name, &view});
  return out;
}

const core::TensorView* SafetensorsSet::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

const MappedFile* SafetensorsSet::file_of(const core::TensorView& view) const {
  for (const SafetensorsFile& file : files_) {
    if (file.file().holds(view.data)) return &file.file();
  }
  return nullptr;
}

void SafetensorsSet::forget_all() const {
  for (const SafetensorsFile& file : files_) file.file().forget(file.file().bytes());
}

}  // namespace tandem::formats
