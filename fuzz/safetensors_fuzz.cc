#include <cstddef>
#include <cstdint>
#include <string>

#include "sparse_file.h"
#include "tandem/formats/safetensors.h"

constexpr std::size_t kMostBytes = 4096;

/// Opens the bytes as a safetensors file and, when they are one, reads every tensor: the small ones
/// as a whole, of the others the ends.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const tandem::fuzz::SparseFile file(data, size);
  const auto opened = tandem::formats::SafetensorsFile::open(file.path());
  if (!opened.ok()) return 0;
  for (const auto& tensor : opened->tensors()) {
    const std::size_t bytes = tensor.view.bytes();
    if (bytes <= kMostBytes) {
      const std::string copy(reinterpret_cast<const char*>(tensor.view.data), bytes);
    } else if (tensor.view.data[0] != tensor.view.data[bytes - 1]) {
      continue;
    }
    opened->file().forget({tensor.view.data, bytes});
  }
  return 0;
}
