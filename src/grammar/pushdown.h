#pragma once

#include <cstdint>
#include <vector>

#include "tandem/core/units.h"
#include "tandem/grammar/automaton.h"

namespace tandem::grammar {

/// Ends of a stack of return states: the root rule's caller, and the unknown callers of a state
/// that is looked at by itself.
inline constexpr std::int32_t kRootStack = -1;
inline constexpr std::int32_t kOpenStack = -2;

/// One way to read the text so far: a state and the states to return to, the innermost first.
struct Thread {
  std::int32_t state = 0;
  std::int32_t stack = kRootStack;
  std::int32_t count = 0;  ///< of parts, in a rule that counts them
};

/// All ways to read the text so far.
struct Configuration {
  std::vector<Thread> threads;
  bool is_complete = false;   ///< the text may end here
  bool has_left = false;      ///< a thread has left its open stack
  std::size_t num_nodes = 0;  ///< of the pushdown's stacks, when it was made

  bool is_dead() const { return threads.empty() && !is_complete && !has_left; }
  void clear() {
    threads.clear();
    is_complete = has_left = false;
  }
};

/// Moves configurations of an automaton over bytes and tokens. Stacks are linked lists that share
/// their tails. Bounded for any grammar: the number of threads, the depth of a stack and the work
/// of a move are, at the price of threads that are given up, so that an ambiguous grammar allows
/// less than it says and never more. A value: copies are independent. Thread: one.
class Pushdown {
 public:
  static constexpr int kMaxDepth = 512;
  static constexpr std::size_t kMaxThreads = 64;

  /// `automaton` must outlive the pushdown.
  explicit Pushdown(const Automaton& automaton) : automaton_(&automaton) {}

  /// Before the first byte.
  void begin(Configuration& to);
  /// After one more byte. `to` must not be `from`.
  void advance(const Configuration& from, std::uint8_t byte, Configuration& to);
  /// Adds to `to` what follows `from` when `token` is taken as itself.
  void take_token(const Configuration& from, TokenId token, Configuration& to);
  /// Appends the tokens that may be taken as themselves.
  void list_tokens(const Configuration& from, std::vector<TokenId>& tokens);
  /// Where a thread goes on once its rule has ended.
  void leave(const Thread& thread, Configuration& to);

  std::size_t num_nodes() const { return nodes_.size(); }
  /// Forgets all but the first `size` nodes: those that `configuration.num_nodes` named.
  void truncate(std::size_t size) { nodes_.resize(size); }
  /// Forgets what no thread of `live` uses.
  void compact(Configuration& live);
  /// Moves of threads so far: a measure of time.
  std::uint64_t work() const { return work_; }
  void add_work(std::uint64_t work) { work_ += work; }
  const Automaton& automaton() const { return *automaton_; }

 private:
  struct Node {
    std::int32_t state = 0;  // to return to
    std::int32_t parent = 0;
    std::int32_t depth = 0;
    std::uint64_t hash = 0;  // of the whole stack
  };

  const Node& node(std::int32_t stack) const { return nodes_[static_cast<std::size_t>(stack)]; }
  /// The stack with a state on top; false if it would be too deep.
  bool push(std::int32_t state, std::int32_t& stack);
  bool is_same(std::int32_t a, std::int32_t b) const;
  void arrive(std::int32_t state, std::int32_t stack, std::int32_t count, Configuration& to);
  /// Arrives at `next` within the thread's rule, if its count allows that.
  void go_on(const Thread& thread, std::int32_t next, Configuration& to);
  /// Calls `visit` for the thread and for every thread that a call may make of it where `may_call`
  /// holds of the called rule's start.
  template <typename MayCall, typename Visit>
  void expand(const Thread& thread, MayCall may_call, Visit visit);

  const Automaton* automaton_;
  std::vector<Node> nodes_;
  std::vector<Thread> todo_;
  std::uint64_t work_ = 0;
};

}  // namespace tandem::grammar
