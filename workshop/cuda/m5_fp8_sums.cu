// M5: what do e4m3 sums of wgmma lose, and after how many instructions must they be added to f32
// sums? And have they the same bits for every N?
//
// One block = 64 outputs x N rows of a long product, both operands rounded to e4m3 as FP8-Dynamic
// does it (a scale each); exact sums on the host.

#include <cuda_fp8.h>

#include <cmath>
#include <random>

#include "common.cuh"
#include "tandem/kernels/cuda/wgmma_dense.cuh"

using namespace tandem::kernels::cuda;

constexpr int kOutputs = 64, kMostRows = 128;

/// `every` instructions of 32 columns are summed by the tensor cores before their sum is added.
template <int N>
__global__ void product(const uint8_t* w, const uint8_t* x, int cols, int every, float* out) {
  __shared__ alignas(128) uint8_t a[kStripBytes], b[kMostRows / 8 * 1024];
  float sums[N / 8][4] = {}, fresh[N / 8][4] = {};
  int pending = 0;
  const auto add = [&] {
    for (int i = 0; i < N / 2; ++i) {
      sums[i / 4][i % 4] += fresh[i / 4][i % 4];
      fresh[i / 4][i % 4] = 0.0f;
    }
    pending = 0;
  };
  for (int k = 0; k < cols; k += kStripCols) {
    __syncthreads();
    for (int i = threadIdx.x; i < kStripBytes; i += blockDim.x) {
      const int row = i / kStripCols, col = i % kStripCols;
      a[strip_at(row, col)] = w[row * cols + k + col];
      for (int r = row; r < N; r += kOutputs) b[strip_at(r, col)] = x[r * cols + k + col];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    for (int i = 0; i < 4; ++i) {
      wgmma_fence();
      WgmmaDense<BrickKind::kE4m3, true, N>::run(fresh, wgmma_descriptor(a + 256 * i, 128, 1024),
                                                 wgmma_descriptor(b + 256 * i, 128, 1024));
      wgmma_commit();
      wgmma_wait<0>();
      if (++pending == every) add();
    }
  }
  add();
  const int lane = threadIdx.x % 32, n = threadIdx.x / 32 * 16 + lane / 4;
  for (int t = 0; t < N / 8; ++t) {
    for (int i = 0; i < 4; ++i) {
      out[(8 * t + 2 * (lane % 4) + i % 2) * kOutputs + n + i / 2 * 8] = sums[t][i];
    }
  }
}

/// `rows` of `cols` codes; with outliers every 97th column is 30 times as large.
std::vector<uint8_t> codes(int rows, int cols, bool has_outliers, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint8_t> out;
  for (int r = 0; r < rows; ++r) {
    std::vector<float> row(cols);
    float largest = 0;
    for (int k = 0; k < cols; ++k) {
      row[k] = normal(random) * (has_outliers && k % 97 == 5 ? 30.0f : 1.0f);
      largest = std::max(largest, std::fabs(row[k]));
    }
    for (const float v : row) {
      out.push_back(__nv_cvt_float_to_fp8(v / (largest / 448), __NV_SATFINITE, __NV_E4M3));
    }
  }
  return out;
}
float value(uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

int main() {
  uint8_t *w, *x;
  float* out;
  CUDA_OK(cudaMalloc(&w, kOutputs * 10240));
  CUDA_OK(cudaMalloc(&x, kMostRows * 10240));
  CUDA_OK(cudaMalloc(&out, kMostRows * kOutputs * sizeof(float)));
  for (const int cols : {2560, 10240}) {
    for (const bool has_outliers : {false, true}) {
      const std::vector<uint8_t> weights = codes(kOutputs, cols, false, 1),
                                 rows = codes(kMostRows, cols, has_outliers, 2);
      CUDA_OK(cudaMemcpy(w, weights.data(), weights.size(), cudaMemcpyHostToDevice));
      CUDA_OK(cudaMemcpy(x, rows.data(), rows.size(), cudaMemcpyHostToDevice));
      std::vector<double> exact(kMostRows * kOutputs);
      for (int i = 0; i < kMostRows * kOutputs; ++i) {
        for (int k = 0; k < cols; ++k) {
          exact[i] += static_cast<double>(value(weights[i % kOutputs * cols + k])) *
                      value(rows[i / kOutputs * cols + k]);
        }
      }
      for (const int every : {1, 2, 4, 8, 1 << 20}) {
        const auto run = [&](auto kernel) {
          std::vector<float> sums(kMostRows * kOutputs);
          kernel<<<1, 128>>>(w, x, cols, every, out);
          CUDA_OK(
              cudaMemcpy(sums.data(), out, sums.size() * sizeof(float), cudaMemcpyDeviceToHost));
          return sums;
        };
        const std::vector<float> sums = run(product<128>);
        double error = 0, size = 0;
        for (std::size_t i = 0; i < sums.size(); ++i) {
          error += (sums[i] - exact[i]) * (sums[i] - exact[i]);
          size += exact[i] * exact[i];
        }
        const auto same = [&](const std::vector<float>& other, int n) {
          return std::equal(other.begin(), other.begin() + n * kOutputs, sums.begin());
        };
        const bool is_same = same(run(product<8>), 8) && same(run(product<16>), 16) &&
                             same(run(product<32>), 32) && same(run(product<64>), 64) &&
                             same(run(product<96>), 96);
        std::printf("K %5d outliers %d added every %4d columns: relative error %.2e, N %s\n", cols,
                    has_outliers, every > 8 ? cols : 32 * every, std::sqrt(error / size),
                    is_same ? "changes no bit" : "CHANGES BITS");
      }
    }
  }
}
