#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/tensor.h"
#include "tandem/formats/mapped_file.h"

namespace tandem::formats {

/// One GGUF model (version 2 or 3, little-endian), fully checked at open: counts, string lengths,
/// types, dimensions, alignment, and that the bytes of every tensor lie inside the file and
/// overlap no other tensor's, so that nobody has to check after. Views and string_views point into
/// the mapped file and die with it. Thread: any once open. Source: spec/formats.md section 1.
///
/// A model split over files NAME-00001-of-0000N.gguf is opened by its first one, which holds the
/// metadata; the tensors are those of all.
class GgufFile {
 public:
  /// Fails with kNotFound or kInvalidArgument (see MappedFile::open; a part that is missing or not
  /// the first), kDataLoss (what, where in the file) or kUnimplemented (a version or a tensor type
  /// that Tandem does not read). Every message names the path.
  static core::Result<GgufFile> open(const std::string& path);

  const std::string& path() const { return file_.path(); }

  // ---- metadata: a missing key is kNotFound, a key of another type than asked for or a value out
  // of range kDataLoss; the message names path, key and types
  bool has(std::string_view key) const;
  core::Result<std::uint64_t> get_uint(std::string_view key) const;  ///< any integer type, >= 0
  core::Result<double> get_float(std::string_view key) const;        ///< f32 or f64
  core::Result<std::string_view> get_string(std::string_view key) const;
  core::Result<std::vector<std::string_view>> get_strings(std::string_view key) const;
  /// An array of integers or bools.
  core::Result<std::vector<std::int64_t>> get_ints(std::string_view key) const;
  /// `count` values from a scalar or an array of exactly `count` (per-layer hyper-parameters).
  core::Result<std::vector<std::int64_t>> get_ints_or_scalar(std::string_view key,
                                                             std::size_t count) const;
  /// Every key with its type and value printed on one line (arrays by length), for inspect.
  std::vector<std::pair<std::string, std::string>> describe_metadata() const;

  // ---- tensors
  struct Tensor {
    std::string name;
    core::TensorView view;  ///< shape slowest first: GGUF dims (ne0, ne1) become {ne1, ne0}
  };
  /// In file order.
  std::span<const Tensor> tensors() const { return tensors_; }
  /// Null when absent.
  const core::TensorView* find(std::string_view name) const;

  /// The part that holds a tensor; null if none does.
  const MappedFile* file_of(const core::TensorView& view) const;
  /// MappedFile::forget of all tensors and metadata.
  void forget_all() const;

 private:
  struct Value {
    std::uint32_t type = 0;          // GGUF value type; 9 = array
    std::uint32_t element_type = 0;  // of an array; equal to type otherwise
    std::uint64_t count = 1;         // elements of an array
    std::span<const std::byte> payload;
  };
  friend class GgufParser;

  /// One file, whether or not it is part of a split model.
  static core::Result<GgufFile> open_part(const std::string& path);
  /// Opens the other parts of a split model and adds their tensors.
  core::Status join_parts(std::uint64_t num_parts);
  /// Checks part `number` (from 0) and moves its tensors here.
  core::Status add_part(GgufFile part, std::uint64_t number, std::uint64_t num_parts);

  core::Result<const Value*> find_value(std::string_view key) const;
  core::Result<const Value*> find_array(std::string_view key, std::string_view wanted) const;
  core::Status wrong_type(std::string_view key, const Value& value, std::string_view wanted) const;
  core::Result<std::int64_t> int_at(std::string_view key, const Value& value,
                                    std::size_t index) const;

  MappedFile file_;
  std::vector<MappedFile> other_files_;  // of a split model
  std::map<std::string, Value, std::less<>> metadata_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> tensor_index_;
};

}  // namespace tandem::formats
