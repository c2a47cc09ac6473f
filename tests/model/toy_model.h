#pragma once

#include <string>

#include "gguf_writer.h"

namespace tandem::testing {

/// Files of the smallest models that have every part of their family: 64 tokens, random F32
/// weights, heads of 32 and 64, a window of 8.
/// E-series: layers S F S F of which the last two share KV, per-layer embeddings.
GgufContents toy_e_series();
/// Dense: layers S S F, the full one with K = V and fewer KV heads.
GgufContents toy_dense();
/// A drafter for toy_e_series(): layers S S S F.
GgufContents toy_drafter();

/// A file that exists as long as this object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const GgufContents& contents);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace tandem::testing
