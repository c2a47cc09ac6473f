#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "tandem/core/checked_math.h"
#include "tandem/core/printable.h"
#include "tandem/formats/gguf.h"
#include "tandem/formats/gguf_types.h"
#include "tandem/formats/little_endian.h"

namespace tandem::formats {
namespace {

using core::DType;
using core::Result;
using core::Status;

constexpr std::uint64_t kMaxNameBytes = 65535;  // the format's own limit for keys
constexpr std::uint64_t kDefaultAlignment = 32;
// Smallest bytes of a key (length, one character, type, u8 value) and of a tensor info (length,
// one character, rank, one dimension, type, offset): they bound the counts by the file's size.
constexpr std::uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr std::uint64_t kMinTensorInfoBytes = 8 + 1 + 4 + 8 + 4 + 8;

/// Null when the number is unknown.
const GgufTensorType* tensor_type(std::uint32_t id) {
  const auto* it = std::ranges::find(kGgufTensorTypes, id, &GgufTensorType::id);
  return it == std::end(kGgufTensorTypes) ? nullptr : it;
}

}  // namespace

/// Walks a mapped file once, front to back. `what_` says what is being read, for messages.
class GgufParser {
 public:
  explicit GgufParser(MappedFile file) { out_.file_ = std::move(file); }

  Result<GgufFile> parse();

 private:
  struct TensorInfo {
    std::uint64_t offset = 0;  // relative to the data section
    std::uint64_t bytes = 0;
  };

  std::span<const std::byte> file() const { return out_.file_.bytes(); }
  std::uint64_t remaining() const { return file().size() - at_; }

  Status damaged(std::string_view what) const {
    return core::data_loss(
        fmt::format("{}: {}; the file is damaged, download it again", out_.path(), what));
  }
  Status truncated() const {
    return core::data_loss(
        fmt::format("{}: the file is truncated: {} does not fit before the file's end at byte {}; "
                    "download it again",
                    out_.path(), what_, file().size()));
  }

  template <typename T>
  Result<T> read() {
    if (remaining() < sizeof(T)) return truncated();
    const T value = load<T>(file().data() + at_);
    at_ += sizeof(T);
    return value;
  }

  Status read_header();
  Result<std::string> read_name();
  Status read_key_value();
  Status read_value(std::string_view key);
  Status skip_scalars(std::string_view key, std::uint32_t type, std::uint64_t count);
  Status skip_strings(std::uint64_t count);
  Status read_tensor_info();
  Status read_shape(const std::string& name, core::TensorView* view);
  Status read_type(const std::string& name, core::TensorView* view, std::uint64_t* bytes);
  Status read_alignment();
  Status place_tensors();
  Status refuse_overlap() const;

  GgufFile out_;
  std::vector<TensorInfo> infos_;  // by tensor
  std::uint64_t at_ = 0;           // offset of the next byte to read
  std::uint64_t num_tensors_ = 0, num_keys_ = 0;
  std::uint64_t alignment_ = kDefaultAlignment;
  std::string what_;
};

Result<GgufFile> GgufParser::parse() {
  TANDEM_TRY(read_header());
  for (std::uint64_t i = 0; i < num_keys_; ++i) {
    what_ = fmt::format("metadata key {} of {} (byte {})", i + 1, num_keys_, at_);
    TANDEM_TRY(read_key_value());
  }
  TANDEM_TRY(read_alignment());
  for (std::uint64_t i = 0; i < num_tensors_; ++i) {
    what_ = fmt::format("the description of tensor {} of {} (byte {})", i + 1, num_tensors_, at_);
    TANDEM_TRY(read_tensor_info());
  }
  TANDEM_TRY(place_tensors());
  TANDEM_TRY(refuse_overlap());
  return std::move(out_);
}

Status GgufParser::read_header() {
  what_ = "the header";
  TANDEM_ASSIGN(const auto magic, read<std::uint32_t>());
  if (magic != 0x46554747u) {  // "GGUF"
    return core::data_loss(fmt::format(
        "{}: not a GGUF file: it does not begin with \"GGUF\"; give the path of a .gguf file",
        out_.path()));
  }
  TANDEM_ASSIGN(const auto version, read<std::uint32_t>());
  if (version != 2 && version != 3) {
    // A small version in the upper bytes is a big-endian file's.
    if ((version & 0xffffu) == 0) {
      return core::unimplemented(fmt::format(
          "{}: the file is big-endian; convert it to a little-endian GGUF file", out_.path()));
    }
    return core::unimplemented(fmt::format(
        "{}: GGUF version {} is not supported; convert it to version 3", out_.path(), version));
  }
  TANDEM_ASSIGN(num_tensors_, read<std::uint64_t>());
  TANDEM_ASSIGN(num_keys_, read<std::uint64_t>());
  if (num_keys_ > remaining() / kMinKeyBytes) {
    return damaged(
        fmt::format("the header (byte 16) claims {} metadata keys, more than {} bytes "
                    "can hold",
                    num_keys_, file().size()));
  }
  if (num_tensors_ > remaining() / kMinTensorInfoBytes) {
    return damaged(fmt::format("the header (byte 8) claims {} tensors, more than {} bytes can hold",
                               num_tensors_, file().size()));
  }
  return {};
}

/// A key or tensor name: 1 to 65535 printable ASCII characters.
Result<std::string> GgufParser::read_name() {
  TANDEM_ASSIGN(const auto length, read<std::uint64_t>());
  if (length == 0 || length > kMaxNameBytes) {
    return damaged(
        fmt::format("{} has a name of {} bytes (1 to {} expected)", what_, length, kMaxNameBytes));
  }
  if (length > remaining()) return truncated();
  std::string name(reinterpret_cast<const char*>(file().data() + at_), length);
  if (!core::is_printable_ascii(name)) {
    return damaged(fmt::format("{} has a name with unprintable characters, \"{}\"", what_,
                               core::printable(name, 64)));
  }
  at_ += length;
  return name;
}

Status GgufParser::read_key_value() {
  TANDEM_ASSIGN(const std::string key, read_name());
  what_ = fmt::format("the value of key \"{}\" (byte {})", core::printable(key, 128), at_);
  if (out_.metadata_.contains(key)) {
    return damaged(fmt::format("metadata key \"{}\" appears twice", core::printable(key, 128)));
  }
  return read_value(key);
}

Status GgufParser::read_value(std::string_view key) {
  GgufFile::Value value;
  TANDEM_ASSIGN(value.type, read<std::uint32_t>());
  value.element_type = value.type;
  if (value.type == kGgufArray) {
    TANDEM_ASSIGN(value.element_type, read<std::uint32_t>());
    TANDEM_ASSIGN(value.count, read<std::uint64_t>());
  }
  if (value.element_type >= kNumGgufTypes) {
    return damaged(
        fmt::format("{} has type {}, which GGUF does not define", what_, value.element_type));
  }
  if (value.element_type == kGgufArray) {
    return core::unimplemented(
        fmt::format("{}: {} is an array of arrays, which is not supported; convert the model again",
                    out_.path(), what_));
  }
  const std::uint64_t begin = at_;
  TANDEM_TRY(value.element_type == kGgufString
                 ? skip_strings(value.count)
                 : skip_scalars(key, value.element_type, value.count));
  value.payload = file().subspan(begin, at_ - begin);
  out_.metadata_.emplace(key, value);
  return {};
}

Status GgufParser::skip_scalars(std::string_view key, std::uint32_t type, std::uint64_t count) {
  const auto bytes = core::checked_mul<std::uint64_t>(count, kGgufTypes[type].bytes);
  if (!bytes || *bytes > remaining()) return truncated();
  if (type == kGgufBool) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto value = load<std::uint8_t>(file().data() + at_ + i);
      if (value > 1) {
        return damaged(fmt::format("key \"{}\" (byte {}) is a bool with value {}",
                                   core::printable(key, 128), at_ + i, value));
      }
    }
  }
  at_ += *bytes;
  return {};
}

Status GgufParser::skip_strings(std::uint64_t count) {
  // Bounded by the file: each string takes at least the 8 bytes of its length.
  for (std::uint64_t i = 0; i < count; ++i) {
    TANDEM_ASSIGN(const auto length, read<std::uint64_t>());
    if (length > remaining()) return truncated();
    at_ += length;
  }
  return {};
}

Status GgufParser::read_alignment() {
  if (!out_.has("general.alignment")) return {};
  TANDEM_ASSIGN(alignment_, out_.get_uint("general.alignment"));
  if (!std::has_single_bit(alignment_) || alignment_ > std::numeric_limits<std::uint32_t>::max()) {
    return damaged(fmt::format("key \"general.alignment\" is {}, not a power of two", alignment_));
  }
  return {};
}

Status GgufParser::read_tensor_info() {
  TANDEM_ASSIGN(std::string name, read_name());
  what_ =
      fmt::format("the description of tensor \"{}\" (byte {})", core::printable(name, 128), at_);
  GgufFile::Tensor tensor;
  TensorInfo info;
  TANDEM_TRY(read_shape(name, &tensor.view));
  TANDEM_TRY(read_type(name, &tensor.view, &info.bytes));
  TANDEM_ASSIGN(info.offset, read<std::uint64_t>());
  if (info.offset % alignment_ != 0) {
    return damaged(
        fmt::format("tensor \"{}\" begins at data offset {}, not a multiple of the "
                    "alignment {}",
                    core::printable(name, 128), info.offset, alignment_));
  }
  if (!out_.tensor_index_.emplace(name, out_.tensors_.size()).second) {
    return damaged(fmt::format("tensor \"{}\" appears twice", core::printable(name, 128)));
  }
  tensor.name = std::move(name);
  out_.tensors_.push_back(std::move(tensor));
  infos_.push_back(info);
  return {};
}

Status GgufParser::read_shape(const std::string& name, core::TensorView* view) {
  TANDEM_ASSIGN(const auto rank, read<std::uint32_t>());
  if (rank < 1 || rank > view->shape.size()) {
    return damaged(fmt::format("tensor \"{}\" has {} dimensions (1 to {} expected)",
                               core::printable(name, 128), rank, view->shape.size()));
  }
  view->rank = static_cast<int>(rank);
  std::int64_t elements = 1;
  for (std::uint32_t i = 0; i < rank; ++i) {
    TANDEM_ASSIGN(const auto size, read<std::uint64_t>());
    const auto signed_size = static_cast<std::int64_t>(size);
    const auto product = core::checked_mul(elements, signed_size);
    if (signed_size < 1 || !product) {
      return damaged(fmt::format("tensor \"{}\" has size {} in dimension {}",
                                 core::printable(name, 128), size, i));
    }
    elements = *product;
    view->shape[rank - 1 - i] = signed_size;  // the file names the fastest dimension first
  }
  return {};
}

Status GgufParser::read_type(const std::string& name, core::TensorView* view,
                             std::uint64_t* bytes) {
  TANDEM_ASSIGN(const auto id, read<std::uint32_t>());
  const GgufTensorType* type = tensor_type(id);
  if (type == nullptr) {
    return core::unimplemented(
        fmt::format("{}: tensor \"{}\" has type number {}, which is unknown here; the file is "
                    "damaged or newer than this program",
                    out_.path(), core::printable(name, 128), id));
  }
  if (!type->dtype) {
    return core::unimplemented(
        fmt::format("{}: tensor \"{}\" has type {}, which is not supported; use a file of another "
                    "quantization, for example Q4_K_M",
                    out_.path(), core::printable(name, 128), type->name));
  }
  view->dtype = *type->dtype;
  const core::DTypeTraits& traits = core::traits(view->dtype);
  if (view->cols() % traits.block_elements != 0) {
    return damaged(
        fmt::format("tensor \"{}\" has rows of {} elements, not a multiple of the {} "
                    "elements of a {} block",
                    core::printable(name, 128), view->cols(), traits.block_elements, traits.name));
  }
  const auto blocks = static_cast<std::uint64_t>(view->elements() / traits.block_elements);
  const auto size =
      core::checked_mul<std::uint64_t>(blocks, static_cast<std::uint64_t>(traits.block_bytes));
  if (!size) {
    return damaged(fmt::format("tensor \"{}\" is too large ({} blocks of {})",
                               core::printable(name, 128), blocks, traits.name));
  }
  *bytes = *size;
  return {};
}

/// Turns offsets into addresses, checking that every tensor lies inside the file.
Status GgufParser::place_tensors() {
  // Cannot overflow: the position is below 2^63 and the alignment below 2^32.
  const std::uint64_t data = core::round_up(at_, alignment_);
  for (std::size_t i = 0; i < infos_.size(); ++i) {
    const TensorInfo& info = infos_[i];
    const std::string name = core::printable(out_.tensors_[i].name, 128);
    const auto begin = core::checked_add(data, info.offset);
    const auto end = begin ? core::checked_add(*begin, info.bytes) : std::nullopt;
    if (!end) {
      return damaged(fmt::format("tensor \"{}\" has data offset {} and {} bytes, beyond any file",
                                 name, info.offset, info.bytes));
    }
    if (*end > file().size()) {
      return core::data_loss(
          fmt::format("{}: the file is truncated: tensor \"{}\" needs bytes {}..{} but the file "
                      "ends at {}; download it again",
                      out_.path(), name, *begin, *end, file().size()));
    }
    out_.tensors_[i].view.data = file().data() + *begin;
  }
  return {};
}

Status GgufParser::refuse_overlap() const {
  std::vector<std::size_t> order(infos_.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return infos_[a].offset < infos_[b].offset; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const TensorInfo& before = infos_[order[i - 1]];
    const TensorInfo& after = infos_[order[i]];
    if (before.offset + before.bytes > after.offset) {
      return damaged(fmt::format("tensors \"{}\" and \"{}\" overlap (data offsets {} and {})",
                                 core::printable(out_.tensors_[order[i - 1]].name, 128),
                                 core::printable(out_.tensors_[order[i]].name, 128), before.offset,
                                 after.offset));
    }
  }
  return {};
}

Result<GgufFile> GgufFile::open_part(const std::string& path) {
  TANDEM_ASSIGN(MappedFile file, MappedFile::open(path));
  return GgufParser(std::move(file)).parse();
}

}  // namespace tandem::formats
