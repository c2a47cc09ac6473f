#include "tandem/core/buffer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace tandem::core {
namespace {

bool all_equal(const std::byte* begin, std::size_t n, std::byte value) {
  return std::all_of(begin, begin + n, [=](std::byte b) { return b == value; });
}

TEST(Arena, IsZeroedAndPageAligned) {
  for (const bool huge : {false, true}) {
    auto arena = Arena::reserve(100'000, huge);
    ASSERT_TRUE(arena.ok());
    EXPECT_EQ(arena->size(), 100'000u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena->data()) % 4096, 0u);
    EXPECT_TRUE(all_equal(arena->data(), arena->size(), std::byte{0}));
    std::fill_n(arena->data(), arena->size(), std::byte{7});
    EXPECT_EQ(arena->as<std::uint16_t>()[40'000], 0x0707u);
  }
}

TEST(Arena, OfNothingIsNothing) {
  auto arena = Arena::reserve(0, false);
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(arena->data(), nullptr);
  EXPECT_EQ(arena->size(), 0u);
}

TEST(Arena, ReservesMoreAddressSpaceThanMemory) {
  auto arena = Arena::reserve(std::size_t{1} << 36, false);
  ASSERT_TRUE(arena.ok()) << arena.status().message();
  arena->data()[(std::size_t{1} << 36) - 1] = std::byte{1};
}

TEST(Arena, RefusesTheImpossibleWithASentence) {
  const auto arena = Arena::reserve(std::numeric_limits<std::size_t>::max() / 2, false);
  ASSERT_FALSE(arena.ok());
  EXPECT_EQ(arena.status().code(), Code::kResourceExhausted);
  EXPECT_NE(arena.status().message().find("MiB"), std::string::npos);
}

TEST(Arena, MovesItsMemory) {
  Arena a = Arena::reserve(4096, false).value();
  std::byte* data = a.data();
  data[0] = std::byte{5};
  Arena b = std::move(a);
  EXPECT_EQ(b.data(), data);
  Arena c;
  c = std::move(b);
  EXPECT_EQ(c.data()[0], std::byte{5});
}

}  // namespace
}  // namespace tandem::core
