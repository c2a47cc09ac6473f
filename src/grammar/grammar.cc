#include "tandem/grammar/grammar.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace tandem::grammar {
namespace {

constexpr std::uint64_t kWarmUpWork = 5'000'000;    // of the masks made at once
constexpr std::size_t kManySlow = 8;                // slow states worth looking for alike ones
constexpr std::size_t kMaxSharedTable = 1'000'000;  // entries of the automaton, else it takes long
constexpr std::uint64_t kSlowWork = 50'000;         // masks of less are made when they are needed
constexpr std::size_t kMaxMaskBytes = 8U << 20;     // kept per grammar

}  // namespace

std::size_t TrieWalker::begin(const TokenTrie& trie, std::size_t first_depth,
                              const Configuration& start, const Pushdown& pushdown) {
  const std::size_t num_levels = static_cast<std::size_t>(trie.max_depth()) - first_depth + 1;
  if (levels_.size() < num_levels) levels_.resize(num_levels);
  if (lone_.size() < num_levels) lone_.resize(num_levels);
  const std::size_t num_nodes = pushdown.num_nodes();
  levels_[0] = start;
  levels_[0].num_nodes = num_nodes;
  const bool is_lone = start.threads.size() == 1 && !start.is_complete && !start.has_left;
  lone_[0] = is_lone ? Lone{start.threads[0].state, start.threads[0].count} : Lone{};
  lone_stack_ = is_lone ? start.threads[0].stack : 0;
  lone_nodes_ = num_nodes;
  return num_nodes;
}

Grammar::Grammar(Automaton automaton, std::shared_ptr<const TokenTrie> trie,
                 std::vector<TokenId> ends)
    : automaton_(std::move(automaton)), trie_(std::move(trie)), ends_(std::move(ends)) {}

core::Result<std::shared_ptr<const Grammar>> Grammar::create(const RuleSet& rules,
                                                             std::shared_ptr<const TokenTrie> trie,
                                                             std::vector<TokenId> ends) {
  TANDEM_ASSIGN(Automaton automaton, Automaton::compile(rules));
  std::shared_ptr<Grammar> grammar(
      new Grammar(std::move(automaton), std::move(trie), std::move(ends)));
  const std::vector<std::int32_t> slow = grammar->slow_states();
  grammar->share_masks(slow.size());
  TrieWalker walker;
  std::uint64_t work_left = kWarmUpWork;
  for (const std::int32_t state : slow) {
    if (work_left == 0) break;
    grammar->mask_of({state, kOpenStack, 0}, walker, work_left);
  }
  return std::shared_ptr<const Grammar>(std::move(grammar));
}

std::uint64_t Grammar::mask_key(const Thread& thread) const {
  const auto state =
      static_cast<std::uint64_t>(mask_state_[static_cast<std::size_t>(thread.state)]);
  if (!automaton_.counts(thread.state)) return state;
  const Automaton::Counter& counter = automaton_.counter(thread.state);
  const auto told = [&](std::int32_t limit) {
    const std::int32_t most = trie_->max_depth() + 1 + automaton_.most_missing();
    const std::int32_t left = std::clamp(limit - thread.count, 0, most);
    return static_cast<std::uint64_t>(left) + 1;
  };
  return told(counter.max) << 48 | told(counter.min) << 32 | state;
}

std::shared_ptr<const StateMask> Grammar::make_mask(const Thread& thread, TrieWalker& walker,
                                                    std::uint64_t& work_left) const {
  Pushdown pushdown(automaton_);
  Configuration start;
  start.threads.push_back({thread.state, kOpenStack, thread.count});
  auto mask = std::make_shared<StateMask>();
  const std::optional<int> plain = most_plain(thread);
  mask->most_plain = plain.value_or(0);
  mask->trie = plain ? &trie_->rest() : trie_.get();
  std::vector<std::uint32_t>& bits = walker.bits_;
  bits.assign(mask_words(), 0U);
  std::size_t num_tokens = 0;
  const auto add = [&](TokenId token) {
    bits[static_cast<std::size_t>(token) / 32] |= 1U << (token % 32);
    ++num_tokens;
  };
  std::vector<TokenId> special;
  pushdown.list_tokens(start, special);
  pushdown.truncate(0);
  for (const TokenId token : special) add(token);
  const bool is_whole =
      walker.walk(*mask->trie, 0, start, pushdown, work_left, add, [&](std::int32_t node) {
        const TokenTrie::Node& at = mask->trie->nodes()[static_cast<std::size_t>(node)];
        if (at.end > node + 1) mask->exits.push_back(node);
      });
  work_left -= std::min(work_left, pushdown.work());
  if (!is_whole) return nullptr;
  if (num_tokens > mask_words()) {  // a list would be larger than the bits
    mask->bits = bits;
    return mask;
  }
  for (std::size_t word = 0; word < bits.size(); ++word) {
    for (std::uint32_t rest = bits[word]; rest != 0; rest &= rest - 1) {
      mask->tokens.push_back(static_cast<TokenId>(word * 32) + std::countr_zero(rest));
    }
  }
  return mask;
}

void Grammar::keep(std::uint64_t key, std::shared_ptr<const StateMask> mask) const {
  const std::lock_guard lock(mutex_);
  if (mask_bytes_ + mask->bytes() > kMaxMaskBytes) {
    masks_.clear();
    mask_bytes_ = 0;
  }
  mask_bytes_ += mask->bytes();
  masks_[key] = std::move(mask);
}

std::shared_ptr<const StateMask> Grammar::mask_of(const Thread& thread, TrieWalker& walker,
                                                  std::uint64_t& work_left) const {
  const std::uint64_t key = mask_key(thread);
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = masks_.find(key); known != masks_.end()) return known->second;
  }
  auto mask = make_mask(thread, walker, work_left);
  if (mask != nullptr) keep(key, mask);
  return mask;
}

std::uint64_t Grammar::most_work(std::int32_t state) const {
  std::uint64_t work = 0;
  const auto nodes = trie_->nodes();
  const auto below = [&](std::size_t node, std::int32_t from, auto visit) {
    const auto end = static_cast<std::size_t>(nodes[node].end);
    for (std::size_t i = node + 1; i < end; i = static_cast<std::size_t>(nodes[i].end)) {
      if (automaton_.first(from).test(automaton_.class_of(nodes[i].byte))) visit(i);
    }
  };
  const auto count = [&](std::size_t node) {
    work += static_cast<std::uint64_t>(nodes[node].end) - node;
  };
  below(0, state, [&](std::size_t node) {
    const std::int32_t next = automaton_.next(state, automaton_.class_of(nodes[node].byte));
    automaton_.has_calls(state) || next < 0 ? count(node) : below(node, next, count);
  });
  return work;
}

std::optional<int> Grammar::most_plain(const Thread& thread) const {
  return PlainText(automaton_).most_characters(thread, trie_->max_plain());
}

std::vector<std::int32_t> Grammar::slow_states() const {
  std::vector<std::int32_t> states = automaton_.reachable();
  // No text stops before a call that must come, see Pushdown::arrive().
  std::erase_if(states, [this](std::int32_t state) {
    return automaton_.only_calls(state) || most_work(state) < kSlowWork ||
           most_plain({state, kOpenStack, 0});
  });
  return states;
}

void Grammar::share_masks(std::size_t num_slow) {
  const auto num_states = static_cast<std::size_t>(automaton_.num_states());
  if (num_slow > kManySlow && num_states * automaton_.num_classes() <= kMaxSharedTable) {
    mask_state_ = automaton_.alike(trie_->max_depth());
    return;
  }
  mask_state_.resize(num_states);
  std::iota(mask_state_.begin(), mask_state_.end(), 0);
}

std::size_t Grammar::bytes() const {
  const std::lock_guard lock(mutex_);
  const auto states = static_cast<std::size_t>(automaton_.num_states());
  return mask_bytes_ + states * (automaton_.num_classes() * 4 + sizeof(ClassSet) + 32);
}

}  // namespace tandem::grammar
