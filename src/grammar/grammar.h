#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/grammar/automaton.h"
#include "tandem/grammar/plain_text.h"
#include "tandem/grammar/pushdown.h"
#include "tandem/grammar/token_trie.h"

namespace tandem::grammar {

/// Walks configurations down the trie of tokens. Scratch, reused from walk to walk. Thread: one.
class TrieWalker {
 public:
  /// Calls on_token(id) for the tokens below `node` whose bytes from there on `start` can read, and
  /// on_left(node) where it has left its open stack. False when `pushdown` has done more than
  /// max_work before the end. Nodes that the walk pushes are forgotten.
  template <typename OnToken, typename OnLeft>
  bool walk(const TokenTrie& trie, std::int32_t node, const Configuration& start,
            Pushdown& pushdown, std::uint64_t max_work, OnToken on_token, OnLeft on_left);

 private:
  static constexpr std::int32_t kNotLone = -2;
  struct Lone {
    std::int32_t state = kNotLone;
    std::int32_t count = 0;
  };

  /// Sets level 0 to `start`; the number of nodes of the pushdown.
  std::size_t begin(const TokenTrie& trie, std::size_t first_depth, const Configuration& start,
                    const Pushdown& pushdown);
  /// The next state where the level above is one thread in the start's stack and stays so: nearly
  /// all steps of a large walk. -1: no such byte; kNotLone: levels_[level - 1] is to be advanced.
  std::int32_t step_lone(const Automaton& automaton, std::size_t level, std::uint8_t byte);

  friend class Grammar;

  std::vector<Configuration> levels_;  // by depth below the start
  std::vector<std::uint32_t> bits_;    // of a mask in the making
  std::vector<Lone> lone_;             // the only thread, or kNotLone: see levels_
  std::int32_t lone_stack_ = 0;
  std::size_t lone_nodes_ = 0;
};

inline std::int32_t TrieWalker::step_lone(const Automaton& automaton, std::size_t level,
                                          std::uint8_t byte) {
  lone_[level].state = kNotLone;
  const auto [state, count] = lone_[level - 1];
  if (state == kNotLone) return kNotLone;
  if (!automaton.has_calls(state)) {
    const std::int32_t next = automaton.next(state, automaton.class_of(byte));
    if (next < 0) return -1;
    if (!automaton.accepts(next) && !automaton.only_calls(next)) {
      const std::int32_t next_count = automaton.count_after(state, next, count);
      if (next_count < 0) return -1;
      lone_[level] = {next, next_count};
      return next;
    }
  }
  Configuration& above = levels_[level - 1];
  above.clear();
  above.threads.push_back({state, lone_stack_, count});
  above.num_nodes = lone_nodes_;
  return kNotLone;
}

/// What may follow in one state, and with so many parts counted, whatever called its rule: computed
/// once, by a walk over all tokens.
struct StateMask {
  int most_plain = 0;               ///< plain tokens of at most so many characters, too
  const TokenTrie* trie = nullptr;  ///< of `exits`: the whole one, or that of the rest
  std::vector<std::uint32_t> bits;  ///< of tokens, as fill_mask() has them; empty: `tokens` instead
  std::vector<TokenId> tokens;      ///< if they are few
  std::vector<std::int32_t> exits;  ///< nodes of the trie whose bytes may end the rule

  std::size_t bytes() const { return 4 * (bits.size() + tokens.size() + exits.size()) + 64; }
};

/// A compiled grammar over a vocabulary, shared by the requests that use it. Its text ends with one
/// of the vocabulary's end tokens. Immutable but for the cache of masks. Thread: any.
class Grammar {
 public:
  /// kInvalidArgument: see Automaton::compile. Masks that take long are made at once, within a
  /// bounded time.
  static core::Result<std::shared_ptr<const Grammar>> create(const RuleSet& rules,
                                                             std::shared_ptr<const TokenTrie> trie,
                                                             std::vector<TokenId> ends);

  const Automaton& automaton() const { return automaton_; }
  const TokenTrie& trie() const { return *trie_; }
  std::span<const TokenId> ends() const { return ends_; }
  /// Words of a mask over the vocabulary.
  std::size_t mask_words() const {
    return (static_cast<std::size_t>(trie_->vocab_size()) + 31) / 32;
  }

  /// The mask of the thread's state and count, from the cache or made now at the cost of some of
  /// `work_left`; null if that is not enough.
  std::shared_ptr<const StateMask> mask_of(const Thread& thread, TrieWalker& walker,
                                           std::uint64_t& work_left) const;

  /// Memory of automaton and masks, about.
  std::size_t bytes() const;

 private:
  Grammar(Automaton automaton, std::shared_ptr<const TokenTrie> trie, std::vector<TokenId> ends);
  /// What tells masks apart: the state and, where it counts, how many parts at least and at most
  /// may follow, as far as a token can tell.
  std::uint64_t mask_key(const Thread& thread) const;
  std::shared_ptr<const StateMask> make_mask(const Thread& thread, TrieWalker& walker,
                                             std::uint64_t& work_left) const;
  void keep(std::uint64_t key, std::shared_ptr<const StateMask> mask) const;
  /// Nodes of the trie that a walk from the state could visit, by the first two bytes.
  std::uint64_t most_work(std::int32_t state) const;
  /// States whose masks take long, those first that a text meets first.
  std::vector<std::int32_t> slow_states() const;
  /// As PlainText has it, for the vocabulary's plain tokens.
  std::optional<int> most_plain(const Thread& thread) const;
  /// Lets states that no token tells apart share a mask, where that pays.
  void share_masks(std::size_t num_slow);

  Automaton automaton_;
  std::shared_ptr<const TokenTrie> trie_;  // shared by all grammars of the vocabulary
  std::vector<TokenId> ends_;
  std::vector<std::int32_t> mask_state_;  // by state: the one that it shares its mask with

  mutable std::mutex mutex_;
  // By key; shared with readers.
  mutable std::unordered_map<std::uint64_t, std::shared_ptr<const StateMask>> masks_;
  mutable std::size_t mask_bytes_ = 0;
};

template <typename OnToken, typename OnLeft>
bool TrieWalker::walk(const TokenTrie& trie, std::int32_t node, const Configuration& start,
                      Pushdown& pushdown, std::uint64_t max_work, OnToken on_token,
                      OnLeft on_left) {
  const auto nodes = trie.nodes();
  const std::size_t first_depth = nodes[static_cast<std::size_t>(node)].depth;
  const std::size_t end = static_cast<std::size_t>(nodes[static_cast<std::size_t>(node)].end);
  const std::size_t num_nodes = begin(trie, first_depth, start, pushdown);
  const Automaton& automaton = pushdown.automaton();
  const std::uint64_t work_end = pushdown.work() + max_work;
  for (std::size_t i = static_cast<std::size_t>(node) + 1; i < end;) {
    const TokenTrie::Node& at = nodes[i];
    const std::size_t level = at.depth - first_depth;
    pushdown.add_work(1);
    if (pushdown.work() > work_end) break;
    bool has_left = false, goes_on = true;
    const std::int32_t next = step_lone(automaton, level, at.byte);
    if (next == kNotLone) {
      Configuration& above = levels_[level - 1];
      pushdown.truncate(above.num_nodes);
      pushdown.advance(above, at.byte, levels_[level]);
      goes_on = !levels_[level].is_dead();
      has_left = levels_[level].has_left;
    } else {
      goes_on = next >= 0;
    }
    if (!goes_on) {
      i = static_cast<std::size_t>(at.end);
      continue;
    }
    for (TokenId token = at.token; token >= 0; token = trie.next_same(token)) on_token(token);
    if (has_left) on_left(static_cast<std::int32_t>(i));
    ++i;
  }
  pushdown.truncate(num_nodes);
  return pushdown.work() <= work_end;
}

}  // namespace tandem::grammar
