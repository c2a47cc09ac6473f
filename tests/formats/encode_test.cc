#include "tandem/formats/encode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tandem/core/half.h"
#include "tandem/formats/dequantize.h"

namespace tandem::formats {
namespace {

using core::DType;

std::vector<float> random_row(std::size_t size, float deviation) {
  std::mt19937 random(size);
  std::normal_distribution<float> value(0.0F, deviation);
  std::vector<float> row(size);
  for (float& x : row) x = value(random);
  return row;
}

std::vector<float> decoded(DType dtype, const std::vector<std::byte>& bytes, std::size_t size) {
  std::vector<float> row(size);
  dequantize_row(dtype, bytes.data(), static_cast<std::int64_t>(size), row.data());
  return row;
}

std::vector<std::byte> encoded(DType dtype, const std::vector<float>& row) {
  std::vector<std::byte> bytes(core::row_bytes(dtype, static_cast<std::int64_t>(row.size())));
  encode_row(dtype, row, bytes.data());
  return bytes;
}

TEST(Encode, WhatWasDecodedComesBackBitForBit) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto bytes = encoded(dtype, random_row(96, 1.0F));
    EXPECT_EQ(encoded(dtype, decoded(dtype, bytes, 96)), bytes) << core::name(dtype);
  }
}

TEST(Encode, Q8_0IsNearestToTheScaleOfItsBlock) {
  auto row = random_row(96, 0.3F);
  std::fill(row.begin() + 32, row.begin() + 64, 0.0F);
  const auto back = decoded(DType::kQ8_0, encoded(DType::kQ8_0, row), row.size());
  for (std::size_t block = 0; block < row.size(); block += 32) {
    float largest = 0.0F;
    for (std::size_t i = block; i < block + 32; ++i) largest = std::max(largest, std::abs(row[i]));
    // Half a step, and what the scale lost as an f16 over 127 steps.
    const float bound = largest / 127.0F * (0.5F + 127.0F * 0x1p-11F);
    for (std::size_t i = block; i < block + 32; ++i) EXPECT_NEAR(back[i], row[i], bound) << i;
  }
}

TEST(Encode, E4m3RowsUseTheWholeRangeOfCodes) {
  for (const float deviation : {1e-4F, 0.3F, 2000.0F}) {
    const auto row = random_row(512, deviation);
    std::vector<std::byte> codes(row.size());
    const float scale = encode_e4m3_row(row, codes.data());
    EXPECT_EQ(scale, core::bf16_to_f32(core::f32_to_bf16(scale)));
    const auto values = decoded(DType::kF8E4M3, codes, row.size());
    float largest = 0.0F;
    for (std::size_t i = 0; i < row.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      // Three bits of mantissa, and steps of 2^-9 near zero; the bf16 scale may clip the largest.
      EXPECT_NEAR(values[i] * scale, row[i],
                  std::abs(row[i]) * 0x1p-4F + std::abs(row[i]) * 0x1p-8F + scale * 0x1p-10F);
    }
    EXPECT_GE(largest, 416.0F);
    EXPECT_LE(largest, 448.0F);
  }
}

TEST(Encode, ARowOfZerosIsZeros) {
  const std::vector<float> row(64, 0.0F);
  std::vector<std::byte> codes(row.size(), std::byte{1});
  EXPECT_EQ(encode_e4m3_row(row, codes.data()), 1.0F);
  EXPECT_EQ(codes, std::vector<std::byte>(row.size()));
}

}  // namespace
}  // namespace tandem::formats
