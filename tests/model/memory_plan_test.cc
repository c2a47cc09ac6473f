// The plan of a device's memory, and what a model does with it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "../kernels/forwarding_backend.h"
#include "support.h"
#include "tandem/model/memory_plan.h"
#include "toy_model.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// A device of 1 GiB, 100 MiB of which the driver has taken, and 60 MiB of workspace.
class FakeDevice final : public testing::ForwardingBackend {
 public:
  FakeDevice() : ForwardingBackend(testing::make_backend("reference")) {}

  std::optional<kernels::DeviceMemory> device_memory() const override {
    return kernels::DeviceMemory{1024 * kMiB, 900 * kMiB, 124 * kMiB};
  }
  std::size_t packed_bytes(const kernels::WeightView& view,
                           kernels::WeightRole role) const override {
    return role == kernels::WeightRole::kTable ? 0 : view.bytes();
  }
  std::size_t workspace_bytes(const kernels::Geometry& g) const override {
    EXPECT_GT(g.max_context, 0);
    EXPECT_GT(g.max_inputs, 0);
    EXPECT_GT(g.max_outputs, 0);
    return 60 * kMiB;
  }
};

core::Result<std::unique_ptr<model::Model>> load(std::size_t kv, std::size_t limit,
                                                 std::unique_ptr<kernels::Backend> backend) {
  const testing::TemporaryFile file(testing::toy_e_series());
  model::LoadOptions options;
  options.target_path = file.path();
  options.kv_memory_bytes = kv;
  options.device_memory_bytes = limit;
  return model::Model::load(options, std::move(backend));
}

std::size_t kv_of(std::size_t kv, std::size_t limit) {
  const auto model = load(kv, limit, std::make_unique<FakeDevice>());
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? (*model)->limits().kv_memory_bytes : 0;
}

TEST(MemoryPlan, KvTakesWhatIsAskedForWhereItFits) {
  EXPECT_EQ(kv_of(64 * kMiB, 0), 64 * kMiB);
  EXPECT_EQ(kv_of(64 * kMiB, 512 * kMiB), 64 * kMiB);
}

TEST(MemoryPlan, KvShrinksToTheLimitAndToTheDevice) {
  const std::size_t limited = kv_of(2048 * kMiB, 300 * kMiB);
  EXPECT_LT(limited, (300 - 60 - 124) * kMiB);
  EXPECT_GT(limited, (300 - 60 - 124 - 16) * kMiB);  // the toy's weights and rows
  const std::size_t free = kv_of(2048 * kMiB, 0);
  EXPECT_EQ(free - limited, 724 * kMiB);
  EXPECT_EQ(kv_of(2048 * kMiB, 4096 * kMiB), free) << "a limit beyond the device";
}

TEST(MemoryPlan, RefusesWithTheNumbersWhatCannotFit) {
  const auto model = load(64 * kMiB, 200 * kMiB, std::make_unique<FakeDevice>());
  EXPECT_EQ(model.status().code(), core::Code::kResourceExhausted);
  EXPECT_THAT(std::string(model.status().message()),
              ::testing::AllOf(HasSubstr("MiB of GPU memory (weights "), HasSubstr("workspace "),
                               HasSubstr("driver and graphs about 124 MiB"),
                               HasSubstr("but 200 MiB are what --gpu-memory allows")));
}

TEST(MemoryPlan, UsualKvIsWhatTheSequencesNeed) {
  model::ModelConfig config;
  config.window = 1024;
  config.max_context = 131072;
  const auto add_layers = [&](int count, kernels::AttentionKind kind, int kv_heads, int head_size) {
    for (int i = 0; i < count; ++i) {
      model::LayerConfig layer;
      layer.kind = kind;
      layer.kv_heads = kv_heads;
      layer.head_size = head_size;
      config.layers.push_back(layer);
    }
  };
  add_layers(50, kernels::AttentionKind::kSliding, 16, 256);  // 31B
  add_layers(10, kernels::AttentionKind::kFull, 4, 512);
  const std::size_t kib = 1024, text = 1024 * (800 + 80) * kib;
  EXPECT_EQ(model::usual_kv_bytes(config, 32, 65536), 32 * text);
  EXPECT_EQ(model::usual_kv_bytes(config, 4, 65536), (65536 * 80 + 1536 * 800) * kib);
  EXPECT_EQ(model::usual_kv_bytes(config, 1, 512), model::kUsualKvBytes);
}

TEST(MemoryPlan, IsNoneOfTheHostsBusiness) {
  const auto model = load(64 * kMiB, 1, testing::make_backend("reference"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ((*model)->limits().kv_memory_bytes, 64 * kMiB);
}

}  // namespace
}  // namespace tandem
