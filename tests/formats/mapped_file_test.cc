#include "tandem/formats/mapped_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "temporary_directory.h"

namespace tandem::formats {
namespace {

TEST(MappedFile, ReadsTheBytesThatItMaps) {
  const testing::TemporaryDirectory directory;
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += static_cast<char>(i * 7);
  directory.write("file", text);
  const auto file = MappedFile::open(directory.file("file"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->bytes().size(), text.size());
  for (const std::size_t begin : {0, 1, 4095, 9'999}) {
    const auto part = file->bytes().subspan(begin);
    std::vector<std::byte> copy(part.size());
    EXPECT_TRUE(file->read(part, copy.data()));
    EXPECT_TRUE(std::equal(copy.begin(), copy.end(), part.begin()));
  }
}

TEST(MappedFile, SaysWhenTheFileHasLostWhatIsRead) {
  const testing::TemporaryDirectory directory;
  directory.write("file", std::string(8192, 'x'));
  const auto file = MappedFile::open(directory.file("file"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  std::filesystem::resize_file(directory.file("file"), 100);
  std::vector<std::byte> copy(200);
  EXPECT_TRUE(file->read(file->bytes().first(100), copy.data()));
  EXPECT_FALSE(file->read(file->bytes().first(101), copy.data()));
  EXPECT_FALSE(file->read(file->bytes().subspan(5'000, 1), copy.data()));
}

}  // namespace
}  // namespace tandem::formats
