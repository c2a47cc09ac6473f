#include "tandem/formats/safetensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <optional>
#include <utility>

#include "tandem/core/checked_math.h"
#include "tandem/core/printable.h"
#include "tandem/formats/little_endian.h"

namespace tandem::formats {
namespace {

namespace json = boost::json;
using core::DType;
using core::Result;
using core::Status;

/// The limit of the format's own reader; a header of 100 MB describes about a million tensors.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kLengthBytes = 8;

/// The types that files name as Tandem does.
constexpr std::array kTypes = {DType::kF32, DType::kF16, DType::kBF16,   DType::kF64,
                               DType::kI8,  DType::kU8,  DType::kF8E4M3, DType::kF8E5M2,
                               DType::kI16, DType::kI32, DType::kI64,    DType::kBool};

/// A JSON number as an unsigned integer: Boost.JSON keeps small ones signed.
std::optional<std::uint64_t> as_uint(const json::value& value) {
  if (value.is_uint64()) return value.get_uint64();
  if (value.is_int64() && value.get_int64() >= 0) {
    return static_cast<std::uint64_t>(value.get_int64());
  }
  return std::nullopt;
}

}  // namespace

/// Reads the header of a mapped file and fills a SafetensorsFile.
class SafetensorsParser {
 public:
  explicit SafetensorsParser(MappedFile file) { out_.file_ = std::move(file); }

  Result<SafetensorsFile> parse();

 private:
  struct Range {
    std::uint64_t begin = 0, end = 0;  // relative to the data section
  };
  struct Entry {
    SafetensorsFile::Tensor tensor;
    Range range;
  };

  std::span<const std::byte> file() const { return out_.file_.bytes(); }
  Status damaged(std::string_view what) const {
    return core::data_loss(
        fmt::format("{}: {}; the file is damaged, download it again", out_.path(), what));
  }
  Status damaged_tensor(std::string_view name, std::string_view what) const {
    return damaged(fmt::format("tensor \"{}\" {}", core::printable(name, 128), what));
  }

  Result<json::object> read_header();
  Status read_metadata(const json::value& value);
  Status read_tensor(std::string_view name, const json::value& value);
  Status read_type(std::string_view name, const json::object& entry, core::TensorView* view) const;
  Status read_shape(std::string_view name, const json::object& entry, core::TensorView* view,
                    std::uint64_t* elements) const;
  Result<Range> read_range(std::string_view name, const json::object& entry) const;
  Status place_tensors();

  SafetensorsFile out_;
  std::vector<Entry> entries_;
  std::uint64_t data_ = 0;  // offset of the data section
};

Result<SafetensorsFile> SafetensorsParser::parse() {
  TANDEM_ASSIGN(const json::object header, read_header());
  for (const auto& [name, value] : header) {
    TANDEM_TRY(name == "__metadata__" ? read_metadata(value) : read_tensor(name, value));
  }
  TANDEM_TRY(place_tensors());
  return std::move(out_);
}

Result<json::object> SafetensorsParser::read_header() {
  if (file().size() < kLengthBytes) {
    return damaged(
        fmt::format("the file has {} bytes, less than a header's length field", file().size()));
  }
  const auto length = load<std::uint64_t>(file().data());
  if (length > kMaxHeaderBytes) {
    return core::data_loss(
        fmt::format("{}: not a safetensors file, or a damaged one: its first 8 bytes claim a "
                    "header of {} bytes (at most {}); check the path or download it again",
                    out_.path(), length, kMaxHeaderBytes));
  }
  if (length > file().size() - kLengthBytes) {
    return core::data_loss(
        fmt::format("{}: the file is truncated: its header needs bytes 8..{} but the file ends at "
                    "{}; download it again",
                    out_.path(), kLengthBytes + length, file().size()));
  }
  data_ = kLengthBytes + length;
  const std::string_view text(reinterpret_cast<const char*>(file().data() + kLengthBytes), length);
  json::error_code error;
  json::value header = json::parse(text, error);
  if (error) {
    return damaged(fmt::format("the header (bytes 8..{}) is {}", data_,
                               core::why_not_json(text, error.message())));
  }
  if (!header.is_object()) {
    return damaged(fmt::format("the header (bytes 8..{}) is not a JSON object", data_));
  }
  return std::move(header.get_object());
}

Status SafetensorsParser::read_metadata(const json::value& value) {
  if (!value.is_object()) return damaged("the header's \"__metadata__\" is not a JSON object");
  for (const auto& [key, text] : value.get_object()) {
    if (!text.is_string()) {
      return damaged(fmt::format("the header's \"__metadata__\" entry \"{}\" is not a string",
                                 core::printable(key, 128)));
    }
    out_.metadata_.emplace(key, text.get_string());
  }
  return {};
}

Status SafetensorsParser::read_tensor(std::string_view name, const json::value& value) {
  if (name.empty()) return damaged("the header has a tensor without a name");
  if (!value.is_object()) return damaged_tensor(name, "is not described by a JSON object");
  const json::object& entry = value.get_object();
  Entry out;
  core::TensorView& view = out.tensor.view;
  std::uint64_t elements = 0;
  TANDEM_TRY(read_type(name, entry, &view));
  TANDEM_TRY(read_shape(name, entry, &view, &elements));
  TANDEM_ASSIGN(out.range, read_range(name, entry));
  const auto bytes = core::checked_mul<std::uint64_t>(
      elements, static_cast<std::uint64_t>(core::traits(view.dtype).block_bytes));
  if (!bytes || *bytes != out.range.end - out.range.begin) {
    return damaged_tensor(
        name, fmt::format("has {} bytes, which its type {} and its {} elements do not",
                          out.range.end - out.range.begin, core::name(view.dtype), elements));
  }
  out.tensor.name = name;
  entries_.push_back(std::move(out));
  return {};
}

Status SafetensorsParser::read_type(std::string_view name, const json::object& entry,
                                    core::TensorView* view) const {
  const json::value* value = entry.if_contains("dtype");
  if (value == nullptr || !value->is_string()) {
    return damaged_tensor(name, "has no \"dtype\" string");
  }
  const std::string_view text = value->get_string();
  const auto* it = std::ranges::find(kTypes, text, core::name);
  if (it == kTypes.end()) {
    return core::unimplemented(
        fmt::format("{}: tensor \"{}\" has type \"{}\", which is not supported; use a checkpoint "
                    "of another precision",
                    out_.path(), core::printable(name, 128), core::printable(text, 32)));
  }
  view->dtype = *it;
  return {};
}

Status SafetensorsParser::read_shape(std::string_view name, const json::object& entry,
                                     core::TensorView* view, std::uint64_t* elements) const {
  const json::value* value = entry.if_contains("shape");
  if (value == nullptr || !value->is_array()) return damaged_tensor(name, "has no \"shape\" array");
  const json::array& sizes = value->get_array();
  if (sizes.size() > view->shape.size()) {
    return core::unimplemented(
        fmt::format("{}: tensor \"{}\" has {} dimensions, more than the {} that are supported",
                    out_.path(), core::printable(name, 128), sizes.size(), view->shape.size()));
  }
  view->rank = static_cast<int>(sizes.size());
  std::int64_t product = 1;
  std::int64_t nonzero_product = 1;  // so that no partial product overflows, whatever the order
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto size = as_uint(sizes[i]);
    const auto limit = static_cast<std::uint64_t>(INT64_MAX);
    const auto next =
        size && *size <= limit
            ? core::checked_mul(nonzero_product,
                                std::max<std::int64_t>(1, static_cast<std::int64_t>(*size)))
            : std::nullopt;
    if (!next) {
      return damaged_tensor(name, fmt::format("has an impossible size in dimension {}: {}", i,
                                              json::serialize(sizes[i])));
    }
    nonzero_product = *next;
    view->shape[i] = static_cast<std::int64_t>(*size);
    product *= view->shape[i];
  }
  *elements = static_cast<std::uint64_t>(product);
  return {};
}

Result<SafetensorsParser::Range> SafetensorsParser::read_range(std::string_view name,
                                                               const json::object& entry) const {
  const json::value* value = entry.if_contains("data_offsets");
  if (value == nullptr || !value->is_array() || value->get_array().size() != 2) {
    return damaged_tensor(name, "has no \"data_offsets\" pair");
  }
  const auto begin = as_uint(value->get_array()[0]);
  const auto end = as_uint(value->get_array()[1]);
  if (!begin || !end || *begin > *end) {
    return damaged_tensor(
        name, fmt::format("has impossible \"data_offsets\" {}", json::serialize(*value)));
  }
  if (*end > file().size() - data_) {
    return core::data_loss(fmt::format(
        "{}: the file is truncated: tensor \"{}\" needs data bytes {}..{} but the data section "
        "(from byte {}) has {}; download it again",
        out_.path(), core::printable(name, 128), *begin, *end, data_, file().size() - data_));
  }
  return Range{*begin, *end};
}

/// Sorts by position, checks that the tensors fill the data section, and sets their addresses.
Status SafetensorsParser::place_tensors() {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.range.begin, a.range.end) < std::pair(b.range.begin, b.range.end);
  });
  std::uint64_t filled = 0;
  for (Entry& entry : entries_) {
    if (entry.range.begin != filled) {
      return damaged_tensor(entry.tensor.name,
                            fmt::format("begins at data byte {} where {} is expected (a gap or an "
                                        "overlap)",
                                        entry.range.begin, filled));
    }
    filled = entry.range.end;
    entry.tensor.view.data = file().data() + data_ + entry.range.begin;
    out_.tensor_index_.emplace(entry.tensor.name, out_.tensors_.size());
    out_.tensors_.push_back(std::move(entry.tensor));
  }
  if (filled != file().size() - data_) {
    return damaged(
        fmt::format("data bytes {}..{} belong to no tensor", filled, file().size() - data_));
  }
  return {};
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  TANDEM_ASSIGN(MappedFile file, MappedFile::open(path));
  return SafetensorsParser(std::move(file)).parse();
}

const core::TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second].view;
}

}  // namespace tandem::formats
