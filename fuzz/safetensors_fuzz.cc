#include <cstddef>
#include <cstdint>

#include "memory_file.h"
#include "tandem/formats/safetensors.h"

/// Opens the bytes as a safetensors file and, when they are one, reads every tensor.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const tandem::formats::MemoryFile file({reinterpret_cast<const char*>(data), size});
  const auto opened = tandem::formats::SafetensorsFile::open(file.path());
  if (!opened.ok()) return 0;
  for (const auto& tensor : opened->tensors()) {
    (void)opened->read_floats(tensor.name).ok();
    (void)opened->read_ints(tensor.name).ok();
    opened->forget(tensor.view);
  }
  return 0;
}
