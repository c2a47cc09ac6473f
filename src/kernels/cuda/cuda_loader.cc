#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <vector>

#include "tandem/kernels/cuda/cuda_backend.h"

namespace tandem::kernels {
namespace {

constexpr const char* kLibrary = "libtandem_cuda.so";

std::vector<std::string> candidates(const CudaOptions& options) {
  if (!options.library.empty()) return {options.library};
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {kLibrary};
  const auto folder = program.parent_path();
  return {folder / kLibrary, folder / ".." / "lib" / "tandem" / kLibrary, kLibrary};
}

}  // namespace

core::Result<std::unique_ptr<Backend>> open_cuda_backend(const CudaOptions& options) {
  void* library = nullptr;
  std::string reason;
  for (const std::string& path : candidates(options)) {
    library =
        dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays open: its code outlives every backend
    if (library != nullptr) break;
    const char* message = dlerror();
    if (reason.empty() && message != nullptr) reason = message;
  }
  if (library == nullptr) {
    return core::unavailable("cannot open the CUDA backend (" + reason +
                             "); build the preset `cuda`, or use --device cpu");
  }
  auto make = reinterpret_cast<MakeCudaBackend>(dlsym(library, kMakeCudaBackendName));
  if (make == nullptr) {
    return core::unavailable(std::string(kLibrary) +
                             " is of another version of this program; install both together");
  }
  std::array<char, 512> error = {};
  std::unique_ptr<Backend> backend(make(options, error.data(), error.size()));
  if (backend == nullptr) return core::unavailable(error.data());
  return backend;
}

}  // namespace tandem::kernels
