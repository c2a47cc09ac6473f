// What the program opens as its CUDA backend in device_test: the CPU's, with memory of its own,
// that fails in the step that the environment names.

#include <cstdlib>
#include <cstring>

#include "../kernels/forwarding_backend.h"
#include "tandem/kernels/cpu/cpu_backend.h"
#include "tandem/kernels/cuda/cuda_backend.h"

namespace tandem {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class FakeDevice final : public testing::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  std::string describe() const override { return "cuda (a fake)"; }
  std::optional<kernels::DeviceMemory> device_memory() const override {
    return kernels::DeviceMemory{1024 * kMiB, 900 * kMiB, 124 * kMiB};
  }
  core::Result<kernels::StepResult> end_step() override {
    const char* broken = std::getenv("FAKE_DEVICE_BREAKS_IN_STEP");
    auto result = ForwardingBackend::end_step();
    if (broken == nullptr || ++steps_ < std::atoi(broken)) return result;
    return core::internal_error("the GPU failed: an illegal memory access was encountered");
  }

 private:
  int steps_ = 0;
};

}  // namespace
}  // namespace tandem

extern "C" tandem::kernels::Backend* tandem_make_cuda_backend_v2(
    const tandem::kernels::CudaOptions&, char* error, std::size_t size) {
  tandem::kernels::CpuOptions options;
  options.threads = 1;
  auto cpu = tandem::kernels::make_cpu_backend(options);
  if (cpu.ok()) return new tandem::FakeDevice(std::move(cpu).value());
  std::strncpy(error, cpu.status().message().c_str(), size - 1);
  return nullptr;
}
