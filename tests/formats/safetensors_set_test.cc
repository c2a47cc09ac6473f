#include "tandem/formats/safetensors_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "safetensors_image.h"
#include "temporary_directory.h"

namespace tandem::formats {
namespace {

using ::testing::HasSubstr;
using testing::SafetensorsImage;
using testing::TemporaryDirectory;

const char* const kIndex = "model.safetensors.index.json";

SafetensorsImage image(const std::string& name, char byte) {
  SafetensorsImage out;
  out.tensors[name] = {"U8", {3}, std::string(3, byte)};
  return out;
}

/// a.weight in one.safetensors, b.weight in two.safetensors.
void write_parts(const TemporaryDirectory& directory) {
  directory.write("one.safetensors", image("a.weight", 'a').bytes());
  directory.write("two.safetensors", image("b.weight", 'b').bytes());
  directory.write(kIndex, R"({"metadata": {"total_size": 6}, "weight_map": {)"
                          R"("b.weight": "two.safetensors", "a.weight": "one.safetensors"}})");
}

TEST(SafetensorsSet, FindsTensorsInThePartsOfAnIndex) {
  const TemporaryDirectory directory;
  write_parts(directory);
  const auto set = SafetensorsSet::open(directory.path());
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_EQ(set->files().size(), 2U);
  ASSERT_EQ(set->tensors().size(), 2U);
  EXPECT_EQ(set->tensors()[0].name, "a.weight");
  EXPECT_EQ(set->find("c.weight"), nullptr);
  for (const auto& [name, view] : set->tensors()) {
    EXPECT_EQ(std::to_integer<char>(*view->data), name.front());
    set->file_of(*view)->forget({view->data, view->bytes()});
  }
}

TEST(SafetensorsSet, ASingleFileComesFirst) {
  const TemporaryDirectory directory;
  write_parts(directory);
  directory.write("model.safetensors", image("c.weight", 'c').bytes());
  const auto set = SafetensorsSet::open(directory.path());
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_NE(set->find("c.weight"), nullptr);
  EXPECT_EQ(set->find("a.weight"), nullptr);
}

struct Refusal {
  std::string name;
  std::function<void(const TemporaryDirectory&)> change;
  core::Code code;
  std::string message;
};

auto index(std::string text) {
  return [=](const TemporaryDirectory& directory) {
    directory.write(kIndex, text);
  };
}

class SafetensorsSetRefused : public ::testing::TestWithParam<Refusal> {};

TEST_P(SafetensorsSetRefused, WithOneSentence) {
  const TemporaryDirectory directory;
  write_parts(directory);
  GetParam().change(directory);
  const auto set = SafetensorsSet::open(directory.path());
  ASSERT_FALSE(set.ok());
  EXPECT_EQ(set.status().code(), GetParam().code);
  EXPECT_THAT(set.status().message(), HasSubstr(GetParam().message));
  EXPECT_THAT(set.status().message(), ::testing::StartsWith(directory.path()));
}

const core::Code kBad = core::Code::kDataLoss;

INSTANTIATE_TEST_SUITE_P(
    Index, SafetensorsSetRefused,
    ::testing::Values(
        Refusal{"NoFiles", [](const auto& d) { d.remove(kIndex); }, core::Code::kNotFound,
                "there is neither model.safetensors nor model.safetensors.index.json"},
        Refusal{"NotJson", index("{"), kBad, "is not JSON"},
        Refusal{"Empty", index(""), core::Code::kInvalidArgument, "the file is empty"},
        Refusal{"NoMap", index("{}"), kBad, "has no \"weight_map\" object"},
        Refusal{"MapAsList", index(R"({"weight_map": []})"), kBad, "has no \"weight_map\" object"},
        Refusal{"EmptyMap", index(R"({"weight_map": {}})"), kBad, "names no tensor"},
        Refusal{"FileAsNumber", index(R"({"weight_map": {"a.weight": 1}})"), kBad,
                "names 1 as the file of tensor \"a.weight\""},
        Refusal{"FileElsewhere", index(R"({"weight_map": {"a.weight": "../one.safetensors"}})"),
                kBad, "which is no file of this directory"},
        Refusal{"FileOfTheRoot", index(R"({"weight_map": {"a.weight": "/etc/passwd"}})"), kBad,
                "which is no file of this directory"},
        Refusal{"DirectoryAsFile", index(R"({"weight_map": {"a.weight": ".."}})"), kBad,
                "which is no file of this directory"},
        Refusal{"FileMissing", [](const auto& d) { d.remove("two.safetensors"); },
                core::Code::kNotFound, "the file is missing, but model.safetensors.index.json"},
        Refusal{"TensorElsewhere", index(R"({"weight_map": {"a.weight": "two.safetensors"}})"),
                kBad, "names tensor \"a.weight\" in two.safetensors, which does not have it"},
        Refusal{"PartTruncated",
                [](const auto& d) {
                  const std::string bytes = d.read("one.safetensors");
                  d.write("one.safetensors", bytes.substr(0, bytes.size() - 1));
                },
                kBad, "one.safetensors: the file is truncated"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem::formats
