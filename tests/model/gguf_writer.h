#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tandem::testing {

/// A GGUF file as plain data, to be changed and written: small models and damaged ones.
struct GgufContents {
  using Value =
      std::variant<std::uint32_t, std::int32_t, float, bool, std::string, std::vector<std::int32_t>,
                   std::vector<bool>, std::vector<float>, std::vector<std::string>>;
  struct Tensor {
    std::vector<std::int64_t> shape;  ///< slowest dimension first
    std::uint32_t type = 0;           ///< GGUF id: 0 F32, 1 F16, 26 I32
    std::vector<std::byte> bytes;
  };

  std::map<std::string, Value> keys;
  std::map<std::string, Tensor> tensors;

  /// Adds or replaces an F32 tensor.
  void set_f32(const std::string& name, std::vector<std::int64_t> shape,
               const std::vector<float>& values) {
    Tensor tensor{std::move(shape), 0, std::vector<std::byte>(values.size() * sizeof(float))};
    std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
    tensors[name] = std::move(tensor);
  }

  void write(const std::string& path) const;
};

namespace gguf_writer_internal {

constexpr std::size_t kAlignment = 32;
enum : std::uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9 };

class Bytes {
 public:
  template <typename T>
  void put(T value) {
    const auto* p = reinterpret_cast<const char*>(&value);
    data_.append(p, sizeof(T));
  }
  void put_string(std::string_view text) {
    put<std::uint64_t>(text.size());
    data_.append(text);
  }
  void put_raw(const std::vector<std::byte>& bytes) {
    data_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void align() { data_.resize((data_.size() + kAlignment - 1) / kAlignment * kAlignment); }
  const std::string& data() const { return data_; }

 private:
  std::string data_;
};

/// Writes a value with its type in front.
struct ValueWriter {
  Bytes& out;

  void operator()(std::uint32_t v) { scalar(kU32, v); }
  void operator()(std::int32_t v) { scalar(kI32, v); }
  void operator()(float v) { scalar(kF32, v); }
  void operator()(bool v) { scalar(kBool, static_cast<std::uint8_t>(v)); }
  void operator()(const std::string& v) {
    out.put<std::uint32_t>(kString);
    out.put_string(v);
  }
  void operator()(const std::vector<std::int32_t>& v) {
    array(kI32, v.size());
    for (std::int32_t x : v) out.put(x);
  }
  void operator()(const std::vector<bool>& v) {
    array(kBool, v.size());
    for (bool x : v) out.put(static_cast<std::uint8_t>(x));
  }
  void operator()(const std::vector<float>& v) {
    array(kF32, v.size());
    for (float x : v) out.put(x);
  }
  void operator()(const std::vector<std::string>& v) {
    array(kString, v.size());
    for (const std::string& x : v) out.put_string(x);
  }

 private:
  template <typename T>
  void scalar(std::uint32_t type, T v) {
    out.put(type);
    out.put(v);
  }
  void array(std::uint32_t element_type, std::size_t count) {
    out.put<std::uint32_t>(kArray);
    out.put(element_type);
    out.put<std::uint64_t>(count);
  }
};

}  // namespace gguf_writer_internal

inline void GgufContents::write(const std::string& path) const {
  using namespace gguf_writer_internal;
  Bytes head;
  head.put_raw({std::byte{'G'}, std::byte{'G'}, std::byte{'U'}, std::byte{'F'}});
  head.put<std::uint32_t>(3);
  head.put<std::int64_t>(static_cast<std::int64_t>(tensors.size()));
  head.put<std::int64_t>(static_cast<std::int64_t>(keys.size()));
  for (const auto& [key, value] : keys) {
    head.put_string(key);
    std::visit(ValueWriter{head}, value);
  }
  Bytes data;
  for (const auto& [name, tensor] : tensors) {
    head.put_string(name);
    head.put(static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto it = tensor.shape.rbegin(); it != tensor.shape.rend(); ++it) head.put(*it);
    head.put(tensor.type);
    head.put<std::uint64_t>(data.data().size());
    data.put_raw(tensor.bytes);
    data.align();
  }
  head.align();
  std::ofstream(path, std::ios::binary) << head.data() << data.data();
}

}  // namespace tandem::testing
