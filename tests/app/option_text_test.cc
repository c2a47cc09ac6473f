#include "tandem/app/option_text.h"

#include <gtest/gtest.h>

namespace tandem::app {
namespace {

TEST(OptionText, SizesAreANumberAndAUnit) {
  EXPECT_EQ(parse_size("2GiB"), std::uint64_t{2} << 30);
  EXPECT_EQ(parse_size("512MiB"), std::uint64_t{512} << 20);
  EXPECT_EQ(parse_size("1.5g"), std::uint64_t{3} << 29);
  EXPECT_EQ(parse_size("1.5 GB"), 1'500'000'000u);
  EXPECT_EQ(parse_size("64k"), 65536u);
  EXPECT_EQ(parse_size("3TB"), 3'000'000'000'000u);
  EXPECT_EQ(parse_size("4096"), 4096u);
  EXPECT_EQ(parse_size("0"), 0u);
  EXPECT_EQ(parse_kv_memory("auto"), 0u);
  EXPECT_EQ(parse_kv_memory("1MiB"), 1u << 20);
  EXPECT_FALSE(parse_kv_memory("0"));
}

TEST(OptionText, WhatIsNoSizeIsRefused) {
  for (const char* text : {"", "GiB", "2XB", "-1GiB", "2GiBs", "1e3", "nan", "inf", "2  GiB",
                           "0x10", "9999999999TiB", "9223372036854775808"}) {
    EXPECT_FALSE(parse_size(text)) << text;
  }
}

TEST(OptionText, DraftLengthIsAutoOrANumber) {
  EXPECT_EQ(parse_draft_length("auto"), -1);
  EXPECT_EQ(parse_draft_length("0"), 0);
  EXPECT_EQ(parse_draft_length("8"), 8);
  for (const char* text : {"", "9", "-1", "Auto", "3x", "2.5", " 1"}) {
    EXPECT_FALSE(parse_draft_length(text)) << text;
  }
}

TEST(OptionText, KvTypeIsF16OrInt8) {
  EXPECT_EQ(parse_kv_type("f16"), kernels::KvType::kF16);
  EXPECT_EQ(parse_kv_type("int8"), kernels::KvType::kInt8);
  for (const char* text : {"", "F16", "q8_0", "int4", "int8 "}) {
    EXPECT_FALSE(parse_kv_type(text)) << text;
  }
}

TEST(OptionText, AcceptanceIsUpToEightDescendingRates) {
  EXPECT_EQ(parse_acceptance("0.646,0.418,0.278"), (std::vector<float>{0.646F, 0.418F, 0.278F}));
  EXPECT_EQ(parse_acceptance("1"), std::vector<float>{1.0F});
  for (const char* text : {"", ",", "0.5,", "0.4,0.5", "1.1", "-0.1", "0.5;0.4", "nan", "0.5 ",
                           ".9,.8,.7,.6,.5,.4,.3,.2,.1"}) {
    EXPECT_FALSE(parse_acceptance(text)) << text;
  }
}

TEST(OptionText, SizesAreWrittenWithTheirUnit) {
  EXPECT_EQ(format_size(512), "512 B");
  EXPECT_EQ(format_size(2048), "2.0 KiB");
  EXPECT_EQ(format_size(std::uint64_t{33} << 20), "33.0 MiB");
  EXPECT_EQ(format_size(std::uint64_t{3} << 29), "1.50 GiB");
}

}  // namespace
}  // namespace tandem::app
