#include "tandem/app/pending_output.h"

#include <fmt/core.h>

#include <filesystem>
#include <utility>

namespace tandem::app {
namespace fs = std::filesystem;

core::Result<PendingOutput> PendingOutput::create(const std::string& path) {
  fs::path final = fs::path(path).lexically_normal();
  if (!final.has_filename()) final = final.parent_path();  // "DIR/"
  std::string pending = final.string() + ".incomplete";
  for (const std::string& name : {final.string(), pending}) {
    std::error_code error;
    if (!fs::exists(name, error)) continue;
    return core::invalid_argument(fmt::format(
        "{}: exists already; {}", name,
        name == pending ? "remove what an earlier run left" : "give a path that does not"));
  }
  return PendingOutput(final.string(), std::move(pending));
}

PendingOutput::PendingOutput(std::string final, std::string pending)
    : final_(std::move(final)), pending_(std::move(pending)) {}

PendingOutput::PendingOutput(PendingOutput&& other) noexcept
    : final_(std::move(other.final_)), pending_(std::exchange(other.pending_, {})) {}

PendingOutput::~PendingOutput() {
  std::error_code error;
  if (!pending_.empty()) fs::remove_all(pending_, error);
}

core::Status PendingOutput::make_directory() const {
  std::error_code error;
  if (fs::create_directories(pending_, error)) return {};
  return core::invalid_argument(
      fmt::format("{}: cannot create the directory ({})", pending_, error.message()));
}

core::Status PendingOutput::commit() {
  std::error_code error;
  fs::rename(pending_, final_, error);
  if (error) {
    return core::invalid_argument(
        fmt::format("{}: cannot be named {} ({})", pending_, final_, error.message()));
  }
  pending_.clear();
  return {};
}

}  // namespace tandem::app
