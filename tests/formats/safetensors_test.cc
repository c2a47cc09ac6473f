#include "tandem/formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "gguf_image.h"
#include "memory_file.h"
#include "tensor_values.h"

namespace tandem::formats {
namespace {

using core::Code;
using testing::ElementsAre;
using testing::HasSubstr;

std::string with_header(std::string_view header, std::string_view data) {
  return raw<std::uint64_t>(header.size()) + std::string(header) + std::string(data);
}

/// One tensor "w" whose description is `entry`, over `data_bytes` bytes.
std::string one_tensor(std::string_view entry, std::size_t data_bytes) {
  return with_header("{\"w\":" + std::string(entry) + "}", std::string(data_bytes, '\0'));
}

constexpr const char* kSmallHeader =
    R"({"__metadata__":{"format":"pt"},)"
    R"("b":{"dtype":"I64","shape":[2],"data_offsets":[5,21]},)"
    R"("a":{"dtype":"BF16","shape":[1,2],"data_offsets":[1,5]},)"
    R"("flag":{"dtype":"BOOL","shape":[],"data_offsets":[0,1]},)"
    R"("none":{"dtype":"F32","shape":[0,3],"data_offsets":[21,21]}}  )";

std::string small_file() {
  return with_header(kSmallHeader, "\1" + raw<std::uint16_t>(0x3f80) + raw<std::uint16_t>(0xc000) +
                                       raw<std::int64_t>(-9) + raw<std::int64_t>(4));
}

TEST(Safetensors, ReadsTensorsAtAnyOffset) {
  const MemoryFile file(small_file());
  const auto tensors = SafetensorsFile::open(file.path());
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  EXPECT_EQ(tensors->tensors().size(), 4u);
  EXPECT_THAT(floats_of(*tensors, "a"), ElementsAre(1.0F, -2.0F));
  EXPECT_THAT(ints_of(*tensors, "b"), ElementsAre(-9, 4));
  EXPECT_THAT(ints_of(*tensors, "flag"), ElementsAre(1));
  EXPECT_THAT(floats_of(*tensors, "none"), ElementsAre());
  EXPECT_EQ(tensors->find("c"), nullptr);
  EXPECT_EQ(tensors->find("a")->rank, 2);
  EXPECT_EQ(tensors->find("a")->cols(), 2);
  EXPECT_EQ(tensors->metadata().at("format"), "pt");
}

struct Damage {
  const char* name;
  std::string bytes;
  const char* sentence;
};

void PrintTo(const Damage& damage, std::ostream* out) {
  *out << damage.sentence;
}

std::vector<Damage> all_damage() {
  const std::string whole = small_file();
  return {
      {"NoLength", whole.substr(0, 7), "less than a header's length field"},
      {"NoHeader", whole.substr(0, 8), "truncated: its header needs bytes 8.."},
      {"HalfHeader", whole.substr(0, 40), "truncated: its header needs bytes 8.."},
      {"NoData", whole.substr(0, whole.size() - 21), "truncated: tensor"},
      {"LastByte", whole.substr(0, whole.size() - 1), "truncated: tensor"},
      {"ByteTooMany", whole + "x", "data bytes 21..22 belong to no tensor"},
      {"AbsurdLength", raw(~std::uint64_t{0}) + whole, "claim a header of 18446744073709551615"},
      {"OtherFormat", "a long text file", "not a safetensors file"},
      {"NotJson", with_header("{\"w\":", ""), "is not JSON"},
      {"DeepJson", with_header(std::string(5000, '['), ""), "is not JSON"},
      {"NotAnObject", with_header("[]", ""), "is not a JSON object"},
      {"MetadataNotObject", with_header(R"({"__metadata__":1})", ""), "\"__metadata__\" is not"},
      {"MetadataNotString", with_header(R"({"__metadata__":{"a":1}})", ""), "is not a string"},
      {"TensorNotObject", one_tensor("3", 0), "tensor \"w\" is not described"},
      {"NoName", with_header(R"({"":{}})", ""), "a tensor without a name"},
      {"NoType", one_tensor(R"({"shape":[1],"data_offsets":[0,4]})", 4), "no \"dtype\" string"},
      {"OddType", one_tensor(R"({"dtype":"F4","shape":[1],"data_offsets":[0,4]})", 4),
       "type \"F4\", which is not supported"},
      {"NoShape", one_tensor(R"({"dtype":"F32","data_offsets":[0,4]})", 4), "no \"shape\" array"},
      {"NegativeSize", one_tensor(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", 4),
       "impossible size in dimension 0: -1"},
      {"FractionalSize", one_tensor(R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})", 4),
       "impossible size in dimension 0"},
      {"SizeOverflow",
       one_tensor(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,4]})", 4),
       "impossible size in dimension 1"},
      {"BytesOverflow",
       one_tensor(R"({"dtype":"F64","shape":[9223372036854775807],"data_offsets":[0,4]})", 4),
       "has 4 bytes, which its type F64"},
      {"ZeroHidesOverflow",
       one_tensor(R"({"dtype":"U8","shape":[4294967296,0,4294967296],"data_offsets":[0,0]})", 0),
       "impossible size in dimension 2"},
      {"FiveDimensions",
       one_tensor(R"({"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[0,1]})", 1),
       "has 5 dimensions"},
      {"NoRange", one_tensor(R"({"dtype":"U8","shape":[1]})", 1), "no \"data_offsets\" pair"},
      {"OneOffset", one_tensor(R"({"dtype":"U8","shape":[1],"data_offsets":[0]})", 1),
       "no \"data_offsets\" pair"},
      {"Backwards", one_tensor(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})", 1),
       "impossible \"data_offsets\" [1,0]"},
      {"BeyondFile", one_tensor(R"({"dtype":"U8","shape":[9],"data_offsets":[0,9]})", 1),
       "truncated: tensor \"w\" needs data bytes 0..9"},
      {"WrongBytes", one_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4),
       "has 4 bytes, which its type F32 and its 2 elements do not"},
      {"Gap", one_tensor(R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})", 2), "a gap or"},
      {"DuplicateName",
       with_header(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                   R"("w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                   "xy"),
       "begins at data byte 1 where 0 is expected"},
      {"Overlap",
       with_header(R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                   R"("w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                   "xyz"),
       "a gap or an overlap"},
  };
}

class DamagedSafetensors : public testing::TestWithParam<Damage> {};

TEST_P(DamagedSafetensors, IsRefusedWithItsSentence) {
  const MemoryFile file(GetParam().bytes);
  const auto opened = SafetensorsFile::open(file.path());
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().message(), HasSubstr(GetParam().sentence));
  EXPECT_THAT(opened.status().message(), testing::StartsWith(file.path() + ": "));
}

INSTANTIATE_TEST_SUITE_P(Files, DamagedSafetensors, testing::ValuesIn(all_damage()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(DamagedSafetensorsAnywhere, RandomChangesNeverCrash) {
  const std::string bytes = small_file();
  std::mt19937 random(21);  // the same files in every run
  for (int round = 0; round < 10'000; ++round) {
    std::string changed = bytes;
    for (std::size_t flips = 1 + random() % 4; flips > 0; --flips) {
      char& byte = changed[random() % changed.size()];
      byte = static_cast<char>(byte ^ (1 << random() % 8));
    }
    const MemoryFile file(changed);
    const auto opened = SafetensorsFile::open(file.path());
    if (!opened.ok()) continue;
    for (const auto& tensor : opened->tensors()) {
      const std::string copy(reinterpret_cast<const char*>(tensor.view.data), tensor.view.bytes());
    }
  }
}

}  // namespace
}  // namespace tandem::formats
