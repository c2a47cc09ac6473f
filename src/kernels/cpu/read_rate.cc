#include "tandem/kernels/cpu/read_rate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "tandem/core/buffer.h"

namespace tandem::kernels::cpu {
namespace {

constexpr std::size_t kBytes = std::size_t{512} << 20;  // beyond any last-level cache of a socket
constexpr int kSweeps = 5;

/// Independent sums, so that loads and not additions are the limit.
std::uint64_t sum(const std::uint64_t* words, std::size_t count) {
  std::array<std::uint64_t, 16> sums = {};
  for (std::size_t i = 0; i + sums.size() <= count; i += sums.size()) {
    for (std::size_t j = 0; j < sums.size(); ++j) sums[j] += words[i + j];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t s : sums) total += s;
  return total;
}

}  // namespace

core::Result<double> measure_read_rate(core::ThreadTeam& team) {
  TANDEM_ASSIGN(const core::Arena arena, core::Arena::reserve(kBytes, /*huge_pages=*/true));
  const std::size_t words = kBytes / sizeof(std::uint64_t);
  const std::size_t share = words / static_cast<std::size_t>(team.size());
  auto* const all = arena.as<std::uint64_t>();
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(team.size()));
  const auto part = [&](core::ThreadTeam::Member m) {
    return all + static_cast<std::size_t>(m.index()) * share;
  };
  team.run([&](core::ThreadTeam::Member m) { std::fill_n(part(m), share, m.index() + 1); });
  double best = 0;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    const auto begin = std::chrono::steady_clock::now();
    team.run([&](core::ThreadTeam::Member m) {
      sums[static_cast<std::size_t>(m.index())] += sum(part(m), share);
    });
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(kBytes) / time.count());
  }
  // A sum that nobody looks at would not be computed.
  const bool is_read = std::all_of(sums.begin(), sums.end(), [](auto s) { return s > 0; });
  return is_read ? best : 0.0;
}

}  // namespace tandem::kernels::cpu
