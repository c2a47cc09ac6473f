#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace tandem::testing {

/// A safetensors file as plain data, to be changed and written.
struct SafetensorsImage {
  struct Tensor {
    std::string dtype;  ///< as the header spells it
    std::vector<std::int64_t> shape;
    std::string bytes;
  };
  std::map<std::string, Tensor> tensors;

  /// The file. The data begin right after a header that ends on an odd byte, so that no tensor is
  /// aligned.
  std::string bytes() const {
    std::string header = "{";
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      if (header.size() > 1) header += ",";
      header += "\"" + name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[";
      for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
        header += (i > 0 ? "," : "") + std::to_string(tensor.shape[i]);
      }
      header += "],\"data_offsets\":[" + std::to_string(data.size()) + "," +
                std::to_string(data.size() + tensor.bytes.size()) + "]}";
      data += tensor.bytes;
    }
    header += "}";
    if (header.size() % 2 == 0) header += " ";
    const std::uint64_t length = header.size();
    std::string out(sizeof length, '\0');
    std::memcpy(out.data(), &length, sizeof length);
    return out + header + data;
  }
};

}  // namespace tandem::testing
