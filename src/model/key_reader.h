#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/formats/gguf.h"
#include "tandem/model/range.h"

namespace tandem::model {

/// Reads hyper-parameters of one architecture ("PREFIX" + key) with bounds. Every failure is one
/// sentence that names the file, the key and what was expected: kNotFound for a missing key,
/// kDataLoss for one of a wrong type or value. The file must outlive the reader.
class KeyReader {
 public:
  KeyReader(const formats::GgufFile& file, std::string prefix)
      : file_(file), prefix_(std::move(prefix)) {}

  const formats::GgufFile& file() const { return file_; }

  core::Result<int> required_int(std::string_view key, IntRange range) const;
  core::Result<int> optional_int(std::string_view key, IntRange range, int fallback) const;
  core::Result<double> required_float(std::string_view key, FloatRange range) const;
  core::Result<double> optional_float(std::string_view key, FloatRange range,
                                      double fallback) const;
  /// `count` values from one scalar for all layers or an array with one per layer.
  core::Result<std::vector<int>> per_layer(std::string_view key, std::size_t count,
                                           IntRange range) const;

  /// kDataLoss "FILE: MESSAGE".
  core::Status error(std::string_view message) const;
  template <typename Number>
  core::Status bad_value(std::string_view key, std::string_view expected, Number value) const {
    return bad_text(key, expected, fmt::format("{}", value));
  }

 private:
  core::Status bad_text(std::string_view key, std::string_view expected,
                        std::string_view value) const;
  std::string name(std::string_view key) const { return prefix_ + std::string(key); }

  const formats::GgufFile& file_;
  std::string prefix_;
};

}  // namespace tandem::model
