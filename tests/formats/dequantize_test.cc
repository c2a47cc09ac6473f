#include "tandem/formats/dequantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace tandem::formats {
namespace {

using core::DType;

std::filesystem::path quant_goldens() {
  if (const char* root = std::getenv("TANDEM_TEST_DATA"); root != nullptr) {
    const auto folder = std::filesystem::path(root) / "goldens" / "quant";
    if (std::filesystem::exists(folder)) return folder;
  }
  return TANDEM_SOURCE_DIR "/tests/data/goldens/quant";
}

std::vector<char> read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string case_name(const testing::TestParamInfo<DType>& info) {
  return std::string(core::name(info.param));
}

class Dequantize : public testing::TestWithParam<DType> {};

TEST_P(Dequantize, EqualsTheFormatsOwnValuesBitForBit) {
  const DType dtype = GetParam();
  const std::string name(core::name(dtype));
  const std::vector<char> blocks = read_file(quant_goldens() / (name + ".bin"));
  const std::vector<char> expected_bytes = read_file(quant_goldens() / (name + ".f32"));
  const auto elements = static_cast<std::int64_t>(expected_bytes.size() / sizeof(float));
  ASSERT_GT(elements, 0);
  ASSERT_EQ(core::row_bytes(dtype, elements), blocks.size());

  // One byte off, as a tensor in a mapped file may lie.
  std::vector<std::byte> misaligned(blocks.size() + 1);
  std::memcpy(misaligned.data() + 1, blocks.data(), blocks.size());
  std::vector<float> actual(static_cast<std::size_t>(elements));
  dequantize_row(dtype, misaligned.data() + 1, elements, actual.data());

  std::vector<float> expected(actual.size());
  std::memcpy(expected.data(), expected_bytes.data(), expected_bytes.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(actual[i]), std::bit_cast<std::uint32_t>(expected[i]))
        << name << " element " << i << ": " << actual[i] << " instead of " << expected[i];
  }
}

INSTANTIATE_TEST_SUITE_P(golden, Dequantize,
                         testing::Values(DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                                         DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K,
                                         DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                                         DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4,
                                         DType::kNVFP4),
                         case_name);

TEST(Dequantize, CopiesF32AndRefusesWhatHasNoFloatValues) {
  const std::vector<float> values = {1.5F, -0.0F, 3e38F};
  std::vector<float> out(values.size());
  dequantize_row(DType::kF32, reinterpret_cast<const std::byte*>(values.data()), 3, out.data());
  EXPECT_EQ(out, values);
  EXPECT_FALSE(can_dequantize(DType::kI32));
  EXPECT_FALSE(can_dequantize(DType::kBool));
}

TEST(E4m3, EveryCodeIsItsOwnNearest) {
  EXPECT_EQ(e4m3_to_f32(0x7e), 448.0F);
  EXPECT_EQ(e4m3_to_f32(0x08), 0x1p-6F);
  EXPECT_EQ(e4m3_to_f32(0x01), 0x1p-9F);
  EXPECT_EQ(e4m3_to_f32(0xb8), -1.0F);
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_f32(static_cast<std::uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(f32_to_e4m3(value), code) << value;
    }
  }
}

TEST(E4m3, RoundsToTheNearestAndTiesToEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = e4m3_to_f32(static_cast<std::uint8_t>(code));
    const float high = e4m3_to_f32(static_cast<std::uint8_t>(code + 1));
    const float middle = (low + high) / 2.0F;
    EXPECT_EQ(f32_to_e4m3(middle), code % 2 == 0 ? code : code + 1) << middle;
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, 0.0F)), code) << middle;
    EXPECT_EQ(f32_to_e4m3(-std::nextafter(middle, 1e9F)), 0x80 | (code + 1)) << middle;
  }
  EXPECT_EQ(f32_to_e4m3(464.0F), 0x7e);
  EXPECT_EQ(f32_to_e4m3(465.0F), 0x7f);
  EXPECT_EQ(f32_to_e4m3(std::nanf("")) & 0x7f, 0x7f);
}

}  // namespace
}  // namespace tandem::formats
