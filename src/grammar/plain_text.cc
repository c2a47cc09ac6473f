#include "tandem/grammar/plain_text.h"

#include <algorithm>
#include <bitset>
#include <utility>

namespace tandem::grammar {
namespace {

/// Well-formed UTF-8 of plain characters, byte by byte (Unicode 15, table 3-7). Place 0 lies
/// between characters, 1 to 3 before so many continuation bytes, the others after a byte that
/// narrows the next one.
struct Range {
  std::uint8_t from, first, last, to;
};
constexpr Range kRanges[] = {
    {0, 0x20, 0x21, 0}, {0, 0x23, 0x5B, 0}, {0, 0x5D, 0x7F, 0}, {0, 0xC2, 0xDF, 1},
    {0, 0xE0, 0xE0, 4}, {0, 0xE1, 0xE1, 2}, {0, 0xE2, 0xE2, 8}, {0, 0xE3, 0xEC, 2},
    {0, 0xED, 0xED, 5}, {0, 0xEE, 0xEF, 2}, {8, 0x80, 0x80, 9}, {8, 0x81, 0xBF, 1},
    {9, 0x80, 0xA7, 0}, {9, 0xAA, 0xBF, 0}, {0, 0xF0, 0xF0, 6}, {0, 0xF1, 0xF3, 3},
    {0, 0xF4, 0xF4, 7}, {1, 0x80, 0xBF, 0}, {2, 0x80, 0xBF, 1}, {3, 0x80, 0xBF, 2},
    {4, 0xA0, 0xBF, 1}, {5, 0x80, 0x9F, 1}, {6, 0x90, 0xBF, 2}, {7, 0x80, 0x8F, 2},
};

}  // namespace

int count_plain(std::string_view text) {
  int count = 0;
  std::uint8_t place = 0;
  for (const char c : text) {
    const auto byte = static_cast<std::uint8_t>(c);
    const auto* range = std::find_if(std::begin(kRanges), std::end(kRanges), [&](const Range& r) {
      return r.from == place && r.first <= byte && byte <= r.last;
    });
    if (range == std::end(kRanges)) return -1;
    place = range->to;
    count += place == 0 ? 1 : 0;
  }
  return place == 0 ? count : -1;
}

PlainText::PlainText(const Automaton& automaton) : automaton_(&automaton) {
  for (const Range& range : kRanges) {
    Edge edge{range.from, range.to, {}};
    std::bitset<256> seen;
    for (unsigned byte = range.first; byte <= range.last; ++byte) {
      const std::uint8_t byte_class = automaton.class_of(static_cast<std::uint8_t>(byte));
      if (!seen.test(byte_class)) edge.classes.push_back(byte_class);
      seen.set(byte_class);
    }
    edges_.push_back(std::move(edge));
  }
}

/// Whether to be in the state is to be nowhere else: in no called rule and not past this one. A
/// rule that reads one character is left before anyone looks.
bool PlainText::is_inside(std::int32_t state) {
  if (automaton_->accepts(state)) return false;
  return !automaton_->has_calls(state) || after_call(state) >= 0;
}

bool PlainText::reads_character(RuleId rule) {
  const auto [known, is_new] = reads_character_.try_emplace(rule, false);
  if (is_new) known->second = find_character(rule);
  return known->second;
}

bool PlainText::find_character(RuleId rule) const {
  std::vector<std::pair<std::int32_t, std::uint8_t>> todo = {{automaton_->start(rule), 0}};
  for (std::size_t i = 0; i < todo.size(); ++i) {
    const auto [state, place] = todo[i];
    if (automaton_->has_calls(state) || automaton_->accepts(state)) return false;
    for (const Edge& edge : edges_) {
      if (edge.from != place) continue;
      for (const std::uint8_t byte_class : edge.classes) {
        const std::int32_t next = automaton_->next(state, byte_class);
        if (next < 0 || (edge.to == 0 && !automaton_->is_final(next))) return false;
        const std::pair within(next, edge.to);
        const bool is_known = std::find(todo.begin(), todo.end(), within) != todo.end();
        if (edge.to != 0 && !is_known) todo.push_back(within);
      }
    }
  }
  return true;
}

std::int32_t PlainText::after_call(std::int32_t state) {
  const auto calls = automaton_->calls(state);
  if (calls.size() != 1 || !reads_character(calls[0].rule)) return -1;
  for (const Edge& edge : edges_) {
    if (edge.from != 0) continue;
    const bool has_other_way = std::any_of(
        edge.classes.begin(), edge.classes.end(),
        [&](std::uint8_t byte_class) { return automaton_->next(state, byte_class) >= 0; });
    if (has_other_way) return -1;
  }
  return calls[0].target;
}

bool PlainText::add_next(std::int32_t state) {
  if (!is_inside(state)) return false;
  if (std::find(next_.begin(), next_.end(), state) == next_.end()) next_.push_back(state);
  return true;
}

PlainText::Step PlainText::step() {
  next_.clear();
  todo_.clear();
  bool can_read = false, cannot_read = false;
  for (const std::int32_t state : states_) {
    const std::int32_t next = after_call(state);
    if (next < 0) {
      todo_.emplace_back(state, 0);
      continue;
    }
    can_read = true;
    if (!add_next(next)) return Step::kSome;
  }
  for (std::size_t i = 0; i < todo_.size(); ++i) {
    const auto [state, place] = todo_[i];
    for (const Edge& edge : edges_) {
      if (edge.from != place) continue;
      for (const std::uint8_t byte_class : edge.classes) {
        const std::int32_t next = automaton_->next(state, byte_class);
        (next < 0 ? cannot_read : can_read) = true;
        if (next < 0) continue;
        if (edge.to == 0) {
          if (!add_next(next)) return Step::kSome;
          continue;
        }
        if (!is_inside(next) || automaton_->has_calls(next)) return Step::kSome;
        const std::pair within(next, edge.to);
        if (std::find(todo_.begin(), todo_.end(), within) == todo_.end()) todo_.push_back(within);
      }
      if (can_read && cannot_read) return Step::kSome;
    }
  }
  if (next_.size() > kMaxStates) return Step::kSome;
  std::sort(next_.begin(), next_.end());
  return can_read ? Step::kAll : Step::kNone;
}

std::optional<int> PlainText::most_counted(const Thread& thread, int most) const {
  if (!automaton_->counts(thread.state)) return most;
  const auto less = [this](std::int32_t a, std::int32_t b) {
    return automaton_->num_missing(a) < automaton_->num_missing(b);
  };
  const auto [least, greatest] = std::minmax_element(states_.begin(), states_.end(), less);
  const std::int32_t left = automaton_->counter(thread.state).max - thread.count;
  const std::int32_t low = left - automaton_->num_missing(*greatest);
  const std::int32_t high = left - automaton_->num_missing(*least);
  if (low != high && low < most) return std::nullopt;
  return std::clamp(low, 0, most);
}

std::optional<int> PlainText::most_characters(const Thread& thread, int most) {
  if (!is_inside(thread.state)) return std::nullopt;
  states_.assign(1, thread.state);
  for (int length = 0; length < most; ++length) {
    const Step step = this->step();
    if (step == Step::kSome) return std::nullopt;
    if (step == Step::kNone) return length;
    const bool is_loop = next_ == states_;
    std::swap(states_, next_);
    const std::optional<int> counted = most_counted(thread, most);
    if (!counted || *counted <= length) return counted ? std::optional(length) : std::nullopt;
    if (is_loop) return counted;
  }
  return most;
}

}  // namespace tandem::grammar
