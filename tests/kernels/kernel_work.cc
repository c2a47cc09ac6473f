// Runs one kernel of the CPU's hottest on fixed data, for counting its instructions:
//   kernel_work NAME ISA REPEATS        (instruction_counts_test.py)
// One repeat more costs that kernel's instructions and nothing else.

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "tandem/core/thread_team.h"
#include "tandem/kernels/cpu/kv_layout.h"
#include "tandem/kernels/cpu/matmul.h"
#include "tandem/kernels/cpu/simd/attention_block.h"
#include "tandem/kernels/cpu/simd/row_kernels.h"

namespace tandem::kernels::cpu {
namespace {

using Kernel = std::function<void()>;
constexpr int kOutputs = 64;
constexpr int kCols = 1024;

std::vector<float> values(std::size_t size) {
  std::mt19937 random(1);
  std::vector<float> out(size);
  for (float& v : out) v = static_cast<float>(random()) * 0x1p-32F - 0.5F;
  return out;
}

/// Rows times a weight of zero codes: a kernel's way does not depend on what they are.
Kernel product(const MatmulKernels& kernels, core::DType dtype, int rows) {
  core::TensorView view;
  view.dtype = dtype;
  view.rank = 2;
  view.shape = {kOutputs, kCols, 1, 1};
  const std::vector<std::byte> zeros(view.bytes());
  view.data = zeros.data();
  core::ThreadTeam team(1);
  const std::shared_ptr<PackedMatrix> w = pack_matrix(view, team, "weights").value();
  auto forms = std::make_shared<ActivationBuffer>(ActivationBuffer::create(rows, kCols).value());
  const std::vector<float> x = values(kCols);
  for (int r = 0; r < rows; ++r) {
    kernels.prepare_row(w->input_forms(), x.data(), kCols, *forms, r);
  }
  auto out = std::make_shared<std::vector<float>>(static_cast<std::size_t>(rows * kOutputs));
  return [=, &kernels] {
    kernels.matmul(*w, forms->rows(0, nullptr, kCols), rows, 0, w->panels(), out->data(), kOutputs);
  };
}

Kernel quantization(const MatmulKernels& kernels) {
  auto out = std::make_shared<std::vector<CodeGroup>>(kCols / 32);
  return [&kernels, out, x = values(kCols)] {
    kernels.quantize_row(x.data(), kCols, out->data());
  };
}

/// A block of 256 keys for the four query heads of one KV head of 256.
struct BlockOfKeys {
  static constexpr int kVectors = 4;
  static constexpr int kSize = 256;
  static constexpr std::size_t kPageBytes = kPageTokens * (2 * kSize + kScaleBytes);

  std::vector<float> queries = values(kVectors * kSize);
  std::vector<std::uint8_t> page = std::vector<std::uint8_t>(kPageBytes);
  std::vector<std::int16_t> codes = std::vector<std::int16_t>(kVectors * kSize);
  std::vector<std::int16_t> weights = std::vector<std::int16_t>(kVectors * kBlockTokens);
  std::vector<CodeGroup> groups = std::vector<CodeGroup>(kVectors * kSize / 32);
  std::vector<CodeGroup> weight_groups = std::vector<CodeGroup>(kVectors * kPagesPerBlock);
  std::array<float, kVectors> scales = {};
  std::vector<float> scores = std::vector<float>(kVectors * kBlockTokens);
  std::vector<float> outputs = std::vector<float>(2 * kVectors * kSize);
  std::array<float, kVectors> max = {}, sum = {};
  std::array<const void*, kPagesPerBlock> pages;
  std::array<std::int32_t, kVectors> begin = {}, end = {};
  AttentionBlock block;

  explicit BlockOfKeys(const MatmulKernels& kernels) {
    pages.fill(page.data());
    end.fill(kBlockTokens);
    for (int i = 0; i < kVectors; ++i) {
      const float* q = queries.data() + i * kSize;
      kernels.quantize_row(q, kSize, groups.data() + i * (kSize / 32));
      scales[static_cast<std::size_t>(i)] =
          row_kernels(kernels.isa)->encode_query(q, kSize, codes.data() + 2 * i, 2 * kVectors);
    }
    block.head_size = kSize;
    block.num_vectors = kVectors;
    block.keys = block.values = pages.data();
    block.next_keys = page.data();
    block.end_page = kPagesPerBlock;
    block.key_begin = begin.data();
    block.key_end = end.data();
    block.max = max.data();
    block.sum = sum.data();
    block.out = outputs.data();
    block.block_out = outputs.data() + kVectors * kSize;
    block.scores = scores.data();
  }
};

Kernel make(std::string_view name, const MatmulKernels& kernels) {
  const RowKernels& rows = *row_kernels(kernels.isa);
  if (name == "q4_k_1_row") return product(kernels, core::DType::kQ4_K, 1);
  if (name == "q4_k_32_rows") return product(kernels, core::DType::kQ4_K, 32);
  if (name == "q6_k_1_row") return product(kernels, core::DType::kQ6_K, 1);
  if (name == "quantize_row") return quantization(kernels);
  auto keys = std::make_shared<BlockOfKeys>(kernels);
  if (name == "attention_int16")
    return [=, &rows] {
      rows.attend_int16(
          {keys->block, keys->codes.data(), keys->scales.data(), keys->weights.data()});
    };
  if (name == "attention_int8")
    return [=, &kernels] {
      kernels.attend_int8({keys->block, keys->groups.data(), keys->weight_groups.data()});
    };
  return {};
}

int run(std::string_view name, std::string_view isa, std::string_view repeats) {
  const auto kernels = matmul_kernels(isa);
  if (!kernels.ok()) {
    std::fprintf(stderr, "%s\n", std::string(kernels.status().message()).c_str());
    return 1;
  }
  int count = 0;
  std::from_chars(repeats.data(), repeats.data() + repeats.size(), count);
  const Kernel kernel = make(name, **kernels);
  if (!kernel) return 1;
  for (int i = 0; i < count; ++i) kernel();
  return 0;
}

}  // namespace
}  // namespace tandem::kernels::cpu

int main(int argc, char** argv) {
  if (argc == 4) return tandem::kernels::cpu::run(argv[1], argv[2], argv[3]);
  std::fprintf(stderr, "kernel_work NAME ISA REPEATS\n");
  return 1;
}
