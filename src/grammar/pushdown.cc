#include "tandem/grammar/pushdown.h"

#include <algorithm>

namespace tandem::grammar {
namespace {

/// Threads that one thread may become by calls before a byte: more are given up.
constexpr std::size_t kMaxExpansion = 256;

}  // namespace

bool Pushdown::push(std::int32_t state, std::int32_t& stack) {
  if (automaton_->is_final(state)) return true;  // a tail call returns to the caller's caller
  const int depth = stack < 0 ? 1 : node(stack).depth + 1;
  if (depth > kMaxDepth) return false;
  const std::uint64_t below = stack < 0 ? static_cast<std::uint64_t>(-stack) : node(stack).hash;
  std::uint64_t hash = (below ^ static_cast<std::uint64_t>(state)) * 0x9E3779B97F4A7C15U;
  hash ^= hash >> 29;
  nodes_.push_back({state, stack, depth, hash});
  stack = static_cast<std::int32_t>(nodes_.size()) - 1;
  return true;
}

bool Pushdown::is_same(std::int32_t a, std::int32_t b) const {
  while (a != b) {
    if (a < 0 || b < 0 || node(a).hash != node(b).hash || node(a).state != node(b).state) {
      return false;
    }
    a = node(a).parent;
    b = node(b).parent;
  }
  return true;
}

void Pushdown::go_on(const Thread& thread, std::int32_t next, Configuration& to) {
  const std::int32_t count = automaton_->count_after(thread.state, next, thread.count);
  if (count >= 0) arrive(next, thread.stack, count, to);
}

void Pushdown::arrive(std::int32_t state, std::int32_t stack, std::int32_t count,
                      Configuration& to) {
  for (;; count = 0) {  // rules that count call none
    ++work_;
    // To be before a call that must come is to be at the start of what is called: so that all
    // callers of a rule share its start's mask.
    while (automaton_->only_calls(state)) {
      const Automaton::Call& call = automaton_->calls(state)[0];
      if (!push(call.target, stack)) return;
      state = automaton_->start(call.rule);
    }
    if (!automaton_->is_final(state) && to.threads.size() < kMaxThreads) {
      const bool is_known =
          std::any_of(to.threads.begin(), to.threads.end(), [&](const Thread& thread) {
            return thread.state == state && thread.count == count && is_same(thread.stack, stack);
          });
      if (!is_known) to.threads.push_back({state, stack, count});
    }
    if (!automaton_->accepts(state)) return;
    if (stack == kRootStack) to.is_complete = true;
    if (stack == kOpenStack) to.has_left = true;
    if (stack < 0) return;
    state = node(stack).state;
    stack = node(stack).parent;
  }
}

template <typename MayCall, typename Visit>
void Pushdown::expand(const Thread& thread, MayCall may_call, Visit visit) {
  visit(thread);
  if (!automaton_->has_calls(thread.state)) return;
  todo_.assign(1, thread);
  for (std::size_t i = 0; i < todo_.size(); ++i) {
    const Thread caller = todo_[i];
    for (const Automaton::Call& call : automaton_->calls(caller.state)) {
      const std::int32_t start = automaton_->start(call.rule);
      ++work_;
      if (!may_call(start) || todo_.size() >= kMaxExpansion) continue;
      Thread callee = {start, caller.stack, 0};
      if (!push(call.target, callee.stack)) continue;
      todo_.push_back(callee);
      visit(callee);
    }
  }
}

void Pushdown::begin(Configuration& to) {
  to.clear();
  arrive(automaton_->root_start(), kRootStack, 0, to);
  to.num_nodes = nodes_.size();
}

void Pushdown::advance(const Configuration& from, std::uint8_t byte, Configuration& to) {
  to.clear();
  const std::uint8_t byte_class = automaton_->class_of(byte);
  const auto may_read = [&](std::int32_t state) {
    return automaton_->first(state).test(byte_class);
  };
  for (const Thread& thread : from.threads) {
    ++work_;
    if (!may_read(thread.state)) continue;
    expand(thread, may_read, [&](const Thread& t) {
      const std::int32_t next = automaton_->next(t.state, byte_class);
      if (next >= 0) go_on(t, next, to);
    });
  }
  to.num_nodes = nodes_.size();
}

void Pushdown::take_token(const Configuration& from, TokenId token, Configuration& to) {
  for (const Thread& thread : from.threads) {
    expand(
        thread, [](std::int32_t) { return true; },
        [&](const Thread& t) {
          for (const Automaton::TokenEdge& edge : automaton_->tokens(t.state)) {
            if (edge.token == token) go_on(t, edge.target, to);
          }
        });
  }
  to.num_nodes = nodes_.size();
}

void Pushdown::list_tokens(const Configuration& from, std::vector<TokenId>& tokens) {
  for (const Thread& thread : from.threads) {
    expand(
        thread, [](std::int32_t) { return true; },
        [&](const Thread& t) {
          for (const Automaton::TokenEdge& edge : automaton_->tokens(t.state)) {
            if (automaton_->count_after(t.state, edge.target, t.count) < 0) continue;
            tokens.push_back(edge.token);
          }
        });
  }
}

void Pushdown::leave(const Thread& thread, Configuration& to) {
  to.clear();
  if (thread.stack >= 0) arrive(node(thread.stack).state, node(thread.stack).parent, 0, to);
  to.num_nodes = nodes_.size();
}

void Pushdown::compact(Configuration& live) {
  std::vector<std::int32_t> used;
  for (const Thread& thread : live.threads) {
    for (std::int32_t s = thread.stack; s >= 0; s = node(s).parent) used.push_back(s);
  }
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  // A node's parent is older than the node.
  const auto renamed = [&used](std::int32_t s) {
    if (s < 0) return s;
    return static_cast<std::int32_t>(std::lower_bound(used.begin(), used.end(), s) - used.begin());
  };
  for (std::size_t i = 0; i < used.size(); ++i) {
    nodes_[i] = nodes_[static_cast<std::size_t>(used[i])];
    nodes_[i].parent = renamed(nodes_[i].parent);
  }
  nodes_.resize(used.size());
  for (Thread& thread : live.threads) thread.stack = renamed(thread.stack);
  live.num_nodes = nodes_.size();
}

}  // namespace tandem::grammar
