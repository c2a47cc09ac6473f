#include "tandem/formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "gguf_image.h"
#include "memory_file.h"

namespace tandem::formats {
namespace {

using core::Code;
using core::DType;
using testing::ElementsAre;
using testing::HasSubstr;

GgufImage with_every_type() {
  GgufImage image = GgufImage::small();
  image.keys = {
      {"u8", gguf_value(kGgufU8, raw<std::uint8_t>(200))},
      {"i8", gguf_value(kGgufI8, raw<std::int8_t>(-3))},
      {"u16", gguf_value(kGgufU16, raw<std::uint16_t>(60000))},
      {"i16", gguf_value(kGgufI16, raw<std::int16_t>(300))},
      {"u32", gguf_value(kGgufU32, raw<std::uint32_t>(4000000000u))},
      {"i32", gguf_value(kGgufI32, raw<std::int32_t>(5))},
      {"f32", gguf_value(kGgufF32, raw(0.5F))},
      {"f64", gguf_value(kGgufF64, raw(0.25))},
      {"bool", gguf_value(kGgufBool, raw<std::uint8_t>(1))},
      {"string", gguf_value(kGgufString, gguf_string("line\nbreak"))},
      {"u64", gguf_value(kGgufU64, raw(std::numeric_limits<std::uint64_t>::max()))},
      {"i64", gguf_value(kGgufI64, raw<std::int64_t>(1))},
      {"bools", gguf_array(kGgufBool, 3, std::string("\1\0\1", 3))},
      {"floats", gguf_array(kGgufF32, 2, raw(1.5F) + raw(-2.0F))},
      {"doubles", gguf_array(kGgufF64, 1, raw(0.125))},
      {"ints", gguf_array(kGgufI16, 2, raw<std::int16_t>(-1) + raw<std::int16_t>(2))},
      {"strings", gguf_array(kGgufString, 2, gguf_string("") + gguf_string("xyz"))},
      {"huge", gguf_array(kGgufU64, 1, raw(std::numeric_limits<std::uint64_t>::max()))},
  };
  return image;
}

TEST(Gguf, ReadsTensorsSlowestDimensionFirst) {
  for (const std::uint32_t version : {2u, 3u}) {
    GgufImage image = GgufImage::small();
    image.version = version;
    const MemoryFile file(image.bytes());
    const auto gguf = GgufFile::open(file.path());
    ASSERT_TRUE(gguf.ok()) << gguf.status().message();
    ASSERT_EQ(gguf->tensors().size(), 2u);
    const core::TensorView* view = gguf->find("second.weight");
    ASSERT_NE(view, nullptr);
    EXPECT_EQ(view->dtype, DType::kQ8_0);
    EXPECT_EQ(view->rank, 2);
    EXPECT_EQ(view->rows(), 2);
    EXPECT_EQ(view->cols(), 32);
    EXPECT_EQ(view->bytes(), 68u);
    EXPECT_EQ(std::memcmp(view->data, image.data.data() + 32, 68), 0);
    gguf->file_of(*view)->forget({view->data, view->bytes()});
    EXPECT_EQ(std::memcmp(view->data, image.data.data() + 32, 68), 0);
    EXPECT_EQ(gguf->find("third.weight"), nullptr);
  }
}

TEST(Gguf, HonoursTheAlignmentKey) {
  GgufImage image = GgufImage::small();
  image.keys.push_back({"general.alignment", gguf_value(kGgufU32, raw<std::uint32_t>(128))});
  image.alignment = 128;
  image.tensors[1].offset = 128;
  image.data = std::string(128 + 68, 'x');
  const MemoryFile file(image.bytes());
  const auto gguf = GgufFile::open(file.path());
  ASSERT_TRUE(gguf.ok()) << gguf.status().message();
  EXPECT_EQ(static_cast<char>(*gguf->find("second.weight")->data), 'x');
}

TEST(Gguf, ReadsEveryMetadataType) {
  const MemoryFile file(with_every_type().bytes());
  const auto gguf = GgufFile::open(file.path());
  ASSERT_TRUE(gguf.ok()) << gguf.status().message();
  EXPECT_EQ(*gguf->get_uint("u8"), 200u);
  EXPECT_EQ(*gguf->get_uint("u16"), 60000u);
  EXPECT_EQ(*gguf->get_uint("i16"), 300u);
  EXPECT_EQ(*gguf->get_uint("u32"), 4000000000u);
  EXPECT_EQ(*gguf->get_uint("i32"), 5u);
  EXPECT_EQ(*gguf->get_uint("u64"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(*gguf->get_uint("i64"), 1u);
  EXPECT_EQ(*gguf->get_float("f32"), 0.5);
  EXPECT_EQ(*gguf->get_float("f64"), 0.25);
  EXPECT_EQ(*gguf->get_string("string"), "line\nbreak");
  EXPECT_THAT(*gguf->get_strings("strings"), ElementsAre("", "xyz"));
  EXPECT_THAT(*gguf->get_ints("ints"), ElementsAre(-1, 2));
  EXPECT_THAT(*gguf->get_ints("bools"), ElementsAre(1, 0, 1));
  EXPECT_THAT(*gguf->get_ints_or_scalar("i8", 3), ElementsAre(-3, -3, -3));
  EXPECT_THAT(*gguf->get_ints_or_scalar("bools", 3), ElementsAre(1, 0, 1));
}

TEST(Gguf, DescribesEveryKeyOnOneLine) {
  const MemoryFile file(with_every_type().bytes());
  const auto gguf = GgufFile::open(file.path());
  ASSERT_TRUE(gguf.ok());
  const auto lines = gguf->describe_metadata();
  EXPECT_EQ(lines.size(), with_every_type().keys.size());
  EXPECT_THAT(lines, testing::Contains(testing::Pair("string", "string \"line\\nbreak\"")));
  EXPECT_THAT(lines, testing::Contains(testing::Pair("i8", "i8 -3")));
  EXPECT_THAT(lines, testing::Contains(testing::Pair("ints", "i16[2]")));
}

TEST(Gguf, SaysWhichKeyIsMissingOrOfAnotherType) {
  const MemoryFile file(with_every_type().bytes());
  const auto gguf = GgufFile::open(file.path());
  ASSERT_TRUE(gguf.ok());
  EXPECT_EQ(gguf->get_uint("nothing").status().code(), Code::kNotFound);
  const auto expect_refused = [&](const core::Status& status, std::string_view part) {
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr(std::string(part)));
    EXPECT_THAT(status.message(), HasSubstr(file.path()));
  };
  expect_refused(gguf->get_uint("i8").status(), "\"i8\" is -3, which must not be negative");
  expect_refused(gguf->get_uint("f32").status(), "\"f32\" is of type f32 where an integer");
  expect_refused(gguf->get_uint("ints").status(), "array of i16 where an integer");
  expect_refused(gguf->get_float("u8").status(), "where f32 or f64");
  expect_refused(gguf->get_string("u8").status(), "where string");
  expect_refused(gguf->get_string("strings").status(), "array of string where string");
  expect_refused(gguf->get_strings("string").status(), "where an array of strings");
  expect_refused(gguf->get_strings("ints").status(), "where an array of strings");
  expect_refused(gguf->get_ints("u8").status(), "where an array of integers");
  expect_refused(gguf->get_ints("floats").status(), "where an array of integers");
  expect_refused(gguf->get_ints("huge").status(), "out of range");
  expect_refused(gguf->get_ints_or_scalar("ints", 3).status(), "2 values where 3 are expected");
  expect_refused(gguf->get_ints_or_scalar("f32", 3).status(), "an integer or an array");
}

TEST(Gguf, SaysWhatIsWrongWithThePath) {
  const auto missing = GgufFile::open("/no/such/file.gguf").status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("/no/such/file.gguf: cannot open the file"));
  const auto folder = GgufFile::open("/proc").status();
  EXPECT_EQ(folder.code(), Code::kInvalidArgument);
  EXPECT_THAT(folder.message(), HasSubstr("is a directory"));
  EXPECT_THAT(GgufFile::open("/dev/null").status().message(), HasSubstr("is a device"));
  EXPECT_EQ(GgufFile::open("").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(GgufFile::open(std::string("/etc\0x", 6)).status().code(), Code::kInvalidArgument);
}

TEST(Gguf, MovedFileKeepsItsViews) {
  const GgufImage image = GgufImage::small();
  const MemoryFile file(image.bytes());
  auto opened = GgufFile::open(file.path());
  ASSERT_TRUE(opened.ok());
  const std::byte* data = opened->find("first.weight")->data;
  const GgufFile moved = std::move(*opened);
  EXPECT_EQ(moved.find("first.weight")->data, data);
  EXPECT_EQ(*moved.get_string("general.architecture"), "gemma4");
}

}  // namespace
}  // namespace tandem::formats
