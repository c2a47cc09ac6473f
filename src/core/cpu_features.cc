#include "tandem/core/cpu_features.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "tandem/core/thread_team.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace tandem::core {
namespace {

#if defined(__x86_64__)

// Register states that the operating system saves, Intel SDM volume 1, section 13.3.
constexpr std::uint64_t kStateAvx = 0x6;      // XMM, upper halves of YMM
constexpr std::uint64_t kStateAvx512 = 0xe6;  // and opmasks, upper ZMM, ZMM16..31
constexpr std::uint64_t kStateAmx = 0x60000;  // tile configuration and data

std::uint64_t enabled_states() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

constexpr bool bit(std::uint32_t word, int index) {
  return ((word >> index) & 1u) != 0;
}

std::string brand_string() {
  std::array<std::uint32_t, 12> words = {};
  for (std::uint32_t leaf = 0; leaf < 3; ++leaf) {
    std::uint32_t* w = &words[leaf * 4];
    if (__get_cpuid(0x80000002u + leaf, &w[0], &w[1], &w[2], &w[3]) == 0) return "";
  }
  std::array<char, sizeof words + 1> text = {};
  std::memcpy(text.data(), words.data(), sizeof words);
  std::string brand(text.data());
  const std::size_t first = brand.find_first_not_of(' ');
  const std::size_t last = brand.find_last_not_of(' ');
  return first == std::string::npos ? "" : brand.substr(first, last - first + 1);
}

// Bit positions: Intel SDM volume 2, CPUID leaves 1 and 7.
CpuFeatures detect() {
  CpuFeatures f;
  f.brand = brand_string();
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || !bit(c, 27)) return f;  // no XGETBV: no AVX
  const std::uint64_t states = enabled_states();
  if ((states & kStateAvx) != kStateAvx) return f;
  f.fma = bit(c, 12);
  f.f16c = bit(c, 29);
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return f;
  const std::uint32_t num_subleaves = a;
  f.avx2 = bit(b, 5);
  f.gfni = bit(c, 8);
  f.amx_int8 = bit(d, 24) && bit(d, 25) && (states & kStateAmx) == kStateAmx;
  if ((states & kStateAvx512) == kStateAvx512) {
    f.avx512_base = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);
    f.avx512_vbmi = bit(c, 1);
    f.avx512_vnni = bit(c, 11);
  }
  if (num_subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) {
    f.avx_vnni = bit(a, 4);
    f.avx512_bf16 = f.avx512_base && bit(a, 5);
  }
  return f;
}

#else

CpuFeatures detect() {
  CpuFeatures f;
#if defined(__aarch64__)
  f.neon_dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
  return f;
}

#endif

}  // namespace

std::string_view isa_name(IsaLevel level) {
  switch (level) {
    case IsaLevel::kScalar:
      return "scalar";
    case IsaLevel::kAvx2:
      return "avx2";
    case IsaLevel::kAvx512:
      return "avx512";
    case IsaLevel::kNeon:
      return "neon";
  }
  return "unknown";
}

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

bool has_isa(IsaLevel level) {
  const CpuFeatures& f = cpu_features();
  const bool avx2 = f.avx2 && f.fma && f.f16c;
  switch (level) {
    case IsaLevel::kScalar:
      return true;
    case IsaLevel::kAvx2:
      return avx2;
    case IsaLevel::kAvx512:
      return avx2 && f.avx512_base && f.avx512_vnni;
    case IsaLevel::kNeon:
      return f.neon_dotprod;
  }
  return false;
}

std::string describe_cpu() {
  const CpuFeatures& f = cpu_features();
  std::string line = f.brand.empty() ? "unnamed processor" : f.brand;
  line += ":";
  const auto add = [&line](bool present, std::string_view name) {
    if (present) (line += ' ') += name;
  };
  add(f.avx2, "avx2");
  add(f.fma, "fma");
  add(f.f16c, "f16c");
  add(f.avx512_base, "avx512");
  add(f.avx512_vnni, "vnni");
  add(f.avx512_vbmi, "vbmi");
  add(f.avx512_bf16, "bf16");
  add(f.gfni, "gfni");
  add(f.avx_vnni, "avx-vnni");
  add(f.amx_int8, "amx-int8 (unused)");
  add(f.neon_dotprod, "neon dotprod");
  return line + ", " + std::to_string(usable_cores()) + " cores";
}

}  // namespace tandem::core
