#pragma once

// The ring of stages of a matrix product, as those see it who multiply what it holds.

#include <cstdint>

#include "tandem/kernels/cuda/layouts.cuh"
#include "tandem/kernels/cuda/pipeline.cuh"

namespace tandem::kernels::cuda {

/// A place in the ring of stages: the stage, and the parity of its round.
struct RingPlace {
  int stage = 0, parity = 0;
  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// What a warp that multiplies sees of the ring.
struct FilledStages {
  const std::uint8_t* smem;
  std::uint64_t *full, *empty;
  int stages, stage_bytes, unit_bytes;
  RingPlace at = {};
};

/// The next `count` units, all of a kind. A loop for each kind, so that what it needs stays in
/// registers from unit to unit.
template <typename Schedule, BrickKind kKind, int NT>
__device__ void multiply_units(FilledStages& ring, int count, int side, int warp, int lane,
                               float (&acc)[NT][4]) {
#pragma unroll 1
  for (; count > 0; --count) {
    const int s = ring.at.stage;
    mbarrier_wait(&ring.full[s], ring.at.parity);
    const std::uint8_t* stage = ring.smem + s * ring.stage_bytes;
    Schedule::template multiply<kKind, NT>(stage + side * brick_bytes(kKind),
                                           stage + ring.unit_bytes, warp, lane, acc);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&ring.empty[s]);
    ring.at.advance(ring.stages);
  }
}
template <typename Schedule, int NT>
__device__ void multiply_units(BrickKind kind, FilledStages& ring, int count, int side, int warp,
                               int lane, float (&acc)[NT][4]) {
  switch (kind) {
    case BrickKind::kQ4K:
      return multiply_units<Schedule, BrickKind::kQ4K, NT>(ring, count, side, warp, lane, acc);
    case BrickKind::kQ6K:
      return multiply_units<Schedule, BrickKind::kQ6K, NT>(ring, count, side, warp, lane, acc);
    case BrickKind::kQ8:
      return multiply_units<Schedule, BrickKind::kQ8, NT>(ring, count, side, warp, lane, acc);
    case BrickKind::kF8:
      return multiply_units<Schedule, BrickKind::kF8, NT>(ring, count, side, warp, lane, acc);
    case BrickKind::kFp4:
      return multiply_units<Schedule, BrickKind::kFp4, NT>(ring, count, side, warp, lane, acc);
    case BrickKind::kF16:
      return multiply_units<Schedule, BrickKind::kF16, NT>(ring, count, side, warp, lane, acc);
    case BrickKind::kE4m3:  // dense_products.cu
      return;
  }
}

}  // namespace tandem::kernels::cuda
