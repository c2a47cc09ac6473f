// The step loop of the CPU backend asks for no memory once it has run: a stall of the allocator
// would be a stall of every sequence.

#include <gtest/gtest.h>

#include <string>

#include "allocation_counter.h"
#include "mini_model.h"
#include "tandem/kernels/cpu/cpu_backend.h"

namespace tandem::test {
namespace {

using kernels::Keep;

/// Q8_0 brings the centroid head, FP8 rounded activations; all have experts.
class CpuStepMemory : public ::testing::TestWithParam<core::DType> {};

TEST_P(CpuStepMemory, OnlyTheResultIsAllocatedAfterWarmUp) {
  const BackendFactory factory = {"cpu", [] {
                                    kernels::CpuOptions options;
                                    options.threads = 2;
                                    return kernels::make_cpu_backend(options);
                                  }};
  MiniModel model(factory, GetParam());
  OpRig& rig = model.rig();
  const std::vector<TokenId> text(20, 3);
  kernels::StepPlan prompts;
  for (int slot = 0; slot < 4; ++slot) {
    kernels::SamplingParams sampling;
    sampling.temperature = slot % 2 == 0 ? 0.0F : 1.0F;
    sampling.top_k = 40;
    rig.backend().set_slot(slot, sampling);
    prompts.spans.push_back(rig.prompt(slot, text, 0, Keep::kLast, 2));
  }
  model.step(prompts);
  // Scratch grows when a member of the team samples for the first time, which may be late.
  constexpr int kQuietSteps = 6;
  int quiet = 0;
  for (int i = 0; i < 60 && quiet < kQuietSteps; ++i) {
    kernels::StepPlan plan;
    for (int slot = 0; slot < 4; ++slot) plan.spans.push_back(rig.decode(slot, 2, 2));
    const long before = num_allocations();
    const kernels::StepResult result = model.step(plan);
    quiet = num_allocations() - before <= 1 ? quiet + 1 : 0;
  }
  EXPECT_EQ(quiet, kQuietSteps);
}

INSTANTIATE_TEST_SUITE_P(Types, CpuStepMemory,
                         ::testing::Values(core::DType::kQ4_K, core::DType::kQ8_0,
                                           core::DType::kF8E4M3),
                         [](const auto& info) { return std::string(core::name(info.param)); });

}  // namespace
}  // namespace tandem::test
