#include "tandem/formats/tensor_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "tandem/core/check.h"
#include "tandem/core/checked_math.h"
#include "tandem/formats/gguf_types.h"

namespace tandem::formats {
namespace {

namespace json = boost::json;
using core::DType;

constexpr std::size_t kGgufAlignment = 32;

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_string(std::string& out, std::string_view text) {
  put<std::uint64_t>(out, text.size());
  out += text;
}

std::uint32_t gguf_type(DType dtype) {
  const auto* it = std::ranges::find(kGgufTensorTypes, dtype, &GgufTensorType::dtype);
  TANDEM_CHECK(it != std::end(kGgufTensorTypes), "a type that GGUF files do not have");
  return it->id;
}

void pad(std::string& out, std::size_t alignment) {
  out.resize(core::round_up(out.size(), alignment));
}

}  // namespace

std::size_t TensorSpec::bytes() const {
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  return static_cast<std::size_t>(rows) * core::row_bytes(dtype, shape.back());
}

void GgufKeys::begin(std::string_view key, std::uint32_t type) {
  put_string(bytes_, key);
  put(bytes_, type);
  ++count_;
}

void GgufKeys::begin_array(std::string_view key, std::uint32_t element_type, std::size_t count) {
  begin(key, kGgufArray);
  put(bytes_, element_type);
  put<std::uint64_t>(bytes_, count);
}

void GgufKeys::set(std::string_view key, std::uint32_t value) {
  begin(key, kGgufU32);
  put(bytes_, value);
}

void GgufKeys::set(std::string_view key, float value) {
  begin(key, kGgufF32);
  put(bytes_, value);
}

void GgufKeys::set(std::string_view key, bool value) {
  begin(key, kGgufBool);
  put<std::uint8_t>(bytes_, value ? 1 : 0);
}

void GgufKeys::set(std::string_view key, std::string_view value) {
  begin(key, kGgufString);
  put_string(bytes_, value);
}

void GgufKeys::set(std::string_view key, const std::vector<std::int32_t>& values) {
  begin_array(key, kGgufI32, values.size());
  for (const std::int32_t value : values) put(bytes_, value);
}

void GgufKeys::set(std::string_view key, const std::vector<float>& values) {
  begin_array(key, kGgufF32, values.size());
  for (const float value : values) put(bytes_, value);
}

void GgufKeys::set(std::string_view key, const std::vector<bool>& values) {
  begin_array(key, kGgufBool, values.size());
  for (const bool value : values) put<std::uint8_t>(bytes_, value ? 1 : 0);
}

void GgufKeys::set(std::string_view key, const std::vector<std::string>& values) {
  begin_array(key, kGgufString, values.size());
  for (const std::string& value : values) put_string(bytes_, value);
}

core::Result<TensorFileWriter> TensorFileWriter::safetensors(const std::string& path,
                                                             std::vector<TensorSpec> tensors) {
  json::object header = {{"__metadata__", {{"format", "pt"}}}};
  std::size_t end = 0;
  for (const TensorSpec& tensor : tensors) {
    const std::size_t begin = std::exchange(end, end + tensor.bytes());
    header[tensor.name] = {{"dtype", core::name(tensor.dtype)},
                           {"shape", json::array(tensor.shape.begin(), tensor.shape.end())},
                           {"data_offsets", {begin, end}}};
  }
  std::string text = json::serialize(header);
  text.resize(core::round_up<std::size_t>(text.size(), 8), ' ');
  std::string head;
  put<std::uint64_t>(head, text.size());
  return create(path, head + text, std::move(tensors), 1);
}

core::Result<TensorFileWriter> TensorFileWriter::gguf(const std::string& path, const GgufKeys& keys,
                                                      std::vector<TensorSpec> tensors) {
  std::string head = "GGUF";
  put<std::uint32_t>(head, 3);
  put<std::uint64_t>(head, tensors.size());
  put<std::uint64_t>(head, keys.count());
  head += keys.bytes();
  std::uint64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    put_string(head, tensor.name);
    put(head, static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto it = tensor.shape.rbegin(); it != tensor.shape.rend(); ++it) put(head, *it);
    put(head, gguf_type(tensor.dtype));
    put(head, offset);
    offset += core::round_up(tensor.bytes(), kGgufAlignment);
  }
  pad(head, kGgufAlignment);
  return create(path, head, std::move(tensors), kGgufAlignment);
}

core::Result<TensorFileWriter> TensorFileWriter::create(const std::string& path,
                                                        const std::string& head,
                                                        std::vector<TensorSpec> tensors,
                                                        std::size_t alignment) {
  TensorFileWriter writer;
  writer.path_ = path;
  writer.tensors_ = std::move(tensors);
  writer.alignment_ = alignment;
  writer.out_.open(path, std::ios::binary | std::ios::trunc);
  if (!writer.out_.is_open()) {
    return core::invalid_argument(
        fmt::format("{}: cannot create the file ({}); check the path", path, std::strerror(errno)));
  }
  writer.out_ << head;
  return writer;
}

void TensorFileWriter::append(std::span<const std::byte> bytes) {
  TANDEM_CHECK(current_ < tensors_.size(), "all tensors are complete");
  const std::size_t size = tensors_[current_].bytes();
  TANDEM_CHECK(bytes.size() <= size - done_, "more bytes than the tensor has");
  out_.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  done_ += bytes.size();
  if (done_ < size) return;
  const std::string padding(core::round_up(size, alignment_) - size, '\0');
  out_ << padding;
  done_ = 0;
  ++current_;
}

core::Status TensorFileWriter::finish() {
  TANDEM_CHECK(current_ == tensors_.size(), "a tensor is not complete");
  out_.close();
  if (out_) return {};
  return core::resource_exhausted(
      fmt::format("{}: cannot write the whole file; is the disk full?", path_));
}

}  // namespace tandem::formats
