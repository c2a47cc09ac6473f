// Any bytes as model.safetensors.index.json beside one small file.

#include <cstdint>
#include <string_view>

#include "safetensors_image.h"
#include "tandem/formats/safetensors_set.h"
#include "temporary_directory.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const tandem::testing::TemporaryDirectory directory;
  static const bool is_ready = [] {
    tandem::testing::SafetensorsImage image;
    image.tensors["a.weight"] = {"U8", {3}, "abc"};
    directory.write("a.safetensors", image.bytes());
    return true;
  }();
  (void)is_ready;
  directory.write("model.safetensors.index.json", {reinterpret_cast<const char*>(data), size});
  const auto set = tandem::formats::SafetensorsSet::open(directory.path());
  if (!set.ok()) return 0;
  for (const auto& [name, view] : set->tensors()) {
    if (set->find(name) != view || view->bytes() != 3) __builtin_trap();
    if (const auto* file = set->file_of(*view)) file->forget({view->data, view->bytes()});
  }
  return 0;
}
