#pragma once

// Blocks of a cluster: where they are, what they wait for, and each other's shared memory (PTX ISA,
// barrier.cluster and mapa; sm_90 and later).

#include <cstdint>

#include "tandem/kernels/cuda/layouts.cuh"
#include "tandem/kernels/cuda/pipeline.cuh"

namespace tandem::kernels::cuda {

/// Waits until every block of the cluster runs and has its barriers (fence_barrier_init()). Of
/// other stores it says nothing: where it did, it would wait for a fence of the whole device.
__device__ inline void cluster_begin() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Waits for every thread of the cluster. Dear: it waits for stores that are under way, too.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// The address of `local`, a place in this block's shared memory, in that of block `rank`.
__device__ inline std::uint32_t remote_address(const void* local, int rank) {
  std::uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(smem_address(local)), "r"(rank));
  return address;
}
/// Stores 4 or 8 bytes in another block's shared memory and counts them at its barrier, which
/// stands for them: the receiver needs no other.
__device__ inline void send(std::uint32_t to, std::uint32_t barrier, half2 v) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
      "r"(as_bits(v)), "r"(barrier)
      : "memory");
}
__device__ inline void send(std::uint32_t to, std::uint32_t barrier, float a, float b) {
  const std::uint64_t v = static_cast<std::uint64_t>(__float_as_uint(b)) << 32 | __float_as_uint(a);
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to), "l"(v),
      "r"(barrier)
      : "memory");
}
__device__ inline void send(std::uint32_t to, std::uint32_t barrier, uint2 v) {
  send(to, barrier, __uint_as_float(v.x), __uint_as_float(v.y));
}
/// Counts at a barrier of another block. It says nothing of other stores.
__device__ inline void arrive_at(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// A bulk_copy() to the same place in the blocks of `mask`, at whose own barriers it counts.
__device__ inline void bulk_copy_to(int mask, void* dst, const void* src, int bytes,
                                    std::uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1], %2, [%3], %4;" ::"r"(smem_address(dst)),
      "l"(src), "r"(bytes), "r"(smem_address(bar)), "h"(static_cast<std::uint16_t>(mask))
      : "memory");
}
/// Waits for the first round of a barrier that other blocks send to.
__device__ inline void wait_for_messages(std::uint64_t* barrier) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\n@p bra DONE;\n"
      "bra WAIT;\nDONE:\n}" ::"r"(smem_address(barrier))
      : "memory");
}

}  // namespace tandem::kernels::cuda
