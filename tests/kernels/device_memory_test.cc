// What backends with memory of their own say that they will take of it, and tables that stay on
// the host. Without such a device the cases are skipped.

#include <gtest/gtest.h>

#include <vector>

#include "op_rig.h"
#include "tandem/kernels/cuda/cuda_backend.h"

namespace tandem::test {
namespace {

using core::DType;
using kernels::WeightRole;

const std::vector<DType> kTableTypes = {DType::kF32,  DType::kF16,  DType::kBF16,   DType::kQ8_0,
                                        DType::kQ5_0, DType::kQ4_0, DType::kIQ4_NL, DType::kQ4_K,
                                        DType::kQ5_K, DType::kQ6_K};

BackendFactory cuda(bool tables_on_host) {
  kernels::CudaOptions options;
  options.tables_on_host = tables_on_host;
  return {"cuda", [options] {
            return kernels::open_cuda_backend(options);
          }};
}

class DeviceMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto backend = kernels::open_cuda_backend({});
    if (!backend.ok()) GTEST_SKIP() << backend.status().message();
  }
};

TEST_F(DeviceMemory, WeightsTakeWhatWasPlanned) {
  auto backend = kernels::open_cuda_backend({}).value();
  EXPECT_GT(backend->device_memory()->free, 0U);
  EXPECT_LE(backend->device_memory()->free, backend->device_memory()->total);
  const auto check = [&](const kernels::WeightView& view, WeightRole role) {
    const auto weight = backend->pack(view, role, "test");
    ASSERT_TRUE(weight.ok()) << weight.status().message();
    EXPECT_EQ((*weight)->bytes(), backend->packed_bytes(view, role))
        << core::name(view.tensor.dtype);
  };
  for (const DType dtype : kTableTypes) {
    const OwnedTensor tensor = random_tensor(dtype, 200, 512, 1, 1.0F);
    check(tensor.view, WeightRole::kLinear);
    check(tensor.view, WeightRole::kTable);
  }
  check(random_tensor(DType::kMXFP4, 200, 512, 1, 1.0F).view, WeightRole::kLinear);
  check(random_e4m3(200, 512, 1, 512, 512, 1, 1.0F).view, WeightRole::kLinear);
  check(random_e4m3(200, 512, 128, 128, 128, 1, 1.0F).view, WeightRole::kLinear);
  check(random_nvfp4(200, 512, 1, 1.0F).view, WeightRole::kLinear);
  check(random_tensor(DType::kBF16, 1, 512, 1, 1.0F).view, WeightRole::kVector);
}

// Their products are right: pack() compares them.
TEST_F(DeviceMemory, WeightsBeyondTheRangeOfKQuantBricksBecomeHalves) {
  auto backend = kernels::open_cuda_backend({}).value();
  const OwnedTensor half = random_tensor(DType::kF16, 200, 512, 1, 1.0F);
  const std::size_t bytes = backend->packed_bytes(half.view, WeightRole::kLinear);
  for (const DType dtype : {DType::kQ4_K, DType::kQ6_K}) {
    const auto weight =
        backend->pack(random_tensor(dtype, 200, 512, 1, 100.0F).view, WeightRole::kLinear, "big");
    ASSERT_TRUE(weight.ok()) << weight.status().message();
    EXPECT_EQ((*weight)->bytes(), bytes) << core::name(dtype);
  }
}

TEST_F(DeviceMemory, RowsOfTablesOnTheHostAreTheSame) {
  Dims dims;
  dims.hidden = 2560;  // chunks of rows
  dims.vocab = 300;
  const std::vector<TokenId> tokens = {5, 0, 299, 131, 7};
  for (const DType dtype : kTableTypes) {
    std::vector<std::vector<float>> values;
    for (const BackendFactory& factory : {backend_factories().front(), cuda(false), cuda(true)}) {
      OpRig rig(factory, dims);
      const auto* table = rig.table(dtype, dims.vocab, dims.hidden, 3, WeightRole::kTable);
      kernels::StepPlan plan;
      plan.spans.push_back(rig.prompt(0, tokens, 0, kernels::Keep::kAll));
      rig.backend().begin_step(plan);
      const kernels::Rows x = rig.rows(5, dims.hidden, kernels::RowSet::kStep);
      rig.backend().embed(*table, 1.0F, x);
      ASSERT_TRUE(rig.backend().end_step().ok());
      values.push_back(rig.read(x));
    }
    EXPECT_EQ(values[2], values[0]) << core::name(dtype);
    // On the device, types without a packed form of their own are fp16.
    if (dtype == DType::kQ6_K || dtype == DType::kQ8_0) {
      EXPECT_EQ(values[1], values[0]);
    }
  }
}

TEST_F(DeviceMemory, RefusesTablesThatItCannotReadFromTheHost) {
  auto backend = cuda(true).make().value();
  const OwnedTensor tensor = random_tensor(DType::kQ3_K, 64, 256, 1, 1.0F);
  const auto weight = backend->pack(tensor.view, WeightRole::kTable, "table");
  EXPECT_EQ(weight.status().code(), core::Code::kUnimplemented);
  EXPECT_EQ(weight.status().message(),
            "table: rows of Q3_K cannot be read from host memory; use --ple device");
}

}  // namespace
}  // namespace tandem::test
