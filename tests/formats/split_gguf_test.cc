// Models in several files: NAME-0000K-of-0000N.gguf.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "gguf_image.h"
#include "tandem/formats/gguf.h"
#include "temporary_directory.h"

namespace tandem::formats {
namespace {

using ::testing::HasSubstr;

std::string part_name(int number, int count) {
  return fmt::format("m-{:05}-of-{:05}.gguf", number, count);
}

void set_key(GgufImage& image, const std::string& name, std::string value) {
  for (GgufImage::Key& key : image.keys) {
    if (key.name == name) {
      key.value = std::move(value);
      return;
    }
  }
  image.keys.push_back({name, std::move(value)});
}

std::string u16(std::uint16_t value) {
  return gguf_value(kGgufU16, raw(value));
}

/// Three parts: the metadata alone, and one tensor each.
std::vector<GgufImage> parts() {
  std::vector<GgufImage> out(3);
  for (std::size_t i = 0; i < out.size(); ++i) {
    set_key(out[i], "split.no", u16(static_cast<std::uint16_t>(i)));
    set_key(out[i], "split.count", u16(3));
    set_key(out[i], "split.tensors.count", gguf_value(kGgufI32, raw<std::int32_t>(2)));
    if (i == 0) continue;
    out[i].tensors = {{fmt::format("t{}.weight", i), {8}, 0, 0, {}}};
    out[i].data = std::string(32, static_cast<char>(i));
  }
  set_key(out[0], "general.architecture", gguf_value(kGgufString, gguf_string("gemma4")));
  return out;
}

void write(const testing::TemporaryDirectory& directory, const std::vector<GgufImage>& images) {
  for (std::size_t i = 0; i < images.size(); ++i) {
    directory.write(part_name(static_cast<int>(i) + 1, 3), images[i].bytes());
  }
}

TEST(SplitGguf, TheFirstPartOpensAll) {
  const testing::TemporaryDirectory directory;
  write(directory, parts());
  const auto file = GgufFile::open(directory.file(part_name(1, 3)));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(*file->get_string("general.architecture"), "gemma4");
  EXPECT_EQ(file->tensors().size(), 2U);
  for (int i : {1, 2}) {
    const core::TensorView* view = file->find(fmt::format("t{}.weight", i));
    ASSERT_NE(view, nullptr);
    EXPECT_EQ(std::to_integer<int>(*view->data), i);
    file->file_of(*view)->forget({view->data, view->bytes()});
  }
}

struct Refusal {
  std::string name;
  std::function<void(const testing::TemporaryDirectory&)> change;
  core::Code code;
  std::string message;
  int opened = 1;  ///< number of the part that is given
};

auto with_key(std::size_t part, std::string name, std::string value) {
  return [=](const testing::TemporaryDirectory& directory) {
    auto images = parts();
    set_key(images[part], name, value);
    write(directory, images);
  };
}

class SplitGgufRefused : public ::testing::TestWithParam<Refusal> {};

TEST_P(SplitGgufRefused, WithOneSentence) {
  const testing::TemporaryDirectory directory;
  write(directory, parts());
  GetParam().change(directory);
  const auto file = GgufFile::open(directory.file(part_name(GetParam().opened, 3)));
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), GetParam().code);
  EXPECT_THAT(file.status().message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Table, SplitGgufRefused,
    ::testing::Values(
        Refusal{"NotTheFirst", [](const auto&) {}, core::Code::kInvalidArgument,
                "part 2 of 3; give the first", 2},
        Refusal{"PartMissing", [](const auto& d) { d.remove(part_name(3, 3)); },
                core::Code::kNotFound, "part 3 of the model is missing"},
        Refusal{"PartTruncated",
                [](const auto& d) {
                  const std::string bytes = d.read(part_name(2, 3));
                  d.write(part_name(2, 3), bytes.substr(0, bytes.size() - 1));
                },
                core::Code::kDataLoss, "m-00002-of-00003.gguf: the file is truncated"},
        Refusal{"PartOfAnotherNumber", with_key(2, "split.no", u16(1)), core::Code::kDataLoss,
                "says that it is part 2 of 3, not part 3 of 3"},
        Refusal{"PartOfAnotherCount", with_key(1, "split.count", u16(4)), core::Code::kDataLoss,
                "says that it is part 2 of 4"},
        Refusal{"FirstOfAnotherCount", with_key(0, "split.count", u16(2)),
                core::Code::kInvalidArgument, "is not called NAME-00001-of-00002.gguf"},
        Refusal{"TensorsAreMissing",
                with_key(0, "split.tensors.count", gguf_value(kGgufI32, raw<std::int32_t>(3))),
                core::Code::kDataLoss, "hold 2 tensors where key \"split.tensors.count\" names 3"},
        Refusal{"TensorTwice",
                [](const auto& d) {
                  auto images = parts();
                  images[2].tensors[0].name = "t1.weight";
                  write(d, images);
                },
                core::Code::kDataLoss, "tensor \"t1.weight\" is in another part, too"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem::formats
