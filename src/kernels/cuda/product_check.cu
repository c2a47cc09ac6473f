#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "tandem/core/half.h"
#include "tandem/formats/dequantize.h"
#include "tandem/kernels/cuda/launch.cuh"
#include "tandem/kernels/cuda/product_check.h"

namespace tandem::kernels::cuda {
namespace {

constexpr int kOutputs = 48;  // of a matrix that are compared
constexpr std::array<int, 6> kRowCounts = {1, 12, 24, 40, 80, 100};  // a schedule each
constexpr std::array<int, 2> kCheckedRows = {0, 9};                  // of them
constexpr int kMostOutputs = 16384;  // bounds the workspace; tiles are alike
constexpr double kTolerance = 1e-2;  // fp16 weights and sums are off by 3e-4

/// Values that fp16 and e4m3 hold exactly, so that no rounding of inputs matters.
float input(int row, int k) {
  const std::uint32_t mixed =
      static_cast<std::uint32_t>(row * 7919 + k) * 2654435761U + static_cast<std::uint32_t>(k);
  return static_cast<float>(static_cast<int>(mixed >> 16) % 15 - 7) * 0.25F;
}

int output_at(int i, int rows) {
  return static_cast<int>(static_cast<std::int64_t>(i) * (rows - 1) / (kOutputs - 1));
}

__global__ void outputs_kernel(Partials p, const std::int32_t* outputs, float* out) {
  after_previous();
  const int n = outputs[threadIdx.x], row = blockIdx.x;
  const float4 sums = sum_parts(p, row, n / kTileRows, n % kTileRows / 4 * 4);
  const float values[4] = {sums.x, sums.y, sums.z, sums.w};
  out[row * kOutputs + threadIdx.x] = values[n % 4];
}

/// The first rows' checked outputs under one number of rows.
class Checker {
 public:
  static core::Result<Checker> create(const MatrixView& matrix, int num_ctas);
  core::Result<std::vector<float>> run(int rows, cudaStream_t stream) const;

 private:
  int rows_ = 0;  // allocated
  GemmGroup group_;
  DeviceBuffer x_, scales_, partials_, outputs_, values_;
  HalfRows input_;
};

core::Result<Checker> Checker::create(const MatrixView& matrix, int num_ctas) {
  Checker c;
  c.rows_ = (kRowCounts.back() + kRowBlock - 1) / kRowBlock * kRowBlock;
  TANDEM_ASSIGN(c.group_, GemmGroup::create({matrix}, num_ctas, false));
  std::vector<std::uint16_t> x(static_cast<std::size_t>(c.rows_) * matrix.superblocks() *
                               kBrickCols);
  auto* codes = reinterpret_cast<std::uint8_t*>(x.data());
  for (int r = 0; r < c.rows_; ++r) {
    for (int k = 0; k < matrix.cols; ++k) {
      if (matrix.input == InputForm::kE4m3Codes) {
        codes[code_index(r, k, c.rows_ / 8)] = formats::f32_to_e4m3(input(r, k));
      } else {
        x[activation_index(r, k, c.rows_ / 8)] = core::f32_to_f16(input(r, k));
      }
    }
  }
  std::vector<std::int32_t> outputs;
  for (int i = 0; i < kOutputs; ++i) outputs.push_back(output_at(i, matrix.rows));
  TANDEM_ASSIGN(c.x_, DeviceBuffer::copy_of(x));
  TANDEM_ASSIGN(c.scales_, DeviceBuffer::copy_of(std::vector<float>(c.rows_, 1.0F)));
  TANDEM_ASSIGN(c.outputs_, DeviceBuffer::copy_of(outputs));
  TANDEM_ASSIGN(c.values_, DeviceBuffer::allocate(c.rows_ * kOutputs * sizeof(float)));
  TANDEM_ASSIGN(c.partials_, DeviceBuffer::allocate(static_cast<std::size_t>(c.group_.slots()) *
                                                    c.rows_ * kTileRows * sizeof(float)));
  c.input_ = {c.x_.as<half>(), c.scales_.as<float>(), c.rows_ / 8, matrix.cols};
  return core::Result<Checker>(std::move(c));
}

core::Result<std::vector<float>> Checker::run(int rows, cudaStream_t stream) const {
  const Partials p = group_.run(input_, rows, partials_.as<float>(), rows_, stream);
  launch(outputs_kernel, dim3(static_cast<unsigned>(rows)), kOutputs, 0, stream, p,
         outputs_.as<std::int32_t>(), values_.as<float>());
  TANDEM_CUDA(cudaGetLastError());
  std::vector<float> values(static_cast<std::size_t>(rows) * kOutputs);
  TANDEM_CUDA(cudaMemcpyAsync(values.data(), values_.as<void>(), values.size() * sizeof(float),
                              cudaMemcpyDeviceToHost, stream));
  TANDEM_CUDA(cudaStreamSynchronize(stream));
  return values;
}

/// Relative error of the checked outputs of `row`; 0 where the weight's values are not numbers.
double error_of(const WeightView& view, int outputs, int row, const float* actual) {
  std::vector<float> values(static_cast<std::size_t>(view.cols()));
  double error = 0, size = 0;
  for (int i = 0; i < kOutputs; ++i) {
    view.values(output_at(i, outputs), values);
    double sum = 0;
    for (std::size_t k = 0; k < values.size(); ++k) {
      sum += static_cast<double>(values[k]) * input(row, static_cast<int>(k));
    }
    if (!std::isfinite(sum)) return 0;
    error += (actual[i] - sum) * (actual[i] - sum);
    size += sum * sum;
  }
  return size > 0 ? std::sqrt(error / size) : 0;
}

}  // namespace

core::Status check_product(const WeightView& view, const MatrixView& matrix, int num_ctas,
                           cudaStream_t stream, std::string_view name) {
  const auto wrong = [&](int rows, const std::string& how) {
    return core::internal_error(
        std::string(name) + ": this GPU multiplies " + std::string(core::name(view.tensor.dtype)) +
        " of " + std::to_string(matrix.rows) + " x " + std::to_string(matrix.cols) + " by " +
        std::to_string(rows) + " rows wrongly (" + how + "); report it, and use --device cpu");
  };
  MatrixView part = matrix;
  part.rows = std::min(part.rows, kMostOutputs);
  TANDEM_ASSIGN(const Checker checker, Checker::create(part, num_ctas));
  std::vector<float> first;
  for (const int rows : kRowCounts) {
    TANDEM_ASSIGN(const std::vector<float> values, checker.run(rows, stream));
    for (const int row : kCheckedRows) {
      if (row >= rows) continue;
      // Not a number is wrong, too.
      if (const double error = error_of(view, part.rows, row, values.data() + row * kOutputs);
          !(error <= kTolerance)) {
        return wrong(rows, "relative error " + std::to_string(error));
      }
    }
    if (first.empty()) first = values;
    if (!std::equal(first.begin(), first.end(), values.begin())) {
      return wrong(rows, "other bits than by one row");
    }
  }
  return {};
}

}  // namespace tandem::kernels::cuda
