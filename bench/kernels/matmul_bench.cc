#include <benchmark/benchmark.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tandem/core/cpu_features.h"
#include "tandem/core/dtype.h"
#include "tandem/core/half.h"
#include "tandem/core/thread_team.h"
#include "tandem/kernels/cpu/matmul.h"

// Matrix products of the CPU kernels by type, shape, rows, instruction set and threads:
//   matmul_bench --benchmark_filter='avx512/Q4_K/512x1024/rows:32/threads:1'
// GMAC/s counts N x K x rows; GB/s the packed weight's bytes, read once a product.

namespace tandem::kernels::cpu {
namespace {

using core::DType;

struct Shape {
  int outputs, cols;
};

/// Valid blocks with random codes and small scales.
std::vector<std::byte> random_blocks(const core::TensorView& view) {
  std::mt19937 rng(1);
  std::vector<std::byte> bytes(view.bytes());
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
  const auto block = static_cast<std::size_t>(core::traits(view.dtype).block_bytes);
  if (view.dtype == DType::kF32) {
    std::memset(bytes.data(), 0, bytes.size());
    return bytes;
  }
  // Codes of E4M3 without the bit 6 are small numbers, never NaN.
  if (view.dtype == DType::kF8E4M3) {
    for (std::byte& b : bytes) b &= std::byte{0xbf};
  }
  // Any f16 or bf16 field with its top exponent bit clear is small and finite; so is each scale.
  for (std::size_t i = 0; i + 1 < bytes.size(); i += block) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{2}, block - 4, block - 2}) {
      if (at + 1 < block) bytes[i + at + 1] &= static_cast<std::byte>(0x3f);
    }
  }
  return bytes;
}

void run_product(benchmark::State& state, const MatmulKernels& kernels, DType dtype, Shape shape,
                 int rows, int threads) {
  core::ThreadTeam team(threads);
  core::TensorView view;
  view.dtype = dtype;
  view.rank = 2;
  view.shape = {shape.outputs, shape.cols, 1, 1};
  std::unique_ptr<PackedMatrix> w;
  {
    const std::vector<std::byte> bytes = random_blocks(view);
    view.data = bytes.data();
    WeightView weights = view;
    if (dtype == DType::kF8E4M3) weights.e4m3_group = shape.cols;
    w = pack_matrix(weights, team, "weights").value();
  }
  std::vector<float> x(static_cast<std::size_t>(rows * shape.cols));
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(rng);
  std::vector<float> out(static_cast<std::size_t>(rows * shape.outputs));
  const ActivationBuffer forms = ActivationBuffer::create(rows, shape.cols).value();
  for (int r = 0; r < rows; ++r) {
    kernels.prepare_row(w->input_forms(), x.data() + static_cast<std::ptrdiff_t>(r) * shape.cols,
                        shape.cols, forms, r);
  }
  const Activations a = forms.rows(0, x.data(), shape.cols);
  const int panels = w->panels();
  const int step = std::max(2, panels / (4 * threads) / 2 * 2);
  for (auto _ : state) {
    team.run([&](core::ThreadTeam::Member m) {
      for (int i = m.claim(); i * step < panels; i = m.claim()) {
        kernels.matmul(*w, a, rows, i * step, std::min(panels, (i + 1) * step), out.data(),
                       shape.outputs);
      }
    });
    benchmark::DoNotOptimize(out.data());
  }
  const double macs = static_cast<double>(shape.outputs) * shape.cols * rows;
  const double runs = static_cast<double>(state.iterations());
  state.counters["GMAC/s"] = benchmark::Counter(1e-9 * macs * runs, benchmark::Counter::kIsRate);
  state.counters["GB/s"] = benchmark::Counter(1e-9 * static_cast<double>(w->bytes()) * runs,
                                              benchmark::Counter::kIsRate);
}

void run_quantize(benchmark::State& state, const MatmulKernels& kernels, int cols) {
  std::vector<float> x(static_cast<std::size_t>(cols));
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(rng);
  const ActivationBuffer codes = ActivationBuffer::create(1, cols).value();
  for (auto _ : state) {
    kernels.prepare_row({true, 0}, x.data(), cols, codes, 0);
    benchmark::DoNotOptimize(codes.codes(0));
  }
  state.counters["Gvalues/s"] = benchmark::Counter(
      1e-9 * cols * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void register_all() {
  constexpr std::array kTypes = {
      DType::kQ4_K, DType::kQ6_K, DType::kQ5_0, DType::kQ8_0,   DType::kQ5_K,   DType::kQ4_0,
      DType::kQ4_1, DType::kQ5_1, DType::kQ2_K, DType::kQ3_K,   DType::kIQ4_NL, DType::kIQ4_XS,
      DType::kBF16, DType::kF16,  DType::kF32,  DType::kF8E4M3, DType::kNVFP4,  DType::kMXFP4};
  constexpr std::array kShapes = {Shape{512, 1024}, Shape{1024, 512}, Shape{8192, 512},
                                  Shape{10240, 2560}, Shape{32768, 2560}};
  for (const char* isa : {"scalar", "avx2", "avx512", "neon"}) {
    const auto found = matmul_kernels(isa);
    if (!found.ok()) continue;
    const MatmulKernels& kernels = **found;
    benchmark::RegisterBenchmark((std::string(isa) + "/quantize_row/1024").c_str(),
                                 [&kernels](auto& state) { run_quantize(state, kernels, 1024); });
    for (const DType dtype : kTypes) {
      for (const Shape shape : kShapes) {
        for (const int rows : {1, 2, 3, 4, 5, 6, 8, 16, 32, 64, 128, 512}) {
          for (const int threads : {1, 2}) {
            const std::string name = std::string(isa) + "/" + std::string(core::name(dtype)) + "/" +
                                     std::to_string(shape.outputs) + "x" +
                                     std::to_string(shape.cols) + "/rows:" + std::to_string(rows) +
                                     "/threads:" + std::to_string(threads);
            auto* entry = benchmark::RegisterBenchmark(name.c_str(), [=, &kernels](auto& state) {
              run_product(state, kernels, dtype, shape, rows, threads);
            });
            // One thread is timed by its own processor time, which other load disturbs least.
            entry->Unit(benchmark::kMicrosecond);
            if (threads > 1) entry->UseRealTime();
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::kernels::cpu

int main(int argc, char** argv) {
  std::printf("%s\n", tandem::core::describe_cpu().c_str());
  tandem::kernels::cpu::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
