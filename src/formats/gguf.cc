#include "tandem/formats/gguf.h"

#include <fmt/format.h>

#include <limits>

#include "tandem/core/printable.h"
#include "tandem/formats/gguf_types.h"
#include "tandem/formats/little_endian.h"

namespace tandem::formats {
namespace {

using core::Result;
using core::Status;

std::string type_name(std::uint32_t type, std::uint32_t element_type) {
  if (type != kGgufArray) return std::string(kGgufTypes[type].name);
  return fmt::format("array of {}", kGgufTypes[element_type].name);
}

bool is_integer(std::uint32_t type) {
  return type <= kGgufI32 || type == kGgufU64 || type == kGgufI64;
}

/// The string at the front of `payload`, whose lengths were checked at open.
std::string_view take_string(std::span<const std::byte>* payload) {
  const auto length = static_cast<std::size_t>(load<std::uint64_t>(payload->data()));
  const std::string_view text(reinterpret_cast<const char*>(payload->data() + 8), length);
  *payload = payload->subspan(8 + length);
  return text;
}

std::string describe_scalar(std::uint32_t type, std::span<const std::byte> payload) {
  const std::byte* p = payload.data();
  switch (type) {
    case kGgufU8:
      return fmt::to_string(load<std::uint8_t>(p));
    case kGgufI8:
      return fmt::to_string(static_cast<int>(load<std::int8_t>(p)));
    case kGgufU16:
      return fmt::to_string(load<std::uint16_t>(p));
    case kGgufI16:
      return fmt::to_string(load<std::int16_t>(p));
    case kGgufU32:
      return fmt::to_string(load<std::uint32_t>(p));
    case kGgufI32:
      return fmt::to_string(load<std::int32_t>(p));
    case kGgufU64:
      return fmt::to_string(load<std::uint64_t>(p));
    case kGgufI64:
      return fmt::to_string(load<std::int64_t>(p));
    case kGgufF32:
      return fmt::format("{:g}", load<float>(p));
    case kGgufF64:
      return fmt::format("{:g}", load<double>(p));
    case kGgufBool:
      return load<std::uint8_t>(p) != 0 ? "true" : "false";
    default:
      return fmt::format("\"{}\"", core::printable(take_string(&payload), 100));
  }
}

}  // namespace

bool GgufFile::has(std::string_view key) const {
  return metadata_.contains(key);
}

Result<const GgufFile::Value*> GgufFile::find_value(std::string_view key) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) {
    return core::not_found(fmt::format(
        "{}: metadata key \"{}\" is missing; use a file made for this model family", path(), key));
  }
  return &it->second;
}

Status GgufFile::wrong_type(std::string_view key, const Value& value,
                            std::string_view wanted) const {
  return core::data_loss(
      fmt::format("{}: metadata key \"{}\" is of type {} where {} is expected; convert or download "
                  "the model again",
                  path(), key, type_name(value.type, value.element_type), wanted));
}

Result<const GgufFile::Value*> GgufFile::find_array(std::string_view key,
                                                    std::string_view wanted) const {
  TANDEM_ASSIGN(const Value* value, find_value(key));
  if (value->type != kGgufArray) return wrong_type(key, *value, wanted);
  return value;
}

/// Element `index` of an array, or the scalar at index 0; bools count as 0 and 1.
Result<std::int64_t> GgufFile::int_at(std::string_view key, const Value& value,
                                      std::size_t index) const {
  const std::byte* p = value.payload.data() + index * kGgufTypes[value.element_type].bytes;
  switch (value.element_type) {
    case kGgufU8:
    case kGgufBool:
      return load<std::uint8_t>(p);
    case kGgufI8:
      return load<std::int8_t>(p);
    case kGgufU16:
      return load<std::uint16_t>(p);
    case kGgufI16:
      return load<std::int16_t>(p);
    case kGgufU32:
      return load<std::uint32_t>(p);
    case kGgufI32:
      return load<std::int32_t>(p);
    case kGgufI64:
      return load<std::int64_t>(p);
    case kGgufU64:
      break;
    default:
      return wrong_type(key, value, "an integer");
  }
  const auto wide = load<std::uint64_t>(p);
  if (wide > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return core::data_loss(
        fmt::format("{}: metadata key \"{}\" is {}, which is out of range; "
                    "download the file again",
                    path(), key, wide));
  }
  return static_cast<std::int64_t>(wide);
}

Result<std::uint64_t> GgufFile::get_uint(std::string_view key) const {
  TANDEM_ASSIGN(const Value* value, find_value(key));
  if (!is_integer(value->type)) return wrong_type(key, *value, "an integer");
  if (value->type == kGgufU64) return load<std::uint64_t>(value->payload.data());
  TANDEM_ASSIGN(const std::int64_t n, int_at(key, *value, 0));
  if (n < 0) {
    return core::data_loss(fmt::format(
        "{}: metadata key \"{}\" is {}, which must not be negative; download the file again",
        path(), key, n));
  }
  return static_cast<std::uint64_t>(n);
}

Result<double> GgufFile::get_float(std::string_view key) const {
  TANDEM_ASSIGN(const Value* value, find_value(key));
  if (value->type == kGgufF32) return load<float>(value->payload.data());
  if (value->type == kGgufF64) return load<double>(value->payload.data());
  return wrong_type(key, *value, "f32 or f64");
}

Result<std::string_view> GgufFile::get_string(std::string_view key) const {
  TANDEM_ASSIGN(const Value* value, find_value(key));
  if (value->type != kGgufString) return wrong_type(key, *value, "string");
  auto payload = value->payload;
  return take_string(&payload);
}

Result<std::vector<std::string_view>> GgufFile::get_strings(std::string_view key) const {
  TANDEM_ASSIGN(const Value* value, find_array(key, "an array of strings"));
  if (value->element_type != kGgufString) return wrong_type(key, *value, "an array of strings");
  std::vector<std::string_view> out;
  out.reserve(value->count);
  for (auto payload = value->payload; !payload.empty();) out.push_back(take_string(&payload));
  return out;
}

Result<std::vector<std::int64_t>> GgufFile::get_ints(std::string_view key) const {
  TANDEM_ASSIGN(const Value* value, find_array(key, "an array of integers"));
  if (!is_integer(value->element_type) && value->element_type != kGgufBool) {
    return wrong_type(key, *value, "an array of integers");
  }
  std::vector<std::int64_t> out(value->count);
  for (std::size_t i = 0; i < out.size(); ++i) {
    TANDEM_ASSIGN(out[i], int_at(key, *value, i));
  }
  return out;
}

Result<std::vector<std::int64_t>> GgufFile::get_ints_or_scalar(std::string_view key,
                                                               std::size_t count) const {
  TANDEM_ASSIGN(const Value* value, find_value(key));
  if (value->type != kGgufArray) {
    if (!is_integer(value->type) && value->type != kGgufBool) {
      return wrong_type(key, *value, "an integer or an array of integers");
    }
    TANDEM_ASSIGN(const std::int64_t n, int_at(key, *value, 0));
    return std::vector<std::int64_t>(count, n);
  }
  if (value->count != count) {
    return core::data_loss(
        fmt::format("{}: metadata key \"{}\" is an array of {} values where {} are expected; "
                    "download the file again",
                    path(), key, value->count, count));
  }
  return get_ints(key);
}

std::vector<std::pair<std::string, std::string>> GgufFile::describe_metadata() const {
  std::vector<std::pair<std::string, std::string>> out;
  out.reserve(metadata_.size());
  for (const auto& [key, value] : metadata_) {
    out.emplace_back(key,
                     value.type == kGgufArray
                         ? fmt::format("{}[{}]", kGgufTypes[value.element_type].name, value.count)
                         : fmt::format("{} {}", kGgufTypes[value.type].name,
                                       describe_scalar(value.type, value.payload)));
  }
  return out;
}

const core::TensorView* GgufFile::find(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second].view;
}

}  // namespace tandem::formats
