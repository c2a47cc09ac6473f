#include "tandem/grammar/matcher.h"

#include <algorithm>
#include <utility>

#include "tandem/core/check.h"

namespace tandem::grammar {
namespace {

constexpr std::uint64_t kMaxWork = 8'000'000;  // of one mask, those of its states included
constexpr std::size_t kCompactNodes = 1024;

void set_bit(std::span<std::uint32_t> mask, TokenId token) {
  mask[static_cast<std::size_t>(token) / 32] |= 1U << (token % 32);
}

void unite(std::span<std::uint32_t> mask, std::span<const std::uint32_t> more) {
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] |= more[i];
}

core::Status too_ambiguous() {
  return core::resource_exhausted(
      "the grammar is too ambiguous or nested too deep at this point of the text to go on; "
      "simplify it");
}

}  // namespace

Matcher::Matcher(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), pushdown_(grammar_->automaton()) {
  pushdown_.begin(now_);
}

bool Matcher::accept(TokenId token) {
  if (is_finished_) return false;
  const auto ends = grammar_->ends();
  if (std::find(ends.begin(), ends.end(), token) != ends.end() && now_.is_complete) {
    is_finished_ = true;
    return true;
  }
  const std::size_t num_nodes = pushdown_.num_nodes();
  next_.clear();
  if (grammar_->trie().holds(token)) {
    const Configuration* from = &now_;
    for (const char c : grammar_->trie().bytes(token)) {
      pushdown_.advance(*from, static_cast<std::uint8_t>(c), next_);
      std::swap(next_, other_);
      from = &other_;
    }
    std::swap(next_, other_);
  }
  pushdown_.take_token(now_, token, next_);
  if (next_.is_dead()) {
    pushdown_.truncate(num_nodes);
    return false;
  }
  std::swap(now_, next_);
  if (pushdown_.num_nodes() > kCompactNodes) pushdown_.compact(now_);
  return true;
}

core::Status Matcher::add_thread(const Thread& thread, std::span<std::uint32_t> mask,
                                 TrieWalker& walker, std::uint64_t& work_left) {
  const auto local = grammar_->mask_of(thread, walker, work_left);
  if (local == nullptr) return too_ambiguous();
  const TokenTrie& trie = grammar_->trie();
  if (local->most_plain > 0) unite(mask, trie.plain(local->most_plain));
  if (!local->bits.empty()) unite(mask, local->bits);
  for (const TokenId token : local->tokens) set_bit(mask, token);
  if (local->exits.empty()) return {};
  pushdown_.leave(thread, other_);
  if (other_.threads.empty()) return {};
  for (const std::int32_t node : local->exits) {
    const std::uint64_t before = pushdown_.work();
    const bool is_whole = walker.walk(
        *local->trie, node, other_, pushdown_, work_left,
        [&](TokenId token) { set_bit(mask, token); }, [](std::int32_t) {});
    if (!is_whole) return too_ambiguous();
    work_left -= std::min(work_left, pushdown_.work() - before);
  }
  return {};
}

core::Status Matcher::fill_mask(std::span<std::uint32_t> mask, TrieWalker& walker) {
  TANDEM_CHECK(mask.size() == grammar_->mask_words(), "a bit for every token");
  std::fill(mask.begin(), mask.end(), 0U);
  if (is_finished_) return core::failed_precondition("the text has ended");
  std::uint64_t work_left = kMaxWork;
  for (const Thread& thread : now_.threads) {
    TANDEM_TRY(add_thread(thread, mask, walker, work_left));
  }
  if (now_.is_complete) {
    for (const TokenId token : grammar_->ends()) set_bit(mask, token);
  }
  const bool is_empty =
      std::all_of(mask.begin(), mask.end(), [](std::uint32_t w) { return w == 0; });
  return is_empty ? too_ambiguous() : core::Status();
}

}  // namespace tandem::grammar
