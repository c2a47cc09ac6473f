#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/core/dtype.h"
#include "tandem/core/status.h"

namespace tandem::formats {

/// A tensor that a file shall hold.
struct TensorSpec {
  std::string name;
  core::DType dtype = core::DType::kF32;
  std::vector<std::int64_t> shape;  ///< slowest first, at least one size

  std::size_t bytes() const;
};

/// Metadata of a GGUF file, in the order in which it is set.
class GgufKeys {
 public:
  void set(std::string_view key, std::uint32_t value);
  void set(std::string_view key, float value);
  void set(std::string_view key, bool value);
  void set(std::string_view key, std::string_view value);
  void set(std::string_view key, const char* value) { set(key, std::string_view(value)); }
  void set(std::string_view key, const std::vector<std::int32_t>& values);
  void set(std::string_view key, const std::vector<float>& values);
  void set(std::string_view key, const std::vector<bool>& values);
  void set(std::string_view key, const std::vector<std::string>& values);

  std::uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(std::string_view key, std::uint32_t type);
  void begin_array(std::string_view key, std::uint32_t element_type, std::size_t count);

  std::string bytes_;
  std::uint64_t count_ = 0;
};

/// Writes a safetensors or GGUF file from front to back, so that no more than a row need be in
/// memory. The readers of this folder read what it writes.
class TensorFileWriter {
 public:
  /// Creates the file, replacing one of that name, and writes everything before the data.
  /// kInvalidArgument: the file cannot be created.
  static core::Result<TensorFileWriter> safetensors(const std::string& path,
                                                    std::vector<TensorSpec> tensors);
  /// Types that GGUF files have (CHECK).
  static core::Result<TensorFileWriter> gguf(const std::string& path, const GgufKeys& keys,
                                             std::vector<TensorSpec> tensors);

  /// The next bytes of the tensors, one after the other; never more than the current one lacks.
  void append(std::span<const std::byte> bytes);
  /// Closes the file, all of whose tensors must be complete (CHECK). kResourceExhausted: something
  /// could not be written.
  core::Status finish();

 private:
  static core::Result<TensorFileWriter> create(const std::string& path, const std::string& head,
                                               std::vector<TensorSpec> tensors,
                                               std::size_t alignment);

  std::string path_;
  std::ofstream out_;
  std::vector<TensorSpec> tensors_;
  std::size_t alignment_ = 1;
  std::size_t current_ = 0;  // tensor being written
  std::size_t done_ = 0;     // bytes of it
};

}  // namespace tandem::formats
