#include "tandem/bench/process_memory.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tandem::bench {
namespace {

struct ProcessStatus {
  int parent = 0;
  std::uint64_t peak_bytes = 0;  // 0 for kernel threads
};

template <typename T>
T leading_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  T value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::optional<ProcessStatus> read_status(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  if (!file) return std::nullopt;
  ProcessStatus out;
  for (std::string line; std::getline(file, line);) {
    const std::string_view text = line;
    if (text.rfind("PPid:", 0) == 0) out.parent = leading_number<int>(text.substr(5));
    if (text.rfind("VmHWM:", 0) == 0) {
      out.peak_bytes = leading_number<std::uint64_t>(text.substr(6)) * 1024;
    }
  }
  return out;
}

std::vector<int> all_processes() {
  std::vector<int> out;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const int pid = leading_number<int>(entry.path().filename().native());
    if (pid > 0) out.push_back(pid);
  }
  return out;
}

}  // namespace

std::optional<std::uint64_t> peak_memory_of_tree(int pid) {
  const auto root = read_status(pid);
  if (!root) return std::nullopt;
  std::unordered_map<int, std::vector<int>> children;
  std::unordered_map<int, std::uint64_t> peaks;
  for (const int process : all_processes()) {
    const auto status = read_status(process);
    if (!status) continue;  // it ended meanwhile
    children[status->parent].push_back(process);
    peaks[process] = status->peak_bytes;
  }
  std::uint64_t total = root->peak_bytes;
  std::vector<int> open = children[pid];
  while (!open.empty()) {
    const int process = open.back();
    open.pop_back();
    if (process == pid) continue;
    total += peaks[process];
    const std::vector<int>& below = children[process];
    open.insert(open.end(), below.begin(), below.end());
  }
  return total;
}

}  // namespace tandem::bench
