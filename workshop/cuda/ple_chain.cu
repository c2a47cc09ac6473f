// What does the per-layer-embedding block of a layer cost, in one kernel and as five, between the
// products that stand around it? A graph of 42 times `down`, the block and the next layer's q, k
// and v, shapes of E4B in Q4_K, each layer with weights of its own; `none` has residual + norm
// where the block was. Prints us a layer, and whether both ways have the same bits.

#include <cstring>

#include "common.cuh"
#include "tandem/kernels/cuda/gemm.h"
#include "tandem/kernels/cuda/ple_block.h"
#include "tandem/kernels/cuda/row_ops.h"

using namespace tandem::kernels::cuda;

namespace {

constexpr int kWidth = 2560, kHidden = 10240, kPle = 256, kHeads = 3072, kLayers = 42;
constexpr int kCtas = 264, kMostRows = 128;
constexpr float kEps = 1e-6f, kScale = 0.9f;

enum class Way { kNone, kOne, kFive };
const char* const kNames[] = {"none", "one", "five"};

template <typename T>
T take(tandem::core::Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().message().c_str());
    std::exit(1);
  }
  return *std::move(result);
}

__global__ void fill_noise(std::uint32_t* words, std::size_t count, std::uint32_t mask,
                           std::uint32_t bits) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    words[i] = (hash32(static_cast<std::uint32_t>(i)) & mask) | bits;
  }
}

/// Row words of bricks of Q4_K as small numbers, so that no sum leaves fp16's range.
__global__ void shrink_scales(std::uint8_t* bricks, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    auto* words = reinterpret_cast<std::uint32_t*>(bricks + i * brick_bytes(BrickKind::kQ4K));
    for (int j = 9216 / 4; j < brick_bytes(BrickKind::kQ4K) / 4; ++j) {
      words[j] = (words[j] & 0x83ff83ffu) | 0x18001800u;
    }
  }
}

/// Bricks of noise, a matrix for each layer.
struct Matrices {
  DeviceBuffer memory;
  MatrixView view;
  std::size_t bytes = 0;

  Matrices(int rows, int cols) {
    view = {nullptr, BrickKind::kQ4K, rows, cols};
    bytes = std::size_t{2} * view.tiles() * view.superblocks() * brick_bytes(view.kind);
    memory = take(DeviceBuffer::allocate(bytes * kLayers));
    fill_noise<<<1024, 256>>>(memory.as<std::uint32_t>(), bytes * kLayers / 4, 0xffffffffu, 0);
    shrink_scales<<<1024, 256>>>(memory.as<std::uint8_t>(),
                                 bytes * kLayers / brick_bytes(view.kind));
  }
  MatrixView at(int layer) const {
    MatrixView v = view;
    v.bricks = memory.as<std::uint8_t>() + bytes * layer;
    return v;
  }
};

/// Floats of noise, of magnitudes from 1/2 to 2.
DeviceBuffer floats(std::size_t count) {
  DeviceBuffer buffer = take(DeviceBuffer::allocate(count * 4));
  fill_noise<<<64, 256>>>(buffer.as<std::uint32_t>(), count, 0x80ffffffu, 0x3f000000u);
  return buffer;
}

struct Input {
  DeviceBuffer data, scale;
  HalfRows rows;
  explicit Input(int cols) {
    data = take(DeviceBuffer::allocate(std::size_t{kMostRows} * cols * 2));
    scale = floats(kMostRows);
    fill_noise<<<64, 256>>>(data.as<std::uint32_t>(), std::size_t{kMostRows / 2} * cols,
                            0x3fff3fffu, 0);
    rows = {data.as<half>(), scale.as<float>(), kMostRows / 8, cols};
  }
};

class Study {
 public:
  Study()
      : down_(kWidth, kHidden),
        gate_(kPle, kWidth),
        projection_(kWidth, kPle),
        qkv_(kHeads, kWidth),
        h_(kHidden),
        normed_(kWidth),
        plain_x_(kWidth),
        gated_(kPle),
        ple_(floats(std::size_t{kMostRows} * kLayers * kPle)),
        norm_(floats(kWidth)),
        x_(floats(std::size_t{kMostRows} * kWidth)),
        first_x_(floats(std::size_t{kMostRows} * kWidth)) {
    CUDA_OK(cudaStreamCreate(&stream_));
    for (int l = 0; l < kLayers; ++l) {
      downs_.push_back(take(GemmGroup::create({down_.at(l)}, kCtas, false)));
      gates_.push_back(take(GemmGroup::create({gate_.at(l)}, kCtas, false)));
      projections_.push_back(take(GemmGroup::create({projection_.at(l)}, kCtas, false)));
      qkvs_.push_back(take(GemmGroup::create({qkv_.at(l)}, kCtas, false)));
    }
    for (DeviceBuffer& p : partials_) {
      p = take(DeviceBuffer::allocate(std::size_t{512} * kMostRows * kTileRows * 4));
    }
    broken_ = take(DeviceBuffer::allocate(kMostRows * 4));
    std::printf("one kernel takes %d rows\n", ple_block_rows(gate_.at(0), projection_.at(0)));
    CUDA_OK(cudaDeviceSynchronize());
  }

  void run(int rows) {
    std::vector<std::uint8_t> bits[3];
    std::printf("rows %3d |", rows);
    for (const Way way : {Way::kNone, Way::kOne, Way::kFive}) {
      cudaGraph_t captured;
      cudaGraphExec_t graph;
      CUDA_OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
      for (int l = 0; l < kLayers; ++l) layer(l, rows, way);
      CUDA_OK(cudaStreamEndCapture(stream_, &captured));
      CUDA_OK(cudaGraphInstantiate(&graph, captured, 0));
      const Stat chain = time_ms(stream_, 15, [&] { CUDA_OK(cudaGraphLaunch(graph, stream_)); });
      std::printf(" %s %6.2f (%.2f .. %.2f)", kNames[static_cast<int>(way)],
                  chain.median * 1e3 / kLayers, chain.min * 1e3 / kLayers,
                  chain.max * 1e3 / kLayers);
      bits[static_cast<int>(way)] = one_pass(graph, rows);
      cudaGraphExecDestroy(graph);
      cudaGraphDestroy(captured);
    }
    std::printf(" | %s\n", bits[1] == bits[2] ? "same bits" : "OTHER BITS");
  }

 private:
  /// x and the normed rows after all layers.
  std::vector<std::uint8_t> one_pass(cudaGraphExec_t graph, int rows) {
    const std::size_t bytes = std::size_t{kMostRows} * kWidth * 4;
    std::vector<std::uint8_t> out(bytes + bytes / 2);
    CUDA_OK(cudaMemcpy(x_.as<float>(), first_x_.as<float>(), bytes, cudaMemcpyDeviceToDevice));
    CUDA_OK(cudaMemset(normed_.rows.data, 0, bytes / 2));
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaGraphLaunch(graph, stream_));
    CUDA_OK(cudaStreamSynchronize(stream_));
    CUDA_OK(cudaMemcpy(out.data(), x_.as<float>(), bytes, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(out.data() + bytes, normed_.rows.data, bytes / 2, cudaMemcpyDeviceToHost));
    std::memset(out.data() + std::size_t(rows) * kWidth * 4, 0,
                bytes - std::size_t(rows) * kWidth * 4);
    for (std::size_t i = 0; i < bytes / 4; ++i) {
      if (i % 64 / 8 + i / 2048 % (kMostRows / 8) * 8 >= static_cast<std::size_t>(rows)) {
        out[bytes + 2 * i] = out[bytes + 2 * i + 1] = 0;
      }
    }
    return out;
  }

  void layer(int l, int rows, Way way) {
    auto* broken = broken_.as<std::int32_t>();
    float* x = x_.as<float>();
    const float* ple = ple_.as<float>() + l * kPle;
    const auto product = [&](const GemmGroup& g, const HalfRows& in, int to) {
      return g.run(in, rows, partials_[to].as<float>(), kMostRows, stream_);
    };
    Residual r;
    r.delta = product(downs_[l], h_.rows, 0);
    r.post_norm = norm_.as<float>();
    r.scale = kScale;
    const float* norm = norm_.as<float>();
    if (way == Way::kNone) {
      residual_norm(r, x, rows, kWidth, kEps, norm, normed_.rows, nullptr, broken, stream_);
    } else if (way == Way::kOne) {
      const PleBlock block = {r, gate_.at(l), projection_.at(l), ple, kLayers * kPle, norm, kScale};
      ple_block(block, x, rows, kWidth, kEps, norm, normed_.rows, nullptr, broken, stream_);
    } else {
      residual_norm(r, x, rows, kWidth, kEps, nullptr, plain_x_.rows, nullptr, broken, stream_);
      const Partials gate = product(gates_[l], plain_x_.rows, 1);
      gated_ple(gate, ple, kLayers * kPle, rows, kPle, gated_.rows, broken, stream_);
      r.delta = product(projections_[l], gated_.rows, 2);
      residual_norm(r, x, rows, kWidth, kEps, norm, normed_.rows, nullptr, broken, stream_);
    }
    product(qkvs_[l], normed_.rows, 1);
    CUDA_OK(cudaGetLastError());
  }

  Matrices down_, gate_, projection_, qkv_;
  Input h_, normed_, plain_x_, gated_;
  cudaStream_t stream_ = nullptr;
  std::vector<GemmGroup> downs_, gates_, projections_, qkvs_;
  DeviceBuffer partials_[3], ple_, norm_, x_, first_x_, broken_;
};

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IONBF, 0);
  take(tandem::core::Result<int>(prepare_gemm().ok() ? 0 : 1));
  Study study;
  if (argc > 1) {
    for (int i = 1; i < argc; ++i) study.run(std::atoi(argv[i]));
  } else {
    for (const int rows : {1, 8, 16, 32, 48, 64, 96, 128}) study.run(rows);
  }
  CUDA_OK(cudaDeviceSynchronize());
}
