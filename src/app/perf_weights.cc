#include "tandem/app/perf_weights.h"

#include <cmath>
#include <cstring>

#include "tandem/core/half.h"

namespace tandem::app {
namespace {

using core::DType;

/// A fixed generator; speed matters more than quality here.
class Noise {
 public:
  std::uint64_t operator()() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return state_ >> 16;
  }

 private:
  std::uint64_t state_ = 1;
};

void put_half(std::byte* to, float value) {
  const std::uint16_t half = core::f32_to_f16(value);
  std::memcpy(to, &half, sizeof half);
}

DType dtype_of(WeightForm form) {
  switch (form) {
    case WeightForm::kQ4_K:
      return DType::kQ4_K;
    case WeightForm::kQ6_K:
      return DType::kQ6_K;
    case WeightForm::kQ8_0:
      return DType::kQ8_0;
    case WeightForm::kBF16:
      return DType::kBF16;
    case WeightForm::kFp8:
      return DType::kF8E4M3;
    case WeightForm::kNvfp4:
      return DType::kU8;
  }
  return DType::kBF16;
}

/// Gives every block scales that bring its random codes to values of about `rms`.
void scale_blocks(RandomWeight& w, float rms) {
  const DType dtype = w.view.tensor.dtype;
  const auto block_bytes = static_cast<std::size_t>(core::traits(dtype).block_bytes);
  for (std::size_t at = 0; at < w.bytes.size(); at += block_bytes) {
    std::byte* block = w.bytes.data() + at;
    if (dtype == DType::kQ4_K) {
      put_half(block, rms / 250);
      put_half(block + 2, 7.5F * rms / 250);
    } else if (dtype == DType::kQ6_K) {
      put_half(block + 208, rms / 1367);
    } else {
      put_half(block, rms / 74);
    }
  }
}

void scale_bf16(RandomWeight& w, float rms) {
  for (std::size_t at = 0; at < w.bytes.size(); at += 2) {
    const auto centred = static_cast<float>(std::to_integer<int>(w.bytes[at]) - 128);
    const std::uint16_t bits = core::f32_to_bf16(centred * rms / 74);
    std::memcpy(w.bytes.data() + at, &bits, sizeof bits);
  }
}

void scale_fp8(RandomWeight& w, int rows, int cols, float rms) {
  for (std::byte& code : w.bytes) {  // magnitudes up to 15: no NaN, no large tails
    if ((code & std::byte{0x7f}) >= std::byte{0x58}) code &= std::byte{0x87};
  }
  w.scales.resize(2 * static_cast<std::size_t>(rows));
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
    const std::uint16_t bits = core::f32_to_bf16(rms / 4);
    std::memcpy(w.scales.data() + 2 * r, &bits, sizeof bits);
  }
  w.view.scales = {w.scales.data(), DType::kBF16, 2, {rows, 1, 1, 1}};
  w.view.scale_rows = 1;
  w.view.scale_cols = cols;
  w.view.e4m3_group = cols;
}

void scale_nvfp4(RandomWeight& w, int rows, int cols, float rms, Noise& noise) {
  w.scales.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols / 16));
  for (std::byte& scale : w.scales)
    scale = static_cast<std::byte>(0x30 + noise() % 16);  // 0.5 to 2
  w.view.scales = {w.scales.data(), DType::kF8E4M3, 2, {rows, cols / 16, 1, 1}};
  w.view.scale_rows = 1;
  w.view.scale_cols = 16;
  w.view.factor = rms / 3;
}

}  // namespace

std::string_view name(WeightForm form) {
  switch (form) {
    case WeightForm::kFp8:
      return "FP8";
    case WeightForm::kNvfp4:
      return "NVFP4";
    default:
      return core::name(dtype_of(form));
  }
}

RandomWeight random_weight(WeightForm form, int rows, int cols) {
  RandomWeight w;
  const DType dtype = dtype_of(form);
  w.view.tensor = {nullptr, dtype, 2, {rows, dtype == DType::kU8 ? cols / 2 : cols, 1, 1}};
  w.bytes.resize(w.view.tensor.bytes());
  w.view.tensor.data = w.bytes.data();
  Noise noise;
  for (std::size_t at = 0; at < w.bytes.size(); at += sizeof(std::uint32_t)) {
    const auto word = static_cast<std::uint32_t>(noise());
    std::memcpy(w.bytes.data() + at, &word, std::min(sizeof word, w.bytes.size() - at));
  }
  const float rms = 1.0F / std::sqrt(static_cast<float>(cols));
  switch (form) {
    case WeightForm::kBF16:
      scale_bf16(w, rms);
      break;
    case WeightForm::kFp8:
      scale_fp8(w, rows, cols, rms);
      break;
    case WeightForm::kNvfp4:
      scale_nvfp4(w, rows, cols, rms, noise);
      break;
    default:
      scale_blocks(w, rms);
  }
  return w;
}

}  // namespace tandem::app
