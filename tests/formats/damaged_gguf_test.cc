#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "gguf_image.h"
#include "memory_file.h"
#include "tandem/formats/dequantize.h"
#include "tandem/formats/gguf.h"

namespace tandem::formats {
namespace {

using testing::HasSubstr;

/// One way to damage the small file, and a part of the sentence that it must get.
struct Damage {
  const char* name;
  std::function<std::string(GgufImage)> make;
  const char* sentence;
};

void PrintTo(const Damage& damage, std::ostream* out) {
  *out << damage.sentence;
}

using Change = std::function<void(GgufImage&)>;

/// Falsifies a part before the file is put together.
std::function<std::string(GgufImage)> change(const Change& falsify) {
  return [falsify](GgufImage image) {
    falsify(image);
    return image.bytes();
  };
}

std::function<std::string(GgufImage)> key(std::string name, std::string value) {
  return change([=](GgufImage& image) { image.keys.push_back({name, value}); });
}

std::function<std::string(GgufImage)> cut_at(std::size_t size) {
  return [=](GgufImage image) {
    return image.bytes().substr(0, size);
  };
}

/// Keeps `extra` bytes after the end of `part`.
std::function<std::string(GgufImage)> cut_after(std::string part, std::size_t extra = 0) {
  return [=](GgufImage image) {
    const std::string bytes = image.bytes();
    return bytes.substr(0, bytes.find(part) + part.size() + extra);
  };
}

/// The same for a file without tensors, whose header cannot contradict the short file.
std::function<std::string(GgufImage)> cut_keys_after(std::string part, std::size_t extra = 0) {
  return [=](GgufImage image) {
    image.tensors.clear();
    return cut_after(part, extra)(image);
  };
}

std::function<std::string(GgufImage)> cut_from_end(std::size_t bytes) {
  return [=](GgufImage image) {
    const std::string whole = image.bytes();
    return whole.substr(0, whole.size() - bytes);
  };
}

constexpr std::uint64_t kHuge = ~std::uint64_t{0};
constexpr std::uint64_t kTopBit = std::uint64_t{1} << 63;

std::vector<Damage> truncations() {
  return {
      {"Empty", cut_at(0), "the file is empty"},
      {"InMagic", cut_at(3), "truncated: the header"},
      {"AfterMagic", cut_at(4), "truncated: the header"},
      {"InVersion", cut_at(7), "truncated: the header"},
      {"InTensorCount", cut_at(12), "truncated: the header"},
      {"InKeyCount", cut_at(23), "truncated: the header"},
      {"AfterHeader", cut_at(24), "claims 5 metadata keys"},
      {"InSomeKeyName", cut_after("some.cou"), "claims 5 metadata keys"},
      {"InLastKeyName", cut_keys_after("some.wor"), "truncated: metadata key 5 of 5"},
      {"InKeyNameLength", cut_keys_after("some.count", 8 + 3), "truncated: metadata key 3 of 5"},
      {"InKeyType", cut_keys_after("some.words", 2), "the value of key \"some.words\""},
      {"InElementType", cut_keys_after("some.words", 6), "the value of key \"some.words\""},
      {"InArrayCount", cut_keys_after("some.words", 10), "the value of key \"some.words\""},
      {"InArrayOfNumbers", cut_keys_after("some.sizes", 4 + 12 + 3), "key \"some.sizes\""},
      {"InArrayOfStrings", cut_keys_after("some.words", 16 + 9 + 9), "key \"some.words\""},
      {"AfterKeys", cut_after("bc"), "truncated: the description of tensor 1 of 2"},
      {"InTensorNameLength", cut_after("first.weight", 32 + 4), "tensor 2 of 2"},
      {"InTensorName", cut_after("second.wei"), "the description of tensor 2 of 2"},
      {"InRank", cut_after("second.weight", 2), "tensor \"second.weight\""},
      {"InDimension", cut_after("second.weight", 4 + 12), "tensor \"second.weight\""},
      {"InType", cut_after("second.weight", 20 + 2), "tensor \"second.weight\""},
      {"InOffset", cut_after("second.weight", 24 + 7), "tensor \"second.weight\""},
      {"AfterInfos", cut_after("second.weight", 32), "tensor \"first.weight\" needs bytes"},
      {"InFirstTensor", cut_from_end(69), "tensor \"first.weight\" needs bytes"},
      {"AfterFirstTensor", cut_from_end(68), "tensor \"second.weight\" needs bytes"},
      {"LastByte", cut_from_end(1), "but the file ends at"},
  };
}

std::vector<Damage> lying_headers() {
  return {
      {"NotGguf", change([](GgufImage& f) { f.magic = "PK\3\4"; }), "not a GGUF file"},
      {"Lowercase", change([](GgufImage& f) { f.magic = "gguf"; }), "not a GGUF file"},
      {"VersionZero", change([](GgufImage& f) { f.version = 0; }), "big-endian"},
      {"VersionOne", change([](GgufImage& f) { f.version = 1; }), "version 1 is not supported"},
      {"VersionFour", change([](GgufImage& f) { f.version = 4; }), "version 4 is not supported"},
      {"BigEndian", change([](GgufImage& f) { f.version = 0x03000000; }), "big-endian"},
      {"OneKeyTooMany", change([](GgufImage& f) { f.num_keys = 6; }), "tensor 1 of 2"},
      {"OneKeyTooFew", change([](GgufImage& f) { f.num_keys = 4; }), "has 9 dimensions"},
      {"OneTensorTooMany", change([](GgufImage& f) { f.num_tensors = 3; }), "tensor 3 of 3"},
      {"AbsurdKeys", change([](GgufImage& f) { f.num_keys = kHuge; }),
       "claims 18446744073709551615 metadata keys"},
      {"NegativeKeys", change([](GgufImage& f) { f.num_keys = kTopBit; }),
       "metadata keys, more than"},
      {"AbsurdTensors", change([](GgufImage& f) { f.num_tensors = kHuge; }),
       "claims 18446744073709551615 tensors"},
      {"ManyTensors", change([](GgufImage& f) { f.num_tensors = 1000000; }),
       "claims 1000000 tensors"},
  };
}

std::vector<Damage> lying_metadata() {
  const std::string u32 = gguf_value(kGgufU32, raw<std::uint32_t>(1));
  return {
      {"DuplicateKey", key("some.count", u32), "\"some.count\" appears twice"},
      {"EmptyKeyName", key("", u32), "has a name of 0 bytes"},
      {"NulInKeyName", key(std::string("a\0b", 3), u32), "unprintable characters, \"a\\x00b\""},
      {"ControlInKeyName", key("a\x1b[2J", u32), "unprintable characters, \"a\\x1B[2J\""},
      {"HighBitInKeyName", key("caf\xe9", u32), "unprintable characters"},
      {"LongKeyName", key(std::string(65536, 'k'), u32), "has a name of 65536 bytes"},
      {"KeyNameBeyondFile",
       [](GgufImage f) {
         std::string bytes = f.bytes();
         return bytes.replace(24, 8, raw(kHuge));
       },
       "has a name of 18446744073709551615 bytes"},
      {"UnknownValueType", key("k", gguf_value(13, "xxxx")),
       "has type 13, which GGUF does not define"},
      {"HugeValueType", key("k", gguf_value(0xffffffff, "xxxx")), "has type 4294967295"},
      {"UnknownElementType", key("k", gguf_array(99, 1, "x")), "has type 99"},
      {"ArrayOfArrays", key("k", gguf_array(kGgufArray, 1, gguf_array(kGgufU8, 1, "x"))),
       "array of arrays"},
      {"BoolOfTwo", key("k", gguf_value(kGgufBool, "\2")), "is a bool with value 2"},
      {"BoolArrayOf255", key("k", gguf_array(kGgufBool, 2, "\1\xff")), "is a bool with value 255"},
      {"StringBeyondFile", key("k", gguf_value(kGgufString, raw(kHuge))), "the value of key \"k\""},
      {"StringOfTopBit", key("k", gguf_value(kGgufString, raw(kTopBit))), "the value of key \"k\""},
      {"ArrayCountOverflows", key("k", gguf_array(kGgufU64, kTopBit / 4 + 1, "")),
       "the value of key \"k\""},
      {"ArrayCountHuge", key("k", gguf_array(kGgufU8, kHuge, "")), "the value of key \"k\""},
      {"StringArrayCountHuge", key("k", gguf_array(kGgufString, kHuge, gguf_string("x"))),
       "does not fit before"},
      {"StringInArrayBeyondFile", key("k", gguf_array(kGgufString, 1, raw(kHuge - 7))),
       "the value of key \"k\""},
      {"AlignmentZero", key("general.alignment", gguf_value(kGgufU32, raw<std::uint32_t>(0))),
       "is 0, not a power of two"},
      {"AlignmentOdd", key("general.alignment", gguf_value(kGgufU32, raw<std::uint32_t>(48))),
       "is 48, not a power of two"},
      {"AlignmentHuge", key("general.alignment", gguf_value(kGgufU64, raw(kTopBit))),
       "not a power of two"},
      {"AlignmentBeyondFile",
       key("general.alignment", gguf_value(kGgufU32, raw<std::uint32_t>(1u << 31))),
       "not a multiple of the alignment 2147483648"},
      {"AlignmentText", key("general.alignment", gguf_value(kGgufString, gguf_string("32"))),
       "is of type string where an integer"},
      {"Split", key("split.count", gguf_value(kGgufU16, raw<std::uint16_t>(3))),
       "part 1 of 3, but is not called NAME-00001-of-00003.gguf"},
      {"SplitText", key("split.count", gguf_value(kGgufString, gguf_string("3"))),
       "\"split.count\" is of type string"},
  };
}

/// Falsifies the second tensor's description.
std::function<std::string(GgufImage)> tensor(
    const std::function<void(GgufImage::Tensor&)>& falsify) {
  return change([=](GgufImage& image) { falsify(image.tensors[1]); });
}

constexpr std::uint32_t kQ8_0 = 8;

std::function<std::string(GgufImage)> shape(std::vector<std::uint64_t> dims,
                                            std::uint32_t type = kQ8_0) {
  return tensor([=](GgufImage::Tensor& t) {
    t.dims = dims;
    t.type = type;
  });
}

std::function<std::string(GgufImage)> offset(std::uint64_t bytes) {
  return tensor([=](GgufImage::Tensor& t) { t.offset = bytes; });
}

std::vector<Damage> lying_tensors() {
  using T = GgufImage::Tensor;
  constexpr std::uint64_t k2To32 = std::uint64_t{1} << 32;
  return {
      {"DuplicateTensor", tensor([](T& t) { t.name = "first.weight"; }),
       "\"first.weight\" appears twice"},
      {"EmptyTensorName", tensor([](T& t) { t.name = ""; }), "has a name of 0 bytes"},
      {"NulInTensorName", tensor([](T& t) { t.name += '\0'; }), "unprintable characters"},
      {"HugeRank", tensor([](T& t) { t.rank = 0xffffffff; }), "has 4294967295 dimensions"},
      {"NoDimensions", shape({}), "has 0 dimensions"},
      {"FiveDimensions", shape({32, 1, 1, 1, 2}), "has 5 dimensions"},
      {"ZeroDimension", shape({32, 0}), "has size 0 in dimension 1"},
      {"NegativeDimension", shape({32, kHuge}), "has size 18446744073709551615 in dimension 1"},
      {"ProductOverflows", shape({kTopBit >> 1, 4}), "in dimension 1"},
      {"ProductWrapsToSmall", shape({k2To32, k2To32, 32}), "in dimension 1"},
      {"BytesOverflow", shape({kTopBit >> 1}, 28), "is too large"},
      {"NotWholeBlocks", shape({33, 2}),
       "rows of 33 elements, not a multiple of the 32 elements of a Q8_0 block"},
      {"NotWholeSuperblocks", shape({32, 8}, 12), "multiple of the 256 elements of a Q4_K block"},
      {"OneRowMore", shape({32, 3}), "needs bytes"},
      {"UnknownType", shape({32}, 77), "type number 77, which is unknown"},
      {"RemovedType", shape({32}, 4), "type number 4, which is unknown"},
      {"HugeType", shape({32}, 0x80000000), "type number 2147483648"},
      {"UnsupportedType", shape({256}, 16), "type IQ2_XXS, which is not supported"},
      {"WiderType", shape({32, 2}, 0), "truncated: tensor \"second.weight\" needs bytes"},
      {"OffsetUnaligned", offset(33), "not a multiple of the alignment 32"},
      {"OffsetBeyondFile", offset(1 << 20), "truncated: tensor \"second.weight\" needs bytes"},
      {"OffsetOverflows", offset(kHuge - 31), "beyond any file"},
      {"OffsetTopBit", offset(kTopBit), "but the file ends at"},
      {"Overlap", offset(0), "overlap"},
  };
}

std::vector<Damage> all_damage() {
  std::vector<Damage> all;
  for (const auto& part : {truncations(), lying_headers(), lying_metadata(), lying_tensors()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

class DamagedGguf : public testing::TestWithParam<Damage> {};

TEST_P(DamagedGguf, IsRefusedWithItsSentence) {
  const MemoryFile file(GetParam().make(GgufImage::small()));
  const auto gguf = GgufFile::open(file.path());
  ASSERT_FALSE(gguf.ok());
  const std::string message = gguf.status().message();
  EXPECT_THAT(message, HasSubstr(GetParam().sentence));
  EXPECT_THAT(message, testing::StartsWith(file.path() + ": "));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Files, DamagedGguf, testing::ValuesIn(all_damage()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(DamagedGgufAnywhere, EveryProperPrefixIsRefused) {
  const std::string bytes = GgufImage::small().bytes();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const MemoryFile file(bytes.substr(0, size));
    EXPECT_FALSE(GgufFile::open(file.path()).ok()) << "cut at " << size;
  }
}

/// Reads everything that a file offers, so that a view outside the file would be touched.
void read_everything(const GgufFile& gguf) {
  for (const auto& [name, line] : gguf.describe_metadata()) {
    (void)gguf.get_uint(name).ok();
    (void)gguf.get_float(name).ok();
    (void)gguf.get_string(name).ok();
    (void)gguf.get_strings(name).ok();
    (void)gguf.get_ints(name).ok();
    (void)gguf.get_ints_or_scalar(name, 2).ok();
  }
  for (const GgufFile::Tensor& tensor : gguf.tensors()) {
    const core::TensorView& view = tensor.view;
    if (!can_dequantize(view.dtype)) continue;
    std::vector<float> row(static_cast<std::size_t>(view.cols()));
    for (std::int64_t r = 0; r < view.rows(); ++r) {
      dequantize_row(view.dtype, view.row(r), view.cols(), row.data());
    }
  }
}

TEST(DamagedGgufAnywhere, RandomChangesNeverCrash) {
  const std::string bytes = GgufImage::small().bytes();
  std::mt19937 random(20);  // the same files in every run
  const auto below = [&](std::size_t n) {
    return static_cast<std::size_t>(random() % n);
  };
  int opened = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string changed = bytes;
    for (std::size_t flips = 1 + below(6); flips > 0; --flips) {
      char& byte = changed[below(changed.size())];
      static constexpr char kBait[] = {0, 1, 0x7f, char(0x80), char(0xff)};
      byte = below(2) == 0 ? static_cast<char>(byte ^ (1 << below(8))) : kBait[below(5)];
    }
    const MemoryFile file(changed);
    const auto gguf = GgufFile::open(file.path());
    if (!gguf.ok()) {
      ASSERT_FALSE(gguf.status().message().empty());
      continue;
    }
    ++opened;
    read_everything(*gguf);
  }
  EXPECT_GT(opened, 1000);  // many changes hit weights or text only
}

}  // namespace
}  // namespace tandem::formats
