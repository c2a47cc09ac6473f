// The comparison of a device's attention with the reference, and the table of `tandem perf`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../kernels/forwarding_backend.h"
#include "tandem/app/perf_table.h"
#include "tandem/app/self_test.h"
#include "tandem/kernels/cpu/cpu_backend.h"

namespace tandem::app {
namespace {

using kernels::AttentionKind;
using ::testing::HasSubstr;

core::Result<std::unique_ptr<kernels::Backend>> make_cpu() {
  kernels::CpuOptions options;
  options.threads = 1;
  return kernels::make_cpu_backend(options);
}

/// Small layers of both kinds.
model::ModelConfig small_shapes() {
  model::ModelConfig config = e4b_shapes();
  config.hidden = 256;
  config.vocab = 1000;
  config.window = 100;
  for (model::LayerConfig& layer : config.layers) layer.ffn = 512;
  return config;
}

/// Sees one key less in layers of one kind.
class WrongDevice final : public tandem::testing::ForwardingBackend {
 public:
  explicit WrongDevice(AttentionKind kind) : ForwardingBackend(make_cpu().value()), kind_(kind) {}

  void attention(const kernels::AttentionWeights& w, const kernels::AttentionSpec& spec,
                 Rows x) override {
    ForwardingBackend::attention(w, spec, x);
    if (spec.kind != kind_) return;
    std::vector<float> values(static_cast<std::size_t>(x.rows * x.cols));
    read(x, values);
    for (float& value : values) value *= 1.05F;
    write(x, values);
  }

 private:
  AttentionKind kind_;
};

TEST(SelfTest, ABackendThatIsRightPasses) {
  const model::ModelConfig target = small_shapes();
  model::ModelConfig drafter = target;
  for (model::LayerConfig& layer : drafter.layers) layer.heads = 4;
  const core::Status status = check_attention(make_cpu, target, &drafter);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(SelfTest, NamesTheShapeThatIsWrong) {
  const auto check = [](AttentionKind kind) {
    return check_attention(
        [kind] {
          return core::Result<std::unique_ptr<kernels::Backend>>(
              std::make_unique<WrongDevice>(kind));
        },
        small_shapes(), nullptr);
  };
  EXPECT_EQ(check(AttentionKind::kFull).code(), core::Code::kInternal);
  EXPECT_THAT(std::string(check(AttentionKind::kFull).message()),
              HasSubstr("computes full attention of 8 query heads over 2 KV heads of 512 wrongly"));
  EXPECT_THAT(
      std::string(check(AttentionKind::kSliding).message()),
      HasSubstr("computes sliding attention of 8 query heads over 2 KV heads of 256 wrongly"));
}

TEST(PerfTable, MeasuresEveryFormOfWeights) {
  const auto backend = make_cpu().value();
  const model::ModelConfig shapes = small_shapes();
  ASSERT_TRUE(backend->configure(perf_geometry(shapes)).ok());
  const auto model = builtin_perf_model(*backend, shapes, 2);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const auto table = measure_table(*backend, *model, 1e-3);
  ASSERT_TRUE(table.ok()) << table.status().message();
  EXPECT_GT(table->read_gigabytes_per_s, 0);
  const auto count = [&](std::string_view op) {
    return std::count_if(table->rows.begin(), table->rows.end(),
                         [&](const PerfRow& row) { return row.op == op; });
  };
  EXPECT_EQ(count("ffn"), 6 * 5);  // forms, numbers of rows
  EXPECT_EQ(count("ple"), 6 * 5);
  EXPECT_EQ(count("attention sliding"), 2);
  EXPECT_EQ(count("attention full"), 3);
  EXPECT_EQ(count("head"), 4);
  double largest = 0;
  for (const PerfRow& row : table->rows) {
    EXPECT_GT(row.microseconds, 0) << row.op;
    EXPECT_GT(row.bytes, 0) << row.op;
    EXPECT_GT(row.flops, 0) << row.op;
    largest = std::max(largest, row.teraflops());
  }
  EXPECT_EQ(table->peak_teraflops, largest);
}

}  // namespace
}  // namespace tandem::app
