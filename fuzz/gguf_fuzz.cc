#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sparse_file.h"
#include "tandem/formats/dequantize.h"
#include "tandem/formats/gguf.h"

using tandem::formats::GgufFile;

/// Opens the bytes as a GGUF file and, when they are one, reads everything that it offers, of each
/// tensor the ends.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const tandem::fuzz::SparseFile file(data, size);
  const auto gguf = GgufFile::open(file.path());
  if (!gguf.ok()) return 0;
  for (const auto& [key, line] : gguf->describe_metadata()) {
    (void)gguf->get_uint(key).ok();
    (void)gguf->get_float(key).ok();
    (void)gguf->get_string(key).ok();
    (void)gguf->get_strings(key).ok();
    (void)gguf->get_ints(key).ok();
    (void)gguf->get_ints_or_scalar(key, 3).ok();
  }
  for (const GgufFile::Tensor& tensor : gguf->tensors()) {
    const tandem::core::TensorView& view = tensor.view;
    if (!tandem::formats::can_dequantize(view.dtype)) continue;
    std::vector<float> row(static_cast<std::size_t>(view.cols()));
    for (const std::int64_t r : {std::int64_t{0}, view.rows() - 1}) {
      tandem::formats::dequantize_row(view.dtype, view.row(r), view.cols(), row.data());
    }
    gguf->file_of(view)->forget({view.data, view.bytes()});
  }
  return 0;
}
