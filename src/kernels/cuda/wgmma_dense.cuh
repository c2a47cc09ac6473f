#pragma once

// wgmma m64nN of plain values, both operands from shared memory, K-major, without swizzle: an
// instruction takes 32 bytes of K, 32 e4m3 codes or 16 fp16 values. The text is mechanical.

#include <cstdint>

#include "tandem/kernels/cuda/layouts.cuh"
#include "tandem/kernels/cuda/wgmma.cuh"

namespace tandem::kernels::cuda {

/// d = a x b, with kAdd d += a x b: 64 outputs x N rows. Descriptors: wgmma_descriptor(). A warp
/// has 16 outputs; its sums lie as those of mma.sync m16n8k16, eight rows after eight.
template <BrickKind kKind, bool kAdd, int N>
struct WgmmaDense;

// The sums of eight rows, as operands and in the text.
#define TANDEM_SUMS(t) "+f"(d[t][0]), "+f"(d[t][1]), "+f"(d[t][2]), "+f"(d[t][3])
#define TANDEM_SUMS_16 TANDEM_SUMS(0), TANDEM_SUMS(1)
#define TANDEM_SUMS_32 TANDEM_SUMS_16, TANDEM_SUMS(2), TANDEM_SUMS(3)
#define TANDEM_SUMS_64 \
  TANDEM_SUMS_32, TANDEM_SUMS(4), TANDEM_SUMS(5), TANDEM_SUMS(6), TANDEM_SUMS(7)
#define TANDEM_SUMS_96 \
  TANDEM_SUMS_64, TANDEM_SUMS(8), TANDEM_SUMS(9), TANDEM_SUMS(10), TANDEM_SUMS(11)
#define TANDEM_SUMS_128 \
  TANDEM_SUMS_96, TANDEM_SUMS(12), TANDEM_SUMS(13), TANDEM_SUMS(14), TANDEM_SUMS(15)
#define TANDEM_TEXT_8 "%0, %1, %2, %3"
#define TANDEM_TEXT_16 TANDEM_TEXT_8 ", %4, %5, %6, %7"
#define TANDEM_TEXT_32 TANDEM_TEXT_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TANDEM_TEXT_64                             \
  TANDEM_TEXT_32                                   \
      ", %16, %17, %18, %19, %20, %21, %22, %23, " \
      "%24, %25, %26, %27, %28, %29, %30, %31"
#define TANDEM_TEXT_96                             \
  TANDEM_TEXT_64                                   \
      ", %32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47"
#define TANDEM_TEXT_128                            \
  TANDEM_TEXT_96                                   \
      ", %48, %49, %50, %51, %52, %53, %54, %55, " \
      "%56, %57, %58, %59, %60, %61, %62, %63"

// `a`, `b` and `add`: the operands' numbers in the text, which follow the sums'.
#define TANDEM_WGMMA(rows, text, sums, a, b, add)                                                 \
  template <BrickKind kKind, bool kAdd>                                                           \
  struct WgmmaDense<kKind, kAdd, rows> {                                                          \
    __device__ static void run(float (&d)[rows / 8][4], std::uint64_t a_at, std::uint64_t b_at) { \
      if constexpr (kKind == BrickKind::kE4m3) {                                                  \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #rows "k32.f32.e4m3.e4m3 {" text         \
                     "}, %" #a ", %" #b ", %" #add ", 1, 1;"                                      \
                     : sums                                                                       \
                     : "l"(a_at), "l"(b_at), "n"(kAdd ? 1 : 0));                                  \
      } else {                                                                                    \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #rows "k16.f32.f16.f16 {" text "}, %" #a \
                     ", %" #b ", %" #add ", 1, 1, 0, 0;"                                          \
                     : sums                                                                       \
                     : "l"(a_at), "l"(b_at), "n"(kAdd ? 1 : 0));                                  \
      }                                                                                           \
    }                                                                                             \
  };
TANDEM_WGMMA(8, TANDEM_TEXT_8, TANDEM_SUMS(0), 4, 5, 6)
TANDEM_WGMMA(16, TANDEM_TEXT_16, TANDEM_SUMS_16, 8, 9, 10)
TANDEM_WGMMA(32, TANDEM_TEXT_32, TANDEM_SUMS_32, 16, 17, 18)
TANDEM_WGMMA(64, TANDEM_TEXT_64, TANDEM_SUMS_64, 32, 33, 34)
TANDEM_WGMMA(96, TANDEM_TEXT_96, TANDEM_SUMS_96, 48, 49, 50)
TANDEM_WGMMA(128, TANDEM_TEXT_128, TANDEM_SUMS_128, 64, 65, 66)

#undef TANDEM_WGMMA
#undef TANDEM_SUMS
#undef TANDEM_SUMS_16
#undef TANDEM_SUMS_32
#undef TANDEM_SUMS_64
#undef TANDEM_SUMS_96
#undef TANDEM_SUMS_128
#undef TANDEM_TEXT_8
#undef TANDEM_TEXT_16
#undef TANDEM_TEXT_32
#undef TANDEM_TEXT_64
#undef TANDEM_TEXT_96
#undef TANDEM_TEXT_128

}  // namespace tandem::kernels::cuda
