// Which states of an automaton a text can lead to, and which no short text tells apart.

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "tandem/grammar/automaton.h"

namespace tandem::grammar {

std::vector<std::int32_t> Automaton::reachable() const {
  std::vector<std::int32_t> out;
  std::vector<bool> is_known(states_.size());
  const auto add = [&](std::int32_t state) {
    if (state < 0 || is_known[static_cast<std::size_t>(state)]) return;
    is_known[static_cast<std::size_t>(state)] = true;
    out.push_back(state);
  };
  add(root_start());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int32_t state = out[i];
    for (const Call& call : calls(state)) {
      add(start(call.rule));
      add(call.target);
    }
    for (const TokenEdge& edge : tokens(state)) add(edge.target);
    for (std::size_t c = 0; c < num_classes_; ++c) add(next(state, static_cast<std::uint8_t>(c)));
  }
  return out;
}

namespace {

std::int32_t group_at(std::span<const std::int32_t> group_of, std::int32_t state) {
  return state < 0 ? -1 : group_of[static_cast<std::size_t>(state)];
}

}  // namespace

std::uint64_t Automaton::hash_of(std::int32_t state, std::span<const std::int32_t> group_of) const {
  std::uint64_t h = static_cast<std::uint64_t>(group_at(group_of, state)) + 1;
  const auto mix = [&h](std::int32_t value) {
    h = (h ^ static_cast<std::uint32_t>(value)) * 0x9E3779B97F4A7C15U;
    h ^= h >> 32;
  };
  for (std::size_t c = 0; c < num_classes_; ++c) {
    mix(group_at(group_of, next(state, static_cast<std::uint8_t>(c))));
  }
  for (const Call& call : calls(state)) mix(call.rule ^ group_at(group_of, call.target) << 12);
  for (const TokenEdge& edge : tokens(state)) mix(group_at(group_of, edge.target) ^ edge.token);
  return h;
}

bool Automaton::are_alike(std::int32_t a, std::int32_t b,
                          std::span<const std::int32_t> group_of) const {
  if (group_at(group_of, a) != group_at(group_of, b)) return false;
  for (std::size_t c = 0; c < num_classes_; ++c) {
    const auto byte_class = static_cast<std::uint8_t>(c);
    if (group_at(group_of, next(a, byte_class)) != group_at(group_of, next(b, byte_class))) {
      return false;
    }
  }
  return std::ranges::equal(calls(a), calls(b),
                            [&](const Call& x, const Call& y) {
                              return x.rule == y.rule &&
                                     group_at(group_of, x.target) == group_at(group_of, y.target);
                            }) &&
         std::ranges::equal(tokens(a), tokens(b), [&](const TokenEdge& x, const TokenEdge& y) {
           return x.token == y.token &&
                  group_at(group_of, x.target) == group_at(group_of, y.target);
         });
}

std::vector<std::int32_t> Automaton::alike(int max_bytes) const {
  // Moore's refinement, stopped: after n rounds a group is of states that no text of n bytes tells
  // apart. A group is named by its first state.
  const auto n = static_cast<std::int32_t>(states_.size());
  std::vector<std::int32_t> group_of(states_.size()), next_group_of(states_.size());
  std::map<std::tuple<std::uint8_t, std::int32_t, std::int32_t>, std::int32_t> firsts;
  for (std::int32_t s = 0; s < n; ++s) {
    const auto flags = static_cast<std::uint8_t>(flags_of(s) & (kAccepts | kBetweenParts));
    group_of[static_cast<std::size_t>(s)] =
        firsts.try_emplace({flags, at(s).counter, at(s).num_missing}, s).first->second;
  }
  for (int round = 0; round <= max_bytes; ++round) {
    std::unordered_multimap<std::uint64_t, std::int32_t> seen;
    for (std::int32_t s = 0; s < n; ++s) {
      const std::uint64_t hash = hash_of(s, group_of);
      const auto [begin, end] = seen.equal_range(hash);
      const auto same = std::find_if(
          begin, end, [&](const auto& other) { return are_alike(other.second, s, group_of); });
      next_group_of[static_cast<std::size_t>(s)] = same != end ? same->second : s;
      if (same == end) seen.emplace(hash, s);
    }
    group_of.swap(next_group_of);
    if (group_of == next_group_of) break;
  }
  return group_of;
}

}  // namespace tandem::grammar
