#pragma once

// Bulk copies into shared memory and the barriers that announce them (PTX ISA, cp.async.bulk and
// mbarrier; sm_90 and later).

#include <cstdint>

namespace tandem::kernels::cuda {

__device__ inline std::uint32_t smem_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
__device__ inline void mbarrier_init(std::uint64_t* bar, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_address(bar)), "r"(count));
}
__device__ inline void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void mbarrier_expect(std::uint64_t* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(smem_address(bar)),
               "r"(bytes)
               : "memory");
}
__device__ inline void mbarrier_arrive(std::uint64_t* bar) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(smem_address(bar)) : "memory");
}
__device__ inline void mbarrier_wait(std::uint64_t* bar, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra DONE;\n"
      "bra WAIT;\nDONE:\n}" ::"r"(smem_address(bar)),
      "r"(parity)
      : "memory");
}
/// Source and destination 16-byte aligned, bytes a multiple of 16.
__device__ inline void bulk_copy(void* dst, const void* src, int bytes, std::uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(smem_address(dst)),
      "l"(src), "r"(bytes), "r"(smem_address(bar))
      : "memory");
}

}  // namespace tandem::kernels::cuda
