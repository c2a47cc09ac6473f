#include "tandem/model/tensor_packer.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "tandem/formats/dequantize.h"
#include "tandem/model/config_build.h"

namespace tandem::model {

using kernels::Weight;
using kernels::WeightRole;
using kernels::WeightView;

bool TensorPacker::has(TensorKey key) const {
  const std::string name = files_.tensor_name(key);
  return !name.empty() && files_.has_weight(name);
}

core::Status TensorPacker::error(std::string_view message) const {
  return core::data_loss(
      fmt::format("{}: {}; the model is damaged, get it again", files_.path(), message));
}

core::Result<WeightView> TensorPacker::find(TensorKey key, std::int64_t rows,
                                            std::int64_t cols) const {
  const std::string name = files_.tensor_name(key);
  if (!files_.has_weight(name)) return error(fmt::format("tensor \"{}\" is missing", name));
  TANDEM_ASSIGN(const WeightView view, files_.weight(name));
  if (view.rows() == rows && view.cols() == cols) return view;
  return error(fmt::format("tensor \"{}\" has {} x {} values, expected {} x {} (rows x columns)",
                           name, view.rows(), view.cols(), rows, cols));
}

core::Result<int> TensorPacker::count_rows(TensorKey key, std::int64_t cols) const {
  const std::string name = files_.tensor_name(key);
  TANDEM_ASSIGN(const WeightView view, files_.weight(name));
  if (view.cols() == cols && view.rows() > 0 && view.rows() <= kVocab.max) {
    return static_cast<int>(view.rows());
  }
  return error(fmt::format("tensor \"{}\" has {} x {} values, expected {} columns", name,
                           view.rows(), view.cols(), cols));
}

core::Status TensorPacker::check_plain(const std::string& name,
                                       const core::TensorView& view) const {
  for (const core::DType plain : {core::DType::kF32, core::DType::kF16, core::DType::kBF16}) {
    if (view.dtype == plain) return {};
  }
  return error(fmt::format("tensor \"{}\" must be F32, F16 or BF16, but is {}", name,
                           core::name(view.dtype)));
}

core::Status TensorPacker::vector(TensorKey key, int n, const Weight*& out) {
  TANDEM_ASSIGN(const WeightView view, find(key, 1, n));
  TANDEM_TRY(check_plain(files_.tensor_name(key), view.tensor));
  return pack(key, view, WeightRole::kVector, out);
}

core::Status TensorPacker::matrix(TensorKey key, std::int64_t rows, std::int64_t cols,
                                  WeightRole use, const Weight*& out) {
  TANDEM_ASSIGN(const WeightView view, find(key, rows, cols));
  return pack(key, view, use, out);
}

core::Status TensorPacker::optional_scalar(TensorKey key, float& out) {
  if (!has(key)) return {};
  TANDEM_ASSIGN(const WeightView view, find(key, 1, 1));
  const std::string name = files_.tensor_name(key);
  TANDEM_TRY(check_plain(name, view.tensor));
  formats::dequantize_row(view.tensor.dtype, view.tensor.data, 1, &out);
  if (std::isfinite(out)) return {};
  return error(fmt::format("tensor \"{}\" is not a finite number", name));
}

core::Status TensorPacker::pack(TensorKey key, const WeightView& view, WeightRole use,
                                const Weight*& out) {
  const std::string name = files_.tensor_name(key);
  const auto status = use == WeightRole::kTokenIds ? core::Status() : view.check(name);
  if (!status.ok()) return status.with_context(files_.path());
  WeightView placed = view;
  placed.file = use == WeightRole::kTable ? files_.file_of(view.tensor) : nullptr;
  auto packed = backend_.pack(placed, use, name);
  if (!packed.ok()) return packed.status().with_context(files_.path());
  if (use != WeightRole::kTable) files_.forget(view.tensor);
  storage_.push_back(std::move(packed).value());
  out = storage_.back().get();
  return {};
}

}  // namespace tandem::model
