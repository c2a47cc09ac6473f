// Products of weights with scales: the emulated arithmetic of FP8-Dynamic against its goldens, the
// CPU's against the reference's, and every instruction set against the scalar one.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../formats/tensor_values.h"
#include "bits.h"
#include "scaled_weights.h"
#include "tandem/core/thread_team.h"
#include "tandem/formats/dequantize.h"
#include "tandem/formats/safetensors.h"
#include "tandem/kernels/cpu/matmul.h"
#include "tandem/kernels/reference/reference_ops.h"
#include "tandem/kernels/reference/reference_weight.h"

namespace tandem::test {
namespace {

using core::DType;
using kernels::cpu::ActivationBuffer;
using kernels::cpu::MatmulKernels;
using kernels::cpu::PackedMatrix;
using kernels::reference::ReferenceWeight;

std::vector<const MatmulKernels*> all_kernels() {
  std::vector<const MatmulKernels*> list;
  for (const char* isa : {"scalar", "avx2", "avx512", "neon"}) {
    if (const auto kernels = kernels::cpu::matmul_kernels(isa); kernels.ok()) {
      list.push_back(*kernels);
    }
  }
  return list;
}

std::unique_ptr<PackedMatrix> pack(const kernels::WeightView& view) {
  core::ThreadTeam team(1);
  auto packed = kernels::cpu::pack_matrix(view, team, "test");
  EXPECT_TRUE(packed.ok()) << packed.status().message();
  return std::move(packed).value();
}

/// [rows, N] of one instruction set.
std::vector<float> multiply(const MatmulKernels& kernels, const PackedMatrix& w,
                            const std::vector<float>& x, int rows) {
  const int cols = static_cast<int>(w.cols());
  const int n = static_cast<int>(w.rows());
  const ActivationBuffer forms = ActivationBuffer::create(rows, cols).value();
  for (int r = 0; r < rows; ++r) {
    kernels.prepare_row(w.input_forms(), x.data() + r * cols, cols, forms, r);
  }
  std::vector<float> y(static_cast<std::size_t>(rows * n));
  kernels.matmul(w, forms.rows(0, x.data(), cols), rows, 0, w.panels(), y.data(), n);
  return y;
}

std::vector<float> multiply_by_reference(const kernels::WeightView& view,
                                         const std::vector<float>& x, int rows) {
  auto weight = ReferenceWeight::create(view, kernels::WeightRole::kLinear, 0, "test");
  EXPECT_TRUE(weight.ok()) << weight.status().message();
  std::vector<float> y(static_cast<std::size_t>(rows * view.rows()));
  static_cast<const ReferenceWeight&>(**weight).multiply(x.data(), rows, y.data());
  return y;
}

std::vector<float> random_rows(int rows, int cols, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  for (float& v : x) v = normal(random);
  return x;
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0.0, size = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double e = want[i], a = got[i];
    error += (a - e) * (a - e);
    size += e * e;
  }
  return std::sqrt(error / size);
}

// ---- the goldens of one FP8-Dynamic linear

class Fp8Golden : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::path root = TANDEM_SOURCE_DIR "/tests/data";
    if (const char* env = std::getenv("TANDEM_TEST_DATA"); env != nullptr) root = env;
    auto file = formats::SafetensorsFile::open(root / "goldens/quant/fp8_linear.safetensors");
    ASSERT_TRUE(file.ok()) << file.status().message();
    file_ = std::move(file).value();
    x_ = formats::floats_of(file_, "x");
    y_ = formats::floats_of(file_, "y");
    x_scale_ = formats::floats_of(file_, "x_scale");
    const std::vector<std::int64_t> codes = formats::ints_of(file_, "x_codes");
    for (const std::int64_t code : codes) {
      x_codes_.push_back(formats::e4m3_to_f32(static_cast<std::uint8_t>(code)));
    }
    view_ = *file_.find("w_codes");
    rows_ = static_cast<int>(x_scale_.size());
    view_.tensor.dtype = DType::kF8E4M3;
    view_.scales = *file_.find("w_scale");
    view_.scale_rows = 1;
    view_.scale_cols = view_.tensor.cols();
    view_.e4m3_group = static_cast<int>(view_.tensor.cols());
  }
  int cols() const { return static_cast<int>(view_.cols()); }

  formats::SafetensorsFile file_;
  kernels::WeightView view_;
  std::vector<float> x_, y_, x_scale_, x_codes_;
  int rows_ = 0;
};

TEST_F(Fp8Golden, ReferenceRoundsActivationsExactly) {
  std::vector<float> codes(x_.size());
  for (int r = 0; r < rows_; ++r) {
    const auto at = static_cast<std::size_t>(r * cols());
    const auto n = static_cast<std::size_t>(cols());
    const float scale = kernels::reference::round_to_e4m3(std::span(x_).subspan(at, n),
                                                          std::span(codes).subspan(at, n));
    EXPECT_EQ(scale, x_scale_[static_cast<std::size_t>(r)]) << r;
  }
  EXPECT_EQ(codes, x_codes_);
}

TEST_F(Fp8Golden, EveryInstructionSetRoundsActivationsExactly) {
  for (const MatmulKernels* kernels : all_kernels()) {
    const ActivationBuffer forms = ActivationBuffer::create(rows_, cols()).value();
    for (int r = 0; r < rows_; ++r) {
      kernels->prepare_row({false, kernels::cpu::kWholeRow}, x_.data() + r * cols(), cols(), forms,
                           r);
      EXPECT_EQ(*forms.scales(r), x_scale_[static_cast<std::size_t>(r)]) << kernels->isa;
      for (int k = 0; k < cols(); ++k) {
        ASSERT_EQ(forms.rounded(r)[k], x_codes_[static_cast<std::size_t>(r * cols() + k)])
            << kernels->isa << " row " << r << " column " << k;
      }
    }
  }
}

// Sums of 128 products in another order: within a few units in the last place of the largest.
TEST_F(Fp8Golden, OutputsAgreeButForTheOrderOfTheSum) {
  EXPECT_LT(relative_error(multiply_by_reference(view_, x_, rows_), y_), 2e-7);
  const auto packed = pack(view_);
  for (const MatmulKernels* kernels : all_kernels()) {
    EXPECT_LT(relative_error(multiply(*kernels, *packed, x_, rows_), y_), 2e-7) << kernels->isa;
  }
}

// ---- all kinds of scales

struct Kind {
  std::string name;
  OwnedWeight (*make)(int rows, int cols);
  int cols = 0;
  double tolerance = 0.0;  // against the reference
};

constexpr double kSameArithmetic = 1e-6;
constexpr double kInt8Activations = 1.2e-2;

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> list = {
      {"Fp8Dynamic", [](int n, int k) { return random_e4m3(n, k, 1, k, k, 1, 0.1F); }, 300,
       kSameArithmetic},
      {"Fp8WeightsOnly", [](int n, int k) { return random_e4m3(n, k, 1, k, 0, 2, 0.1F); }, 300,
       kSameArithmetic},
      {"Fp8OneScale", [](int n, int k) { return random_e4m3(n, k, n, k, k, 3, 0.1F); }, 300,
       kSameArithmetic},
      {"Fp8Blocks", [](int n, int k) { return random_e4m3(n, k, 128, 128, 128, 4, 0.1F); }, 300,
       kSameArithmetic},
      {"Fp8NarrowBlocks", [](int n, int k) { return random_e4m3(n, k, 8, 32, 128, 5, 0.1F); }, 300,
       kSameArithmetic},
      {"Nvfp4", [](int n, int k) { return random_nvfp4(n, k, 6, 0.1F); }, 352, kInt8Activations},
  };
  return list;
}

class ScaledProducts : public ::testing::TestWithParam<Kind> {};

TEST_P(ScaledProducts, TheCpuAgreesWithTheReference) {
  const Kind& kind = GetParam();
  const OwnedWeight w = kind.make(150, kind.cols);
  const std::vector<float> x = random_rows(5, kind.cols, 7);
  const std::vector<float> want = multiply_by_reference(w.view, x, 5);
  EXPECT_LT(relative_error(multiply(*all_kernels().front(), *pack(w.view), x, 5), want),
            kind.tolerance);
}

TEST_P(ScaledProducts, EveryInstructionSetGivesTheScalarBits) {
  const Kind& kind = GetParam();
  for (const int outputs : {16, 41, 150}) {
    const OwnedWeight w = kind.make(outputs, kind.cols);
    const auto packed = pack(w.view);
    const std::vector<float> x = random_rows(19, kind.cols, 8);
    const std::vector<float> all = multiply(*all_kernels().front(), *packed, x, 19);
    for (const MatmulKernels* kernels : all_kernels()) {
      for (const int rows : {1, 2, 3, 7, 19}) {
        const std::vector<float> want(all.begin(), all.begin() + rows * outputs);
        expect_same_bits(multiply(*kernels, *packed, x, rows), want,
                         kind.name + " " + std::string(kernels->isa));
      }
    }
  }
}

TEST_P(ScaledProducts, GatheredRowsEqualTheViews) {
  const Kind& kind = GetParam();
  const OwnedWeight w = kind.make(33, kind.cols);
  const auto packed = pack(w.view);
  std::vector<float> got(static_cast<std::size_t>(kind.cols)), want(got.size());
  for (int r = 0; r < 33; ++r) {
    packed->gather_row(r, got.data());
    w.view.values(r, want);
    EXPECT_LT(relative_error(got, want), 1e-7) << r;
  }
}

TEST_P(ScaledProducts, ARowThatIsNotFiniteGivesNoFiniteOutput) {
  const Kind& kind = GetParam();
  const OwnedWeight w = kind.make(16, kind.cols);
  for (const float odd :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x = random_rows(1, kind.cols, 9);
    x[100] = odd;
    for (const MatmulKernels* kernels : all_kernels()) {
      for (const float y : multiply(*kernels, *pack(w.view), x, 1)) {
        EXPECT_FALSE(std::isfinite(y)) << kernels->isa;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ScaledProducts, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param.name; });

TEST(OneScale, OfAnyTypeMultipliesTheOutputs) {
  const std::vector<float> scale = {0.25F};
  const std::vector<float> values = random_rows(20, 64, 1);
  kernels::WeightView view = core::TensorView{
      reinterpret_cast<const std::byte*>(values.data()), DType::kF32, 2, {20, 64, 1, 1}};
  const std::vector<float> x = random_rows(3, 64, 2);
  std::vector<float> want = multiply(*all_kernels().front(), *pack(view), x, 3);
  for (float& y : want) y *= 0.25F;
  view.scales = {reinterpret_cast<const std::byte*>(scale.data()), DType::kF32, 1, {1, 1, 1, 1}};
  view.scale_rows = 20;
  view.scale_cols = 64;
  for (const MatmulKernels* kernels : all_kernels()) {
    expect_same_bits(multiply(*kernels, *pack(view), x, 3), want, std::string(kernels->isa));
  }
}

TEST(DamagedScales, AreRefused) {
  core::ThreadTeam team(1);
  OwnedWeight nvfp4 = random_nvfp4(16, 64, 1, 0.1F);
  nvfp4.scales[5] = std::byte{0x7f};
  EXPECT_EQ(kernels::cpu::pack_matrix(nvfp4.view, team, "w").status().code(),
            core::Code::kDataLoss);
  OwnedWeight fp8 = random_e4m3(16, 64, 1, 64, 64, 1, 0.1F);
  fp8.bytes[70] = std::byte{0xff};
  EXPECT_EQ(kernels::cpu::pack_matrix(fp8.view, team, "w").status().code(), core::Code::kDataLoss);
}

}  // namespace
}  // namespace tandem::test
