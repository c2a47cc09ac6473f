#pragma once

#include <gtest/gtest.h>

#include <string>

#include "../formats/safetensors_image.h"
#include "../formats/temporary_directory.h"
#include "tandem/formats/safetensors_set.h"
#include "tandem/model/model_files.h"

namespace tandem::testing {

/// Path of a tiny model of the source tree.
inline std::string tiny_directory(const std::string& name) {
  return std::string(TANDEM_SOURCE_DIR) + "/tests/data/tiny/" + name;
}

/// The tensors of a checkpoint, to be changed and written again.
inline SafetensorsImage read_image(const std::string& directory) {
  const auto set = formats::SafetensorsSet::open(directory).value();
  SafetensorsImage image;
  for (const auto& [name, view] : set.tensors()) {
    image.tensors[std::string(name)] = {
        std::string(core::name(view->dtype)),
        {view->shape.begin(), view->shape.begin() + view->rank},
        std::string(reinterpret_cast<const char*>(view->data), view->bytes())};
  }
  return image;
}

/// Replaces the first `from` in a text file; fails the test if there is none.
inline void replace_in(const TemporaryDirectory& directory, const std::string& name,
                       const std::string& from, const std::string& to) {
  std::string text = directory.read(name);
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  directory.write(name, text.replace(at, from.size(), to));
}

}  // namespace tandem::testing
