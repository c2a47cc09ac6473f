#include "tandem/core/cpu_features.h"

#include <gtest/gtest.h>

namespace tandem::core {
namespace {

TEST(CpuFeatures, ScalarIsAlwaysThere) {
  EXPECT_TRUE(has_isa(IsaLevel::kScalar));
}

TEST(CpuFeatures, Avx512ImpliesAvx2) {
  EXPECT_TRUE(has_isa(IsaLevel::kAvx2) || !has_isa(IsaLevel::kAvx512));
  EXPECT_FALSE(has_isa(IsaLevel::kAvx2) && has_isa(IsaLevel::kNeon));
}

#if defined(__x86_64__)
TEST(CpuFeatures, AgreesWithTheCompilersDetection) {
  EXPECT_EQ(cpu_features().avx2, __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(cpu_features().fma, __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ(cpu_features().avx512_vnni, __builtin_cpu_supports("avx512vnni") != 0);
  EXPECT_EQ(cpu_features().avx512_vbmi, __builtin_cpu_supports("avx512vbmi") != 0);
}
#endif

TEST(CpuFeatures, DescribesItselfInOneLine) {
  const std::string line = describe_cpu();
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_NE(line.find("cores"), std::string::npos);
  EXPECT_EQ(line.find("vnni") != std::string::npos,
            cpu_features().avx512_vnni || cpu_features().avx_vnni);
}

}  // namespace
}  // namespace tandem::core
