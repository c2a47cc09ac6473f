// Study of the decode GEMM: y[t][n] = sum_k W[n][k] x[t][k], W in Q4_K bricks, x in fp16, T = 1..64
// rows.
//
// Brick: 64 outputs x 256 K, in m16n8k16 A-fragment order, 9,472 bytes. A CTA works on 128 outputs
// (two bricks side by side, four warps each), so that both share the activations; a ninth warp
// streams bricks and activations into a ring of stages with bulk copies. Stream-K with frozen cuts:
// the (tile, superblock) units of a weight are dealt to C CTAs in equal contiguous runs. C and so
// the cuts depend on the shape only, never on T; partial sums are added in ascending K. Activations
// lie in B-fragment order, so a lane's fragment of two k-steps is one 16-byte load.

#include <cmath>
#include <cstring>

#include "common.cuh"

constexpr int kBrickBytes = 9472;
constexpr int kCodeBytes = 8192, kScaleBytes = 1024;
constexpr int kTileRows = 128;
constexpr int kMathThreads = 256;

struct Gemm {
  const uint8_t* bricks;  // [tile][superblock][2] bricks
  const uint4* x;         // [superblock][n tile of 8 rows][8 k-step pairs][32 lanes]
  float* partials;        // [slot][T][128]
  int tiles, superblocks, ctas, n_tiles;  // n_tiles: allocated row tiles of x
};

__device__ inline half2 as_half2(uint32_t v) {
  return *reinterpret_cast<half2*>(&v);
}
__device__ inline uint32_t as_u32(half2 v) {
  return *reinterpret_cast<uint32_t*>(&v);
}

// Scales of one row: 8 groups of s = d * sc and -m = -dmin * mn.
struct RowScales {
  half2 s[4], m[4];  // two groups each
  __device__ void load(const uint8_t* brick, int row) {
    const uint4 raw = *reinterpret_cast<const uint4*>(brick + kCodeBytes + 16 * row);
    const half2 d = *reinterpret_cast<const half2*>(brick + kCodeBytes + kScaleBytes + 4 * row);
    const half2 scale = __low2half2(d), offset = __hneg2(__high2half2(d));
    const half2 bias = __float2half2_rn(1024.0f);
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t selector = i % 2 ? 0x4342 : 0x4140;
      s[i] =
          __hmul2(__hsub2(as_half2(__byte_perm(words[i / 2], 0x64646464, selector)), bias), scale);
      m[i] = __hmul2(__hsub2(as_half2(__byte_perm(words[2 + i / 2], 0x64646464, selector)), bias),
                     offset);
    }
  }
  __device__ half2 scale(int g) const {
    return g % 2 ? __high2half2(s[g / 2]) : __low2half2(s[g / 2]);
  }
  __device__ half2 offset(int g) const {
    return g % 2 ? __high2half2(m[g / 2]) : __low2half2(m[g / 2]);
  }
};

__device__ inline void expand(uint32_t w, half2 s0, half2 m0, half2 s1, half2 m1,
                              uint32_t (&a)[4]) {
  const half2 bias = __float2half2_rn(-1024.0f), sixteenth = __float2half2_rn(0.0625f);
  const half2 high_bias = __float2half2_rn(-64.0f);
  const uint32_t v = w >> 8;
  const half2 q0 = __hadd2(as_half2((w & 0x000f000fu) | 0x64006400u), bias);
  const half2 q1 = __hfma2(as_half2((w & 0x00f000f0u) | 0x64006400u), sixteenth, high_bias);
  const half2 q2 = __hadd2(as_half2((v & 0x000f000fu) | 0x64006400u), bias);
  const half2 q3 = __hfma2(as_half2((v & 0x00f000f0u) | 0x64006400u), sixteenth, high_bias);
  a[0] = as_u32(__hfma2(q0, s0, m0));
  a[1] = as_u32(__hfma2(q1, s1, m1));
  a[2] = as_u32(__hfma2(q2, s0, m0));
  a[3] = as_u32(__hfma2(q3, s1, m1));
}

template <int NT, int kStages>
__global__ void __launch_bounds__(kMathThreads + 32, 2) gemm(Gemm g, int rows) {
  constexpr int kXBytes = NT * 4096;
  constexpr int kStageBytes = 2 * kBrickBytes + kXBytes;
  extern __shared__ __align__(128) uint8_t smem[];
  __shared__ uint64_t full[kStages], empty[kStages];
  const int first_tile8 = blockIdx.y * NT;
  const int units = g.tiles * g.superblocks;
  const int begin = static_cast<int>(static_cast<long long>(units) * blockIdx.x / g.ctas);
  const int end = static_cast<int>(static_cast<long long>(units) * (blockIdx.x + 1) / g.ctas);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&full[i], 1);
      mbarrier_init(&empty[i], kMathThreads / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= kMathThreads) {
    if (threadIdx.x == kMathThreads) {
      for (int u = begin; u < end; ++u) {
        const int i = u - begin, s = i % kStages;
        if (i >= kStages) mbarrier_wait(&empty[s], (i / kStages - 1) & 1);
        uint8_t* stage = smem + s * kStageBytes;
        mbarrier_expect(&full[s], kStageBytes);
        bulk_copy(stage, g.bricks + static_cast<size_t>(u) * 2 * kBrickBytes, 2 * kBrickBytes,
                  &full[s]);
        const int sb = u % g.superblocks;
        bulk_copy(stage + 2 * kBrickBytes,
                  g.x + (static_cast<size_t>(sb) * g.n_tiles + first_tile8) * 256, kXBytes,
                  &full[s]);
      }
    }
    return;
  }
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, half_tile = threadIdx.x / 128;
  float acc[NT][4] = {};
  for (int u = begin; u < end; ++u) {
    const int i = u - begin, s = i % kStages;
    mbarrier_wait(&full[s], (i / kStages) & 1);
    const uint8_t* brick = smem + s * kStageBytes + half_tile * kBrickBytes;
    const uint4* x =
        reinterpret_cast<const uint4*>(smem + s * kStageBytes + 2 * kBrickBytes) + lane;
    RowScales r0, r1;
    r0.load(brick, 16 * warp + lane / 4);
    r1.load(brick, 16 * warp + lane / 4 + 8);
    const uint4* codes = reinterpret_cast<const uint4*>(brick) + warp * 128 + lane;
#pragma unroll
    for (int quad = 0; quad < 4; ++quad) {
      const uint4 word = codes[32 * quad];
      const uint32_t words[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const int group = 2 * quad + pair;
        const half2 s0 = r0.scale(group), m0 = r0.offset(group), s1 = r1.scale(group),
                    m1 = r1.offset(group);
        uint32_t a[4], b[4];
        expand(words[2 * pair], s0, m0, s1, m1, a);
        expand(words[2 * pair + 1], s0, m0, s1, m1, b);
#pragma unroll
        for (int t = 0; t < NT; ++t) {
          const uint4 v = x[(t * 8 + group) * 32];
          const uint32_t low[2] = {v.x, v.y}, high[2] = {v.z, v.w};
          mma_m16n8k16(acc[t], a, low);
          mma_m16n8k16(acc[t], b, high);
        }
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&empty[s]);
    if ((u + 1) % g.superblocks == 0 || u + 1 == end) {
      const int tile = u / g.superblocks;
      float* out = g.partials + static_cast<size_t>(blockIdx.x + tile) * g.n_tiles * 8 * kTileRows;
      const int n = 64 * half_tile + 16 * warp + lane / 4;
#pragma unroll
      for (int t = 0; t < NT; ++t) {
        const int row = (first_tile8 + t) * 8 + 2 * (lane % 4);
        out[row * kTileRows + n] = acc[t][0];
        out[(row + 1) * kTileRows + n] = acc[t][1];
        out[row * kTileRows + n + 8] = acc[t][2];
        out[(row + 1) * kTileRows + n + 8] = acc[t][3];
        acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0;
      }
    }
  }
}

// Adds the partial sums of each output in ascending K.
__global__ void reduce(Gemm g, int rows, float* y) {
  const int n = blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
  const int tile = n / kTileRows, units = g.tiles * g.superblocks;
  const auto owner = [&](long long u) {  // the CTA that runs unit u
    return static_cast<int>(((u + 1) * g.ctas - 1) / units);
  };
  const int first = owner(static_cast<long long>(tile) * g.superblocks);
  const int last = owner(static_cast<long long>(tile + 1) * g.superblocks - 1);
  float sum = 0;
  for (int c = first; c <= last; ++c) {
    sum +=
        g.partials[(static_cast<size_t>(c + tile) * g.n_tiles * 8 + t) * kTileRows + n % kTileRows];
  }
  y[static_cast<size_t>(t) * g.tiles * kTileRows + n] = sum;
}

// ---- host side
// ------------------------------------------------------------------------------------

struct Block {  // a Q4_K superblock, unpacked
  half d, dmin;
  uint8_t sc[8], mn[8], q[256];
};

Block random_block(uint32_t seed) {
  Block b;
  b.d = __float2half(0.001f + 0.0001f * static_cast<float>(hash32(seed) % 64));
  b.dmin = __float2half(0.004f + 0.0002f * static_cast<float>(hash32(seed + 1) % 64));
  for (int i = 0; i < 8; ++i) {
    b.sc[i] = hash32(seed * 31 + i) & 63;
    b.mn[i] = hash32(seed * 37 + i) & 63;
  }
  for (int i = 0; i < 256; ++i) b.q[i] = hash32(seed * 257 + i) & 15;
  return b;
}

void pack(const std::vector<Block>& blocks, int superblocks, int brick_row, int sb, uint8_t* out) {
  std::memset(out, 0, kBrickBytes);
  for (int row = 0; row < 64; ++row) {
    const Block& b = blocks[static_cast<size_t>(brick_row * 64 + row) * superblocks + sb];
    for (int g = 0; g < 8; ++g) {
      out[kCodeBytes + 16 * row + g] = b.sc[g];
      out[kCodeBytes + 16 * row + 8 + g] = b.mn[g];
    }
    std::memcpy(out + kCodeBytes + kScaleBytes + 4 * row, &b.d, 2);
    std::memcpy(out + kCodeBytes + kScaleBytes + 4 * row + 2, &b.dmin, 2);
    for (int k = 0; k < 256; ++k) {
      const int step = k / 16, j = k % 16, warp = row / 16, r = row % 16;
      const int lane = (r % 8) * 4 + j % 8 / 2;
      const int nibble = (j / 8) * 2 + r / 8 + 4 * (j % 2);
      const size_t word = ((warp * 4 + step / 4) * 32 + lane) * 4 + step % 4;
      out[word * 4 + nibble / 2] |= static_cast<uint8_t>(b.q[k] << (nibble % 2 * 4));
    }
  }
}

template <int NT, int kStages>
void launch(const Gemm& g, int rows, float* y, cudaStream_t stream) {
  constexpr int smem = kStages * (2 * kBrickBytes + NT * 4096);
  static const bool once = [] {
    CUDA_OK(
        cudaFuncSetAttribute(gemm<NT, kStages>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
    return true;
  }();
  (void)once;
  gemm<NT, kStages>
      <<<dim3(g.ctas, (rows + NT * 8 - 1) / (NT * 8)), kMathThreads + 32, smem, stream>>>(g, rows);
  if (y != nullptr) reduce<<<dim3(g.tiles, rows), kTileRows, 0, stream>>>(g, rows, y);
}

void run(int rows, const Gemm& g, float* y) {
  if (rows <= 8) return launch<1, 4>(g, rows, y, nullptr);
  if (rows <= 16) return launch<2, 4>(g, rows, y, nullptr);
  if (rows <= 32) return launch<4, 3>(g, rows, y, nullptr);
  launch<8, 2>(g, rows, y, nullptr);
}

void study(const char* name, int n, int k) {
  const int sbs = k / 256, tiles = n / kTileRows, copies = std::max(1, (200 << 20) / (n * k / 2));
  std::vector<Block> blocks(static_cast<size_t>(n) * sbs);
  for (size_t i = 0; i < blocks.size(); ++i)
    blocks[i] = random_block(static_cast<uint32_t>(i) * 7919u + 13u);
  const size_t bytes = static_cast<size_t>(tiles) * sbs * 2 * kBrickBytes;
  std::vector<uint8_t> packed(bytes);
  for (int tile = 0; tile < tiles; ++tile) {
    for (int sb = 0; sb < sbs; ++sb) {
      for (int h = 0; h < 2; ++h) {
        pack(blocks, sbs, 2 * tile + h, sb,
             &packed[((static_cast<size_t>(tile) * sbs + sb) * 2 + h) * kBrickBytes]);
      }
    }
  }
  constexpr int kMaxRows = 128, kTiles8 = kMaxRows / 8;
  std::vector<float> x(static_cast<size_t>(kMaxRows) * k);
  std::vector<half> xb(x.size());
  for (int t = 0; t < kMaxRows; ++t) {
    for (int c = 0; c < k; ++c) {
      const half h = __float2half(
          static_cast<float>(static_cast<int>(hash32(t * 100003u + c) & 4095) - 2048) / 1024.0f);
      x[static_cast<size_t>(t) * k + c] = __half2float(h);
      const int j = c % 16, step = c % 256 / 16, lane = t % 8 * 4 + j % 8 / 2;
      const size_t at =
          ((static_cast<size_t>(c / 256) * kTiles8 + t / 8) * 8 + step / 2) * 32 + lane;
      xb[at * 8 + step % 2 * 4 + j / 8 * 2 + j % 2] = h;
    }
  }
  Gemm g{};
  g.tiles = tiles, g.superblocks = sbs, g.n_tiles = kTiles8;
  g.ctas = std::min(264, tiles * sbs);
  uint8_t* bricks;
  half* dx;
  float* y;
  CUDA_OK(cudaMalloc(&bricks, bytes * copies));
  CUDA_OK(cudaMalloc(&dx, xb.size() * 2));
  CUDA_OK(cudaMalloc(&g.partials, static_cast<size_t>(g.ctas + tiles) * kMaxRows * kTileRows * 4));
  CUDA_OK(cudaMalloc(&y, static_cast<size_t>(kMaxRows) * n * 4));
  for (int c = 0; c < copies; ++c)
    CUDA_OK(cudaMemcpy(bricks + c * bytes, packed.data(), bytes, cudaMemcpyHostToDevice));
  CUDA_OK(cudaMemcpy(dx, xb.data(), xb.size() * 2, cudaMemcpyHostToDevice));
  g.x = reinterpret_cast<const uint4*>(dx);
  std::vector<float> one(static_cast<size_t>(kMaxRows) * n), all(one.size());
  for (int rows : {1, 8, 16, 32, 64, 128}) {
    g.bricks = bricks;
    CUDA_OK(cudaMemset(y, 0xff, all.size() * 4));
    run(rows, g, y);
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaMemcpy(all.data(), y, static_cast<size_t>(rows) * n * 4, cudaMemcpyDeviceToHost));
    if (rows == 1) one = all;
    const bool same = std::memcmp(one.data(), all.data(), static_cast<size_t>(n) * 4) == 0;
    double error = 0, norm = 0;
    for (int sample = 0; sample < 200; ++sample) {
      const int t = static_cast<int>(hash32(sample) % rows),
                o = static_cast<int>(hash32(sample + 999) % n);
      double want = 0;
      for (int c = 0; c < k; ++c) {
        const Block& b = blocks[static_cast<size_t>(o) * sbs + c / 256];
        const int q = b.q[c % 256], grp = c % 256 / 32;
        want += (static_cast<double>(__half2float(b.d)) * b.sc[grp] * q -
                 static_cast<double>(__half2float(b.dmin)) * b.mn[grp]) *
                x[static_cast<size_t>(t) * k + c];
      }
      const double got = all[static_cast<size_t>(t) * n + o];
      error += (got - want) * (got - want);
      norm += want * want;
    }
    const Stat with = time_ms(nullptr, 7, [&] {
      for (int c = 0; c < copies; ++c) {
        g.bricks = bricks + c * bytes;
        run(rows, g, nullptr);
      }
    });
    const double us = with.median * 1e3 / copies;
    std::printf(
        "GEMM | %-9s | %5d x %5d | T %3d | %7.2f us | %5.0f GB/s | %5.0f TFLOP/s | rel error %.1e "
        "| row 0 same bits as T 1: %s\n",
        name, n, k, rows, us, static_cast<double>(n) * k * 0.5625 / us / 1e3,
        2e-6 * n * k * rows / us, std::sqrt(error / norm), same ? "yes" : "NO");
  }
  CUDA_OK(cudaFree(bricks));
  CUDA_OK(cudaFree(dx));
  CUDA_OK(cudaFree(g.partials));
  CUDA_OK(cudaFree(y));
}

int main() {
  study("qkv S", 3072, 2560);
  study("out S", 2560, 2048);
  study("gate+up", 20480, 2560);
  study("down", 2560, 10240);
  study("ple gate", 256, 2560);
  study("ple proj", 2560, 256);
}
