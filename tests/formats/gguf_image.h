#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/formats/gguf_types.h"

namespace tandem::formats {

/// The bytes of a little-endian value.
template <typename T>
std::string raw(T value) {
  std::string out(sizeof value, '\0');
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

/// A GGUF string: length and bytes.
inline std::string gguf_string(std::string_view text) {
  return raw<std::uint64_t>(text.size()) + std::string(text);
}

/// A metadata value: type and payload.
inline std::string gguf_value(std::uint32_t type, std::string_view payload) {
  return raw(type) + std::string(payload);
}

/// A metadata array: types, count and payload.
inline std::string gguf_array(std::uint32_t element_type, std::uint64_t count,
                              std::string_view payload) {
  return raw<std::uint32_t>(kGgufArray) + raw(element_type) + raw(count) + std::string(payload);
}

/// The parts of a GGUF file, each of which a test can falsify before bytes() joins them. As it
/// stands after small(), the file is valid.
struct GgufImage {
  struct Key {
    std::string name;
    std::string value;  ///< gguf_value() or gguf_array()
  };
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> dims;  ///< fastest first
    std::uint32_t type = 0;
    std::uint64_t offset = 0;
    std::optional<std::uint32_t> rank;  ///< where it shall not be dims.size()
  };

  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::optional<std::uint64_t> num_tensors, num_keys;  ///< where they shall lie
  std::vector<Key> keys;
  std::vector<Tensor> tensors;
  std::size_t alignment = 32;
  std::string data;

  std::string head() const {
    std::string out =
        magic + raw(version) + raw<std::uint64_t>(num_tensors.value_or(tensors.size()));
    return out + raw<std::uint64_t>(num_keys.value_or(keys.size()));
  }

  std::string bytes() const {
    std::string out = head();
    for (const Key& key : keys) out += gguf_string(key.name) + key.value;
    for (const Tensor& tensor : tensors) {
      out += gguf_string(tensor.name);
      out += raw(tensor.rank.value_or(static_cast<std::uint32_t>(tensor.dims.size())));
      for (const std::uint64_t size : tensor.dims) out += raw(size);
      out += raw(tensor.type) + raw(tensor.offset);
    }
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data;
  }

  /// Five keys of different kinds; an F32 tensor {2, 4} and a Q8_0 tensor {2, 32}.
  static GgufImage small() {
    GgufImage image;
    image.keys = {
        {"general.architecture", gguf_value(kGgufString, gguf_string("gemma4"))},
        {"some.count", gguf_value(kGgufU32, raw<std::uint32_t>(7))},
        {"some.flag", gguf_value(kGgufBool, raw<std::uint8_t>(1))},
        {"some.sizes", gguf_array(kGgufI32, 2, raw<std::int32_t>(5) + raw<std::int32_t>(-6))},
        {"some.words", gguf_array(kGgufString, 2, gguf_string("a") + gguf_string("bc"))},
    };
    image.tensors = {{"first.weight", {4, 2}, 0, 0, {}}, {"second.weight", {32, 2}, 8, 32, {}}};
    image.data = std::string(32 + 68, '\0');
    for (std::size_t i = 0; i < image.data.size(); ++i) image.data[i] = static_cast<char>(i);
    return image;
  }
};

}  // namespace tandem::formats
