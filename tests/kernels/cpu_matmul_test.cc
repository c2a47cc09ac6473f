#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bits.h"
#include "tandem/core/dtype.h"
#include "tandem/core/half.h"
#include "tandem/core/thread_team.h"
#include "tandem/formats/dequantize.h"
#include "tandem/kernels/cpu/matmul.h"

namespace tandem::kernels::cpu {
namespace {

using core::DType;
using test::expect_same_bits;

constexpr std::array kTypes = {
    DType::kF32,  DType::kF16,    DType::kBF16,   DType::kQ4_0,   DType::kQ4_1,  DType::kQ5_0,
    DType::kQ5_1, DType::kQ8_0,   DType::kQ2_K,   DType::kQ3_K,   DType::kQ4_K,  DType::kQ5_K,
    DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kF8E4M3, DType::kNVFP4, DType::kMXFP4};

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const char* name : {"avx2", "avx512", "neon"}) {
    if (matmul_kernels(name).ok()) names.emplace_back(name);
  }
  return names;
}

struct F16Field {
  int offset;
  bool is_min;
};

/// Where a block's f16 scales are; random bytes there would be infinities and NaNs.
std::vector<F16Field> scale_fields(DType dtype) {
  switch (dtype) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {{0, false}, {2, true}};
    case DType::kQ2_K:
      return {{80, false}, {82, true}};
    case DType::kQ3_K:
      return {{108, false}};
    case DType::kQ6_K:
      return {{208, false}};
    case DType::kNVFP4:
    case DType::kMXFP4:
      return {};
    default:
      return {{0, false}};
  }
}

/// A matrix in the file's layout, one byte past an aligned address as in a mapped file.
class FileMatrix {
 public:
  /// fill < 0: random codes and scales; else every code byte is `fill` (extreme codes).
  FileMatrix(DType dtype, int rows, int cols, std::mt19937& rng, int fill = -1) {
    view_.dtype = dtype;
    view_.rank = 2;
    view_.shape = {rows, cols, 1, 1};
    bytes_.resize(view_.bytes() + 1);
    view_.data = bytes_.data() + 1;
    if (core::is_block_quantized(dtype)) {
      fill_blocks(rng, fill);
    } else {
      fill_plain(rng);
    }
  }

  const core::TensorView& view() const { return view_; }

  /// Row-major f32 values.
  std::vector<float> values() const {
    std::vector<float> out(static_cast<std::size_t>(view_.elements()));
    for (std::int64_t r = 0; r < view_.rows(); ++r) {
      formats::dequantize_row(view_.dtype, view_.row(r), view_.cols(),
                              out.data() + r * view_.cols());
    }
    return out;
  }

 private:
  void put(std::size_t offset, const void* src, std::size_t n) {
    std::memcpy(bytes_.data() + 1 + offset, src, n);
  }

  void fill_plain(std::mt19937& rng) {
    std::normal_distribution<float> normal(0.0F, 0.05F);
    const std::size_t size = view_.bytes() / static_cast<std::size_t>(view_.elements());
    for (std::size_t i = 0; i < static_cast<std::size_t>(view_.elements()); ++i) {
      const float value = normal(rng);
      if (size == 1) {
        const std::uint8_t code = formats::f32_to_e4m3(16.0F * value);
        put(i, &code, 1);
        continue;
      }
      const std::uint16_t half =
          view_.dtype == DType::kF16 ? core::f32_to_f16(value) : core::f32_to_bf16(value);
      put(i * size, size == 4 ? static_cast<const void*>(&value) : &half, size);
    }
  }

  void fill_blocks(std::mt19937& rng, int fill) {
    std::uniform_int_distribution<int> byte(0, 255);
    std::uniform_real_distribution<float> scale(0.001F, 0.02F);
    for (std::byte& b : bytes_) b = static_cast<std::byte>(fill < 0 ? byte(rng) : fill);
    const auto block = static_cast<std::size_t>(core::traits(view_.dtype).block_bytes);
    for (std::size_t begin = 0; begin < view_.bytes(); begin += block) {
      if (view_.dtype == DType::kMXFP4)
        bytes_[1 + begin] = static_cast<std::byte>(118 + byte(rng) % 8);
      for (std::size_t i = 0; view_.dtype == DType::kNVFP4 && i < 4; ++i) {
        bytes_[1 + begin + i] = static_cast<std::byte>(byte(rng) % 48);  // up to 2, some subnormal
      }
      for (const F16Field& field : scale_fields(view_.dtype)) {
        const float sign = !field.is_min && byte(rng) < 32 ? -1.0F : 1.0F;
        const std::uint16_t half = core::f32_to_f16(sign * scale(rng));
        put(begin + static_cast<std::size_t>(field.offset), &half, sizeof half);
      }
    }
  }

  std::vector<std::byte> bytes_;
  core::TensorView view_;
};

std::vector<float> random_rows(int rows, int cols, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols));
  for (float& v : x) v = normal(rng);
  return x;
}

std::unique_ptr<PackedMatrix> pack(const FileMatrix& file, int threads = 1) {
  core::ThreadTeam team(threads);
  auto packed = pack_matrix(file.view(), team, "test");
  EXPECT_TRUE(packed.ok()) << packed.status().message();
  return std::move(packed).value();
}

/// y[rows, N] of one instruction set; cells that must not be written hold a marker, checked here.
std::vector<float> multiply(const MatmulKernels& kernels, const PackedMatrix& w,
                            const std::vector<float>& x, int rows) {
  constexpr float kMarker = -12345.0F;
  const int cols = static_cast<int>(w.cols());
  const int n = static_cast<int>(w.rows());
  const int ld = n + 3;
  std::vector<float> padded(static_cast<std::size_t>(rows * ld), kMarker);
  const ActivationBuffer buffer = ActivationBuffer::create(rows, cols).value();
  for (int r = 0; r < rows; ++r) {
    kernels.prepare_row(w.input_forms(), x.data() + static_cast<std::ptrdiff_t>(r) * cols, cols,
                        buffer, r);
  }
  const Activations a = buffer.rows(0, x.data(), cols);
  // In two pieces, as two members of a team would; the first is of an odd number of panels and
  // comes last, so that what it wrote past its end would stay.
  const int cut = std::min(w.panels() / 2 | 1, w.panels());
  kernels.matmul(w, a, rows, cut, w.panels(), padded.data(), ld);
  kernels.matmul(w, a, rows, 0, cut, padded.data(), ld);
  std::vector<float> y;
  for (int r = 0; r < rows; ++r) {
    const auto begin = padded.begin() + r * ld;
    y.insert(y.end(), begin, begin + n);
    for (int i = n; i < ld; ++i) EXPECT_EQ(begin[i], kMarker) << "wrote past the last output";
  }
  return y;
}

const MatmulKernels& kernels_of(std::string_view isa) {
  return *matmul_kernels(isa).value();
}

class MatmulTest : public testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  int block() const { return core::traits(dtype()).block_elements; }
  std::string name() const { return std::string(core::name(dtype())); }
  std::mt19937 rng_{20261130};
};

TEST_P(MatmulTest, GatheredRowsEqualTheOracle) {
  for (const int blocks : {1, 3}) {
    const int cols = block() == 1 ? 37 * blocks : block() * blocks;
    const FileMatrix file(dtype(), 35, cols, rng_);
    const auto packed = pack(file, 2);
    std::vector<float> rows(static_cast<std::size_t>(35 * cols));
    for (int r = 0; r < 35; ++r) packed->gather_row(r, rows.data() + r * cols);
    expect_same_bits(rows, file.values(), name());
  }
}

TEST_P(MatmulTest, PackedSizeEqualsTheFilesButForPadding) {
  const FileMatrix file(dtype(), 64, 512, rng_);
  std::size_t expected = file.view().bytes();
  if (dtype() == DType::kF8E4M3) expected += 64 * sizeof(float);  // a scale for each row
  if (dtype() == DType::kMXFP4) expected += 64 * 512 / 32;        // a scale takes two bytes
  EXPECT_EQ(pack(file)->bytes(), expected);
}

// A sum of K terms with int8 activations: the error of one activation is at most half a step,
// |x|max / 254 of its group, so |error| <= sum |w| max|x| / 254 (and float rounding).
TEST_P(MatmulTest, ScalarAgreesWithTheFloatProductWithinTheActivationStep) {
  for (const int cols : {block() == 1 ? 50 : block(), 512}) {
    const int rows = 3;
    const FileMatrix file(dtype(), 33, cols, rng_);
    const std::vector<float> w = file.values();
    const std::vector<float> x = random_rows(rows, cols, rng_);
    const std::vector<float> y = multiply(kernels_of("scalar"), *pack(file), x, rows);
    const double step = core::is_block_quantized(dtype()) ? 1.01 / 254.0 : 1e-5;
    for (int r = 0; r < rows; ++r) {
      double largest = 0.0;
      for (int k = 0; k < cols; ++k) {
        largest = std::max<double>(largest, std::fabs(x[static_cast<std::size_t>(r * cols + k)]));
      }
      for (int n = 0; n < 33; ++n) {
        double exact = 0.0;
        double magnitude = 0.0;
        for (int k = 0; k < cols; ++k) {
          const double weight = w[static_cast<std::size_t>(n * cols + k)];
          exact += weight * x[static_cast<std::size_t>(r * cols + k)];
          magnitude += std::fabs(weight);
        }
        EXPECT_NEAR(y[static_cast<std::size_t>(r * 33 + n)], exact, step * magnitude * largest)
            << name() << " K " << cols << " row " << r << " output " << n;
      }
    }
  }
}

TEST_P(MatmulTest, EveryInstructionSetGivesTheScalarBits) {
  for (const int blocks : {1, 2, 5}) {
    const int cols = block() == 1 ? 32 * blocks + blocks % 2 : block() * blocks;
    for (const int outputs : {16, 41, 80}) {
      const FileMatrix file(dtype(), outputs, cols, rng_);
      const auto packed = pack(file);
      const std::vector<float> x = random_rows(40, cols, rng_);
      const std::vector<float> want = multiply(kernels_of("scalar"), *packed, x, 40);
      for (const std::string& isa : available_isas()) {
        for (int rows = 1; rows <= 40; rows += outputs == 41 ? 1 : 13) {
          const std::vector<float> prefix(want.begin(), want.begin() + rows * outputs);
          expect_same_bits(multiply(kernels_of(isa), *packed, x, rows), prefix,
                           name() + " " + isa + " rows " + std::to_string(rows));
        }
      }
    }
  }
}

TEST_P(MatmulTest, LongRowsAndManyRowsGiveTheScalarBits) {
  const int cols = 4096 + (block() == 32 ? 96 : 0);
  const FileMatrix file(dtype(), 50, cols, rng_);
  const auto packed = pack(file);
  const std::vector<float> x = random_rows(70, cols, rng_);
  const std::vector<float> want = multiply(kernels_of("scalar"), *packed, x, 70);
  for (const std::string& isa : available_isas()) {
    expect_same_bits(multiply(kernels_of(isa), *packed, x, 70), want, name() + " " + isa);
  }
}

TEST_P(MatmulTest, RowsOfABatchEqualSingleRows) {
  const int cols = 512;
  const FileMatrix file(dtype(), 40, cols, rng_);
  const auto packed = pack(file);
  const std::vector<float> x = random_rows(9, cols, rng_);
  std::vector<std::string> isas = available_isas();
  isas.emplace_back("scalar");
  for (const std::string& isa : isas) {
    const std::vector<float> batch = multiply(kernels_of(isa), *packed, x, 9);
    for (int r = 0; r < 9; ++r) {
      const std::vector<float> row(x.begin() + r * cols, x.begin() + (r + 1) * cols);
      const std::vector<float> want(batch.begin() + r * 40, batch.begin() + (r + 1) * 40);
      expect_same_bits(multiply(kernels_of(isa), *packed, row, 1), want, name() + " " + isa);
    }
  }
}

// The largest codes and scales of both signs: nothing may saturate or wrap.
TEST_P(MatmulTest, ExtremeCodesGiveTheScalarBits) {
  const int cols = 512;
  for (const int fill : {0x00, 0x0f, 0x7f, 0x80, 0xf0, 0xff}) {
    if (block() == 1) continue;
    const FileMatrix file(dtype(), 32, cols, rng_, fill);
    const auto packed = pack(file);
    std::vector<float> x(static_cast<std::size_t>(8 * cols));
    for (int i = 0; i < 8 * cols; ++i) {
      const bool flips = (i / cols) % 4 == 3 && i % 2 == 0;
      x[static_cast<std::size_t>(i)] = ((i / cols) % 2 == 0) != flips ? 1.0F : -1.0F;
    }
    const std::vector<float> want = multiply(kernels_of("scalar"), *packed, x, 8);
    const std::vector<float> w = file.values();
    double exact = 0.0;  // activations of +1 are exact in int8
    double magnitude = 0.0;
    for (int k = 0; k < cols; ++k) {
      exact += w[static_cast<std::size_t>(k)];
      magnitude += std::fabs(w[static_cast<std::size_t>(k)]);
    }
    EXPECT_NEAR(want[0], exact, 1e-5 * magnitude + 1e-6) << name() << " fill " << fill;
    for (const std::string& isa : available_isas()) {
      for (const int rows : {1, 8}) {
        const std::vector<float> prefix(want.begin(), want.begin() + rows * 32);
        expect_same_bits(multiply(kernels_of(isa), *packed, x, rows), prefix, name() + " " + isa);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, MatmulTest, testing::ValuesIn(kTypes),
                         [](const auto& info) { return std::string(core::name(info.param)); });

TEST_P(MatmulTest, TheNumberOfThreadsChangesNoBit) {
  const int cols = 512;
  const FileMatrix file(dtype(), 77, cols, rng_);
  const std::vector<float> x = random_rows(7, cols, rng_);
  const MatmulKernels& kernels = kernels_of("");
  const std::vector<float> want = multiply(kernels, *pack(file), x, 7);
  for (const int threads : {2, 3}) {
    core::ThreadTeam team(threads);
    const auto packed = pack_matrix(file.view(), team, "test").value();
    const auto forms = ActivationBuffer::create(7, cols).value();
    std::vector<float> y(want.size());
    team.run([&](core::ThreadTeam::Member m) {
      for (int r = m.claim(); r < 7; r = m.claim()) {
        kernels.prepare_row(packed->input_forms(), x.data() + r * cols, cols, forms, r);
      }
      m.barrier();
      for (int p = m.claim(); p < packed->panels(); p = m.claim()) {
        kernels.matmul(*packed, forms.rows(0, x.data(), cols), 7, p, p + 1, y.data(), 77);
      }
    });
    expect_same_bits(y, want, name() + " threads " + std::to_string(threads));
  }
}

/// Rows that are hard to quantize: ties, the smallest and largest floats, zeros, not finite.
std::vector<std::vector<float>> hard_rows(int cols, std::mt19937& rng) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::vector<float>> rows;
  for (const float scale : {1.0F, 1e-30F, 1e-38F, 1e30F}) {
    rows.push_back(random_rows(1, cols, rng));
    for (float& v : rows.back()) v *= scale;
  }
  std::vector<float> ties(static_cast<std::size_t>(cols));
  for (int k = 0; k < cols; ++k)
    ties[static_cast<std::size_t>(k)] = static_cast<float>(k % 32) + 0.5F;
  ties[0] = 127.0F;
  rows.push_back(ties);
  rows.emplace_back(static_cast<std::size_t>(cols), 0.0F);
  for (const float odd :
       {kInfinity, -kInfinity, kNan, -kNan, -0.0F, std::numeric_limits<float>::denorm_min(),
        std::numeric_limits<float>::max()}) {
    rows.push_back(random_rows(1, cols, rng));
    rows.back()[static_cast<std::size_t>(cols / 2 + 3)] = odd;
  }
  return rows;
}

constexpr InputForms kCodes = {true, 0};

TEST(QuantizeRow, EveryInstructionSetGivesTheScalarBits) {
  std::mt19937 rng(3);
  for (const int cols : {32, 96, 512}) {
    const auto groups = static_cast<std::size_t>(cols / 32);
    for (const std::vector<float>& x : hard_rows(cols, rng)) {
      const auto want = ActivationBuffer::create(1, cols).value();
      kernels_of("scalar").prepare_row(kCodes, x.data(), cols, want, 0);
      for (const std::string& isa : available_isas()) {
        const auto got = ActivationBuffer::create(1, cols).value();
        kernels_of(isa).prepare_row(kCodes, x.data(), cols, got, 0);
        EXPECT_EQ(std::memcmp(got.codes(0), want.codes(0), groups * sizeof(CodeGroup)), 0)
            << isa << " " << cols << " x[0] " << x[0];
      }
    }
  }
}

TEST(QuantizeRow, CodesAreTheNearestAndSumsAreTheirs) {
  std::mt19937 rng(4);
  const std::vector<float> x = random_rows(1, 256, rng);
  const auto buffer = ActivationBuffer::create(1, 256).value();
  kernels_of("").prepare_row(kCodes, x.data(), 256, buffer, 0);
  for (int g = 0; g < 8; ++g) {
    const CodeGroup& group = buffer.codes(0)[g];
    int sums[2] = {};
    int largest = 0;
    for (int k = 0; k < 32; ++k) {
      const float value = static_cast<float>(group.codes[k]) * group.scale;
      EXPECT_NEAR(value, x[static_cast<std::size_t>(32 * g + k)], 0.501F * group.scale);
      sums[k / 16] += group.codes[k];
      largest = std::max(largest, std::abs(static_cast<int>(group.codes[k])));
    }
    EXPECT_EQ(largest, 127);
    EXPECT_EQ(group.minus_sum16[0], -sums[0]);
    EXPECT_EQ(group.minus_sum16[1], -sums[1]);
    EXPECT_EQ(group.minus_sum, -sums[0] - sums[1]);
  }
}

// A value that is not finite must be seen at the end of the step.
TEST(QuantizeRow, NotFiniteInNotFiniteOut) {
  std::mt19937 rng(5);
  const FileMatrix file(DType::kQ4_K, 16, 256, rng);
  const auto packed = pack(file);
  for (const float odd :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x = random_rows(1, 256, rng);
    x[100] = odd;
    for (const float y : multiply(kernels_of(""), *packed, x, 1)) EXPECT_TRUE(std::isnan(y));
  }
}

TEST(MatmulKernels, RefusesUnknownInstructionSets) {
  const auto unknown = matmul_kernels("mmx");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), core::Code::kInvalidArgument);
  EXPECT_NE(unknown.status().message().find("scalar"), std::string::npos);
}

TEST(MatmulKernels, BestIsTheHighestLevelOfTheMachine) {
  const std::vector<std::string> isas = available_isas();
  EXPECT_EQ(matmul_kernels("").value()->isa, isas.empty() ? "scalar" : isas.back());
}

TEST(PackMatrix, RefusesTypesWithoutPanels) {
  core::ThreadTeam team(1);
  core::TensorView view;
  view.dtype = DType::kI32;
  view.rank = 2;
  view.shape = {4, 4, 1, 1};
  const auto packed = pack_matrix(view, team, "blk.0.ids");
  ASSERT_FALSE(packed.ok());
  EXPECT_EQ(packed.status().code(), core::Code::kUnimplemented);
  EXPECT_NE(packed.status().message().find("blk.0.ids"), std::string::npos);
}

}  // namespace
}  // namespace tandem::kernels::cpu
