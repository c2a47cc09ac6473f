// make_seeds FOLDER FILE...: writes the heads of GGUF and safetensors files, as inputs of gguf_fuzz
// and safetensors_fuzz (sparse_file.h), into FOLDER/TARGET.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "gguf_image.h"
#include "safetensors_image.h"
#include "sparse_file.h"
#include "tandem/formats/gguf.h"
#include "tandem/formats/safetensors.h"

namespace {

namespace fs = std::filesystem;
using tandem::formats::GgufFile;
using tandem::formats::GgufImage;
using tandem::formats::MappedFile;
using tandem::formats::SafetensorsFile;
using tandem::fuzz::SparseFile;

void write(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

/// What lies before the tensors of a file.
template <typename Tensors>
std::string seed_of(const MappedFile& file, const Tensors& tensors) {
  const std::byte* first = file.bytes().data() + file.bytes().size();
  for (const auto& tensor : tensors) first = std::min(first, tensor.view.data);
  const auto head = static_cast<std::size_t>(first - file.bytes().data());
  return SparseFile::input({reinterpret_cast<const char*>(file.bytes().data()), head},
                           file.bytes().size());
}

bool add(const fs::path& folder, const std::string& path) {
  const std::string name =
      fs::path(path).parent_path().filename().string() + "-" + fs::path(path).filename().string();
  if (path.ends_with(".gguf")) {
    const auto file = GgufFile::open(path);
    if (!file.ok()) return false;
    write(folder / "gguf_fuzz" / name,
          seed_of(*file->file_of(file->tensors()[0].view), file->tensors()));
    return true;
  }
  const auto file = SafetensorsFile::open(path);
  if (!file.ok()) return false;
  write(folder / "safetensors_fuzz" / name, seed_of(file->file(), file->tensors()));
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const fs::path folder = argv[1];
  GgufImage gguf = GgufImage::small();
  write(folder / "gguf_fuzz" / "small", SparseFile::input(gguf.bytes(), gguf.bytes().size()));
  tandem::testing::SafetensorsImage safetensors;
  safetensors.tensors = {{"a", {"F32", {1, 2}, std::string(8, '\0')}}, {"b", {"I8", {3}, "xyz"}}};
  const std::string bytes = safetensors.bytes();
  write(folder / "safetensors_fuzz" / "small", SparseFile::input(bytes, bytes.size()));
  for (int i = 2; i < argc; ++i) {
    if (add(folder, argv[i])) continue;
    std::fprintf(stderr, "%s: is no file to make a seed of\n", argv[i]);
    return 1;
  }
  return 0;
}
