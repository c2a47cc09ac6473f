// How fast are the matrix products of a step, between the kernels that stand between them?
//   product_chain [e4b|12b|31b] [ROWS...]
// A graph of 40 layers' residual + norm, gate and up, gated product and down, shapes of that model,
// each layer with weights of its own; and one product of a matrix so large that its start and end
// do not count. Prints us a layer, us of the large product, and its rates.

#include <cstring>
#include <map>
#include <string>

#include "common.cuh"
#include "tandem/kernels/cuda/gemm.h"
#include "tandem/kernels/cuda/row_ops.h"

using namespace tandem::kernels::cuda;

namespace {

struct Shape {
  int width, hidden;
};
const std::map<std::string, Shape> kShapes = {
    {"e4b", {2560, 10240}}, {"12b", {3840, 15360}}, {"31b", {5376, 21504}}};
constexpr int kLayers = 40, kLargeOutputs = 20480 * 8;
constexpr int kCtas = 264, kMostRows = 512;

template <typename T>
T take(tandem::core::Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().message().c_str());
    std::exit(1);
  }
  return *std::move(result);
}

__global__ void fill_noise(std::uint32_t* words, std::size_t count, std::uint32_t mask) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    words[i] = hash32(static_cast<std::uint32_t>(i)) & mask;
  }
}

/// Row words of bricks as small numbers, so that no sum leaves fp16's range.
__global__ void shrink_scales(std::uint8_t* bricks, std::size_t count, int bytes, int first) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    auto* words = reinterpret_cast<std::uint32_t*>(bricks + i * bytes);
    for (int j = first / 4; j < bytes / 4; ++j) words[j] = (words[j] & 0x83ff83ffu) | 0x18001800u;
  }
}

/// Bricks of noise, `copies` matrices in a row.
struct Matrices {
  DeviceBuffer memory;
  MatrixView view;
  std::size_t bytes = 0;

  Matrices(BrickKind kind, int rows, int cols, int copies) {
    view = {nullptr, kind, rows, cols};
    bytes = static_cast<std::size_t>(view.tiles()) * view.superblocks() * 2 * brick_bytes(kind);
    memory = take(DeviceBuffer::allocate(bytes * copies));
    fill_noise<<<1024, 256>>>(memory.as<std::uint32_t>(), bytes * copies / 4, 0xffffffffu);
    const int brick = brick_bytes(kind), first = kind == BrickKind::kQ4K ? 9216 : 13312;
    shrink_scales<<<1024, 256>>>(memory.as<std::uint8_t>(), bytes * copies / brick, brick, first);
  }
  MatrixView at(int i) const {
    MatrixView v = view;
    v.bricks = memory.as<std::uint8_t>() + bytes * i;
    return v;
  }
};

struct Input {
  DeviceBuffer data, scale;
  HalfRows rows;
  explicit Input(int cols) {
    data = take(DeviceBuffer::allocate(std::size_t{kMostRows} * cols * 2));
    scale = take(DeviceBuffer::allocate(kMostRows * 4));
    fill_noise<<<64, 256>>>(data.as<std::uint32_t>(), std::size_t{kMostRows / 2} * cols,
                            0x3fff3fffu);
    rows = {data.as<half>(), scale.as<float>(), kMostRows / 8, cols};
  }
};

class Study {
 public:
  Study(BrickKind kind, Shape shape)
      : kind_(kind),
        shape_(shape),
        gate_(kind, shape.hidden, shape.width, 2 * kLayers),
        down_(kind, shape.width, shape.hidden, kLayers),
        large_(kind, kLargeOutputs, shape.width, 1),
        x_(shape.width),
        h_(shape.hidden) {
    CUDA_OK(cudaStreamCreate(&stream_));
    for (int l = 0; l < kLayers; ++l) {
      gates_.push_back(
          take(GemmGroup::create({gate_.at(2 * l), gate_.at(2 * l + 1)}, kCtas, false)));
      downs_.push_back(take(GemmGroup::create({down_.at(l)}, kCtas, false)));
    }
    larges_.push_back(take(GemmGroup::create({large_.at(0)}, kCtas, false)));
    const std::size_t slots = std::max(larges_[0].slots(), gates_[0].slots());
    partials_ = take(DeviceBuffer::allocate(slots * kMostRows * kTileRows * 4));
    down_partials_ = take(DeviceBuffer::allocate(std::size_t{512} * kMostRows * kTileRows * 4));
    residual_ = take(DeviceBuffer::allocate(std::size_t{kMostRows} * shape.width * 4));
    fill_noise<<<64, 256>>>(residual_.as<std::uint32_t>(), std::size_t{kMostRows} * shape.width,
                            0xbfffffffu);  // magnitudes below 2
    broken_ = take(DeviceBuffer::allocate(kMostRows * 4));
    CUDA_OK(cudaDeviceSynchronize());
  }

  void run(int rows) {
    cudaGraph_t captured;
    cudaGraphExec_t graph;
    CUDA_OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    Partials pending;
    for (int l = 0; l < kLayers; ++l) pending = layer(l, rows, pending);
    CUDA_OK(cudaStreamEndCapture(stream_, &captured));
    CUDA_OK(cudaGraphInstantiate(&graph, captured, 0));
    const Stat chain = time_ms(stream_, 9, [&] { CUDA_OK(cudaGraphLaunch(graph, stream_)); });
    const Stat large = time_ms(stream_, 5, [&] {
      larges_[0].run(x_.rows, rows, partials_.as<float>(), kMostRows, stream_);
    });
    const double weights = 3.0 * shape_.width * shape_.hidden,
                 all = double{kLargeOutputs} * shape_.width;
    const double bits = brick_bytes(kind_) * 8.0 / (kBrickRows * kBrickCols);
    std::printf(
        "%s | T %3d | us a layer %6.2f (%.2f .. %.2f) | bytes %5.2f | large %7.1f us, %5.0f GB/s, "
        "%4.0f TFLOP/s, w/clk/SM at 1.98 GHz %5.1f\n",
        kind_ == BrickKind::kQ4K ? "Q4_K" : "Q6_K", rows, chain.median * 1e3 / kLayers,
        chain.min * 1e3 / kLayers, chain.max * 1e3 / kLayers, weights * bits / 8 / 4.5e6,
        large.median * 1e3, all * bits / 8 / large.median / 1e6, 2e-9 * all * rows / large.median,
        all / (large.median * 1.98e6 * 132));
    cudaGraphExecDestroy(graph);
    cudaGraphDestroy(captured);
  }

 private:
  Partials layer(int l, int rows, const Partials& pending) {
    Residual r;
    r.delta = pending;
    residual_norm(r, residual_.as<float>(), rows, shape_.width, 1e-6f, nullptr, x_.rows, nullptr,
                  broken_.as<std::int32_t>(), stream_);
    const Partials p = gates_[l].run(x_.rows, rows, partials_.as<float>(), kMostRows, stream_);
    geglu(p, gates_[l].first_tile(1), rows, shape_.hidden, h_.rows, broken_.as<std::int32_t>(),
          stream_);
    return downs_[l].run(h_.rows, rows, down_partials_.as<float>(), kMostRows, stream_);
  }

  BrickKind kind_;
  Shape shape_;
  Matrices gate_, down_, large_;
  Input x_, h_;
  cudaStream_t stream_ = nullptr;
  std::vector<GemmGroup> gates_, downs_, larges_;
  DeviceBuffer partials_, down_partials_, residual_, broken_;
};

}  // namespace

int main(int argc, char** argv) {
  take(tandem::core::Result<int>(prepare_gemm().ok() ? 0 : 1));
  std::string model = "e4b";
  std::vector<int> counts;
  for (int i = 1; i < argc; ++i) {
    if (kShapes.count(argv[i]) != 0) {
      model = argv[i];
    } else {
      counts.push_back(std::atoi(argv[i]));
    }
  }
  if (counts.empty()) counts = {1, 8, 16, 32, 64, 96, 128, 512};
  for (const BrickKind kind : {BrickKind::kQ4K, BrickKind::kQ6K}) {
    Study study(kind, kShapes.at(model));
    for (const int rows : counts) study.run(rows);
    CUDA_OK(cudaDeviceSynchronize());
  }
}
