#include "tandem/grammar/automaton.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>

#include "tandem/grammar/nfa.h"

namespace tandem::grammar {
namespace {

constexpr std::size_t kMaxStates = 50'000;
constexpr std::size_t kMaxTable = 8'000'000;  // entries
constexpr std::size_t kMaxWork = 30'000'000;  // members of the sets that the construction visits

using StateSet = std::vector<std::int32_t>;  // sorted

struct SetHash {
  std::size_t operator()(const StateSet& set) const {
    std::uint64_t h = set.size();
    for (const std::int32_t state : set) {
      h = (h ^ static_cast<std::uint64_t>(state)) * 0x9E3779B97F4A7C15U;
      h ^= h >> 32;
    }
    return static_cast<std::size_t>(h);
  }
};

core::Status too_complex() {
  return core::invalid_argument(
      "the grammar is too complex to compile; use fewer or simpler patterns and repetitions");
}

}  // namespace

/// Subset construction, rule by rule, then what follows from the whole.
class AutomatonBuilder {
 public:
  AutomatonBuilder(const RuleSet& rules, const Nfa& nfa) : rules_(rules), nfa_(nfa) {
    out_.root_ = rules.root();
    mark_.resize(nfa.states.size());
    make_classes();
  }

  core::Result<Automaton> build() {
    for (RuleId rule = 0; rule < rules_.num_rules(); ++rule) TANDEM_TRY(build_rule(rule));
    merge_equal_states();
    remove_dead_states();
    if (!is_live_[static_cast<std::size_t>(out_.root_start())]) {
      return core::invalid_argument("no text matches the grammar");
    }
    flatten();
    count_missing();
    TANDEM_TRY(find_firsts());
    return std::move(out_);
  }

 private:
  /// A state under construction.
  struct Draft {
    std::vector<Automaton::Call> calls;
    std::vector<Automaton::TokenEdge> tokens;
    bool accepts = false;
    std::int32_t counter = -1;
    bool is_between_parts = false;

    bool operator==(const Draft&) const = default;
  };

  void make_classes() {
    std::array<bool, 257> is_border = {};
    for (const Nfa::State& state : nfa_.states) {
      for (const Nfa::Edge& edge : state.edges) {
        if (edge.kind != Nfa::Edge::Kind::kBytes) continue;
        is_border[edge.first] = true;
        is_border[std::size_t{edge.last} + 1] = true;
      }
    }
    std::size_t current = 0;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      if (byte > 0 && is_border[byte]) ++current;
      out_.classes_[byte] = static_cast<std::uint8_t>(current);
    }
    out_.num_classes_ = current + 1;
  }

  /// The sorted closure of `set` under edges that read nothing.
  void close(StateSet& set) {
    ++epoch_;
    std::size_t kept = 0;
    for (const std::int32_t state : set) {
      if (std::exchange(mark_[static_cast<std::size_t>(state)], epoch_) != epoch_) {
        set[kept++] = state;
      }
    }
    set.resize(kept);
    for (std::size_t i = 0; i < set.size(); ++i) {
      for (const std::int32_t target : nfa_.states[static_cast<std::size_t>(set[i])].skips) {
        if (std::exchange(mark_[static_cast<std::size_t>(target)], epoch_) != epoch_) {
          set.push_back(target);
        }
        ++work_;
      }
    }
    std::sort(set.begin(), set.end());
    work_ += set.size();
  }

  /// The state of a closed set, new if there is none.
  std::int32_t state_of(StateSet set) {
    close(set);
    const auto [it, is_new] = known_.try_emplace(std::move(set), num_states());
    if (is_new) {
      drafts_.emplace_back();
      out_.table_.resize(out_.table_.size() + out_.num_classes_, -1);
      todo_.push_back(&it->first);
    }
    return it->second;
  }

  std::int32_t num_states() const { return static_cast<std::int32_t>(drafts_.size()); }

  core::Status build_rule(RuleId rule) {
    known_.clear();
    todo_.clear();
    const auto r = static_cast<std::size_t>(rule);
    out_.starts_.push_back(state_of({nfa_.starts[r]}));
    const std::int32_t first = out_.starts_.back();
    const std::int32_t counter = counter_of(rules_.count(rule));
    for (std::size_t i = 0; i < todo_.size(); ++i) {
      expand(first + static_cast<std::int32_t>(i), *todo_[i], nfa_.ends[r]);
      if (drafts_.size() > kMaxStates || out_.table_.size() > kMaxTable || work_ > kMaxWork) {
        return too_complex();
      }
      Draft& draft = drafts_[static_cast<std::size_t>(first) + i];
      if (counter < 0 || draft.accepts) continue;
      draft.counter = counter;
      draft.is_between_parts =
          std::any_of(todo_[i]->begin(), todo_[i]->end(), [this](std::int32_t state) {
            return nfa_.states[static_cast<std::size_t>(state)].is_between_parts;
          });
    }
    return {};
  }

  /// -1: the rule does not count.
  std::int32_t counter_of(const RuleSet::Count& count) {
    if (count.graph < 0) return -1;
    constexpr std::int32_t kEndless = std::numeric_limits<std::int32_t>::max();
    const Automaton::Counter counter = {count.min, count.max == kUnbounded ? kEndless : count.max};
    auto& all = out_.counters_;
    const auto known = std::find(all.begin(), all.end(), counter);
    if (known == all.end()) all.push_back(counter);
    return static_cast<std::int32_t>(std::find(all.begin(), all.end(), counter) - all.begin());
  }

  void expand(std::int32_t state, const StateSet& set, std::int32_t end) {
    std::map<RuleId, StateSet> calls;
    std::map<TokenId, StateSet> tokens;
    std::vector<Nfa::Edge> edges;
    bool accepts = false;
    for (const std::int32_t member : set) {
      accepts |= member == end;
      for (const Nfa::Edge& edge : nfa_.states[static_cast<std::size_t>(member)].edges) {
        if (edge.kind == Nfa::Edge::Kind::kBytes) {
          edges.push_back(edge);
        } else {
          (edge.kind == Nfa::Edge::Kind::kRule ? calls : tokens)[edge.label].push_back(edge.target);
        }
      }
    }
    work_ += edges.size();
    add_bytes(state, edges);
    Draft draft;
    draft.accepts = accepts;
    for (auto& [rule, targets] : calls) {
      draft.calls.push_back({rule, state_of(std::move(targets))});
    }
    for (auto& [token, targets] : tokens) {
      draft.tokens.push_back({token, state_of(std::move(targets))});
    }
    drafts_[static_cast<std::size_t>(state)] = std::move(draft);
  }

  void add_bytes(std::int32_t state, const std::vector<Nfa::Edge>& edges) {
    if (edges.empty()) return;
    targets_.resize(out_.num_classes_);
    for (const Nfa::Edge& edge : edges) {
      const std::uint8_t last = out_.classes_[edge.last];
      for (std::size_t c = out_.classes_[edge.first]; c <= last; ++c) {
        targets_[c].push_back(edge.target);
        ++work_;
      }
    }
    const std::size_t row = static_cast<std::size_t>(state) * out_.num_classes_;
    for (std::size_t c = 0; c < out_.num_classes_; ++c) {
      if (targets_[c].empty()) continue;
      const bool is_same = c > 0 && last_targets_ == targets_[c] && out_.table_[row + c - 1] >= 0;
      if (is_same) {
        out_.table_[row + c] = out_.table_[row + c - 1];
      } else {
        last_targets_ = targets_[c];
        const std::int32_t target = state_of(targets_[c]);
        out_.table_[row + c] = target;  // state_of() may have moved the table
      }
      targets_[c].clear();
    }
    last_targets_.clear();
  }

  /// States that go on alike are one, whichever rules they are of; repeated, since that may make
  /// others alike. Not the smallest automaton, but a loop and the way into it become one, which
  /// saves the most: every state has a mask.
  void merge_equal_states() {
    constexpr int kMaxRounds = 16;
    for (int round = 0; round < kMaxRounds; ++round) {
      std::vector<std::int32_t> names(drafts_.size());
      std::unordered_multimap<std::uint64_t, std::int32_t> seen;
      std::int32_t num_kept = 0;
      for (std::int32_t s = 0; s < num_states(); ++s) {
        const auto [begin, end] = seen.equal_range(hash_of(s));
        const auto same =
            std::find_if(begin, end, [&](const auto& other) { return are_equal(other.second, s); });
        if (same != end) {
          names[static_cast<std::size_t>(s)] = names[static_cast<std::size_t>(same->second)];
        } else {
          seen.emplace(hash_of(s), s);
          names[static_cast<std::size_t>(s)] = num_kept++;
        }
      }
      if (num_kept == num_states()) return;
      rename(names, num_kept);
    }
  }

  std::span<const std::int32_t> row(std::int32_t state) const {
    return std::span(out_.table_)
        .subspan(static_cast<std::size_t>(state) * out_.num_classes_, out_.num_classes_);
  }
  std::uint64_t hash_of(std::int32_t state) const {
    const Draft& draft = drafts_[static_cast<std::size_t>(state)];
    std::uint64_t h = draft.accepts ? 1 : 2;
    const auto mix = [&h](std::int32_t value) {
      h = (h ^ static_cast<std::uint32_t>(value)) * 0x9E3779B97F4A7C15U;
      h ^= h >> 32;
    };
    for (const std::int32_t target : row(state)) mix(target);
    for (const auto& call : draft.calls) mix(call.target ^ (call.rule << 16));
    for (const auto& edge : draft.tokens) mix(edge.target ^ (edge.token << 12));
    return h;
  }
  bool are_equal(std::int32_t a, std::int32_t b) const {
    return drafts_[static_cast<std::size_t>(a)] == drafts_[static_cast<std::size_t>(b)] &&
           std::ranges::equal(row(a), row(b));
  }

  /// Keeps the first state of each name and names all targets anew.
  void rename(const std::vector<std::int32_t>& names, std::int32_t num_kept) {
    const auto renamed = [&names](std::int32_t state) {
      return state < 0 ? state : names[static_cast<std::size_t>(state)];
    };
    std::int32_t next = 0;
    for (std::int32_t s = 0; s < num_states(); ++s) {
      if (names[static_cast<std::size_t>(s)] != next) continue;
      const std::size_t from = static_cast<std::size_t>(s) * out_.num_classes_;
      const std::size_t to = static_cast<std::size_t>(next) * out_.num_classes_;
      for (std::size_t c = 0; c < out_.num_classes_; ++c) {
        out_.table_[to + c] = renamed(out_.table_[from + c]);
      }
      if (s != next) {
        drafts_[static_cast<std::size_t>(next)] = std::move(drafts_[static_cast<std::size_t>(s)]);
      }
      Draft& draft = drafts_[static_cast<std::size_t>(next++)];
      for (auto& call : draft.calls) call.target = renamed(call.target);
      for (auto& edge : draft.tokens) edge.target = renamed(edge.target);
    }
    drafts_.resize(static_cast<std::size_t>(num_kept));
    out_.table_.resize(static_cast<std::size_t>(num_kept) * out_.num_classes_);
    for (std::int32_t& start : out_.starts_) start = renamed(start);
  }

  /// A state from which its rule's end cannot be reached is no state to be in.
  void remove_dead_states() {
    const auto n = drafts_.size();
    std::vector<std::vector<std::int32_t>> sources(n);
    const auto link = [&](std::size_t from, std::int32_t to) {
      if (to >= 0) sources[static_cast<std::size_t>(to)].push_back(static_cast<std::int32_t>(from));
    };
    std::vector<std::int32_t> live;
    is_live_.assign(n, false);
    for (std::size_t s = 0; s < n; ++s) {
      for (std::size_t c = 0; c < out_.num_classes_; ++c) {
        const std::int32_t target = out_.table_[s * out_.num_classes_ + c];
        if (c == 0 || target != out_.table_[s * out_.num_classes_ + c - 1]) link(s, target);
      }
      for (const auto& call : drafts_[s].calls) link(s, call.target);
      for (const auto& edge : drafts_[s].tokens) link(s, edge.target);
      if (drafts_[s].accepts) live.push_back(static_cast<std::int32_t>(s));
    }
    for (const std::int32_t s : live) is_live_[static_cast<std::size_t>(s)] = true;
    for (std::size_t i = 0; i < live.size(); ++i) {
      for (const std::int32_t source : sources[static_cast<std::size_t>(live[i])]) {
        if (is_live_[static_cast<std::size_t>(source)]) continue;
        is_live_[static_cast<std::size_t>(source)] = true;
        live.push_back(source);
      }
    }
    for (std::int32_t& target : out_.table_) {
      if (target >= 0 && !is_live_[static_cast<std::size_t>(target)]) target = -1;
    }
    const auto is_dead = [this](const auto& edge) {
      return !is_live_[static_cast<std::size_t>(edge.target)];
    };
    for (Draft& draft : drafts_) {
      std::erase_if(draft.calls, is_dead);
      std::erase_if(draft.tokens, is_dead);
    }
  }

  void flatten() {
    for (std::size_t s = 0; s < drafts_.size(); ++s) {
      const Draft& draft = drafts_[s];
      Automaton::State state;
      state.first_call = static_cast<std::uint32_t>(out_.calls_.size());
      state.num_calls = static_cast<std::uint32_t>(draft.calls.size());
      state.first_token = static_cast<std::uint32_t>(out_.tokens_.size());
      state.num_tokens = static_cast<std::uint32_t>(draft.tokens.size());
      const auto row = out_.table_.begin() + static_cast<std::ptrdiff_t>(s * out_.num_classes_);
      const bool reads_bytes =
          std::any_of(row, row + static_cast<std::ptrdiff_t>(out_.num_classes_),
                      [](std::int32_t target) { return target >= 0; });
      const bool is_plain = !reads_bytes && draft.tokens.empty();
      std::uint8_t flags = 0;
      state.counter = draft.counter;
      if (draft.counter >= 0) flags |= Automaton::kCounts;
      if (draft.is_between_parts) flags |= Automaton::kBetweenParts;
      if (!draft.calls.empty()) flags |= Automaton::kCalls;
      if (draft.accepts) flags |= Automaton::kAccepts;
      if (draft.accepts && is_plain && draft.calls.empty()) flags |= Automaton::kFinal;
      if (!draft.accepts && is_plain && draft.calls.size() == 1) flags |= Automaton::kOnlyCalls;
      out_.flags_.push_back(flags);
      out_.calls_.insert(out_.calls_.end(), draft.calls.begin(), draft.calls.end());
      out_.tokens_.insert(out_.tokens_.end(), draft.tokens.begin(), draft.tokens.end());
      out_.states_.push_back(state);
    }
  }

  /// How many parts must still come before the mark may: breadth first, from the marks back.
  void count_missing() {
    if (out_.counters_.empty()) return;
    constexpr std::int32_t kUnknown = std::numeric_limits<std::int32_t>::max();
    std::vector<std::int32_t> missing(out_.states_.size(), kUnknown);
    std::vector<std::vector<std::int32_t>> sources(out_.states_.size());
    std::deque<std::int32_t> todo;
    const auto link = [&](std::int32_t from, std::int32_t to) {
      if (to < 0) return;
      if (!out_.accepts(to)) {
        sources[static_cast<std::size_t>(to)].push_back(from);
      } else if (std::exchange(missing[static_cast<std::size_t>(from)], 0) != 0) {
        todo.push_back(from);
      }
    };
    for (std::int32_t s = 0; s < out_.num_states(); ++s) {
      if (!out_.counts(s)) continue;
      for (std::size_t c = 0; c < out_.num_classes_; ++c) {
        link(s, out_.next(s, static_cast<std::uint8_t>(c)));
      }
      for (const Automaton::TokenEdge& edge : out_.tokens(s)) link(s, edge.target);
    }
    while (!todo.empty()) {
      const auto at = static_cast<std::size_t>(todo.front());
      todo.pop_front();
      const bool is_part = (out_.flags_[at] & Automaton::kBetweenParts) != 0;
      for (const std::int32_t source : sources[at]) {
        const std::int32_t through = missing[at] + (is_part ? 1 : 0);
        if (through >= missing[static_cast<std::size_t>(source)]) continue;
        missing[static_cast<std::size_t>(source)] = through;
        is_part ? todo.push_back(source) : todo.push_front(source);
      }
    }
    for (std::size_t s = 0; s < missing.size(); ++s) {
      if (missing[s] == kUnknown) continue;
      out_.states_[s].num_missing = missing[s];
      out_.most_missing_ = std::max(out_.most_missing_, missing[s]);
    }
  }

  /// Classes that may come next, callees first: rules whose start calls no rule, then those that
  /// only call these. What is left calls itself before it has read something.
  core::Status find_firsts() {
    const auto num_rules = static_cast<std::size_t>(rules_.num_rules());
    std::vector<std::vector<RuleId>> callers(num_rules);
    std::vector<std::size_t> num_open(num_rules);
    std::vector<RuleId> ready;
    for (std::size_t r = 0; r < num_rules; ++r) {
      for (const Automaton::Call& call : out_.calls(out_.starts_[r])) {
        callers[static_cast<std::size_t>(call.rule)].push_back(static_cast<RuleId>(r));
        ++num_open[r];
      }
      if (num_open[r] == 0) ready.push_back(static_cast<RuleId>(r));
    }
    out_.firsts_.resize(out_.states_.size());
    for (std::size_t i = 0; i < ready.size(); ++i) {
      find_first(out_.start(ready[i]));
      for (const RuleId caller : callers[static_cast<std::size_t>(ready[i])]) {
        if (--num_open[static_cast<std::size_t>(caller)] == 0) ready.push_back(caller);
      }
    }
    if (ready.size() < num_rules) {
      const auto open =
          std::find_if(num_open.begin(), num_open.end(), [](std::size_t n) { return n > 0; });
      return core::invalid_argument(fmt::format(
          "rule \"{}\" is left-recursive: it begins with itself or with a rule that does; write "
          "the repetition with *",
          rules_.name(static_cast<RuleId>(open - num_open.begin()))));
    }
    for (std::int32_t s = 0; s < out_.num_states(); ++s) find_first(s);
    return {};
  }

  void find_first(std::int32_t state) {
    ClassSet& first = out_.firsts_[static_cast<std::size_t>(state)];
    for (std::size_t c = 0; c < out_.num_classes_; ++c) {
      if (out_.next(state, static_cast<std::uint8_t>(c)) >= 0) first.set(c);
    }
    for (const Automaton::Call& call : out_.calls(state))
      first |= out_.first(out_.start(call.rule));
  }

  const RuleSet& rules_;
  const Nfa& nfa_;
  Automaton out_;
  std::vector<Draft> drafts_;
  std::vector<bool> is_live_;
  std::unordered_map<StateSet, std::int32_t, SetHash> known_;  // of the rule; nodes do not move
  std::vector<const StateSet*> todo_;
  std::vector<StateSet> targets_;  // by class, of the state being expanded
  StateSet last_targets_;
  std::vector<std::uint64_t> mark_;  // by state of the NFA: the last closure that holds it
  std::uint64_t epoch_ = 0;
  std::size_t work_ = 0;
};

core::Result<Automaton> Automaton::compile(const RuleSet& rules) {
  TANDEM_ASSIGN(const Nfa nfa, Nfa::build(rules, analyze(rules)));
  return AutomatonBuilder(rules, nfa).build();
}

}  // namespace tandem::grammar
