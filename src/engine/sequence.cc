#include "tandem/engine/sequence.h"

#include <algorithm>

#include <fmt/format.h>

#include "tandem/core/check.h"
#include "tandem/core/checked_math.h"

namespace tandem::engine {

void Sequence::commit_prompt(int rows) {
  TANDEM_CHECK(state == SequenceState::kPrefill && computed + rows <= length(),
               "prompt rows lie inside the text");
  computed += rows;
}

void Sequence::commit_tokens(std::span<const TokenId> chosen) {
  tokens.insert(tokens.end(), chosen.begin(), chosen.end());
  computed = length() - 1;
}

core::Status Sequence::check(int page_tokens, int window) const {
  const auto fail = [&](const char* what) {
    return core::internal_error(fmt::format(
        "sequence {}: {} (prompt {}, computed {}, tokens {}, limit {}, tables {} from {} and {})",
        age, what, num_prompt, computed, length(), max_length, tables[0].pages.size(),
        tables[0].first, tables[1].pages.size()));
  };
  if (num_prompt < 1 || num_prompt > length() || length() > max_length) return fail("lengths");
  const bool is_waiting = state == SequenceState::kWaiting;
  if (is_waiting != (slot < 0) || (is_waiting && computed != 0)) return fail("slot");
  if (state == SequenceState::kPrefill && computed >= length()) return fail("prefill is over");
  if (state == SequenceState::kDecode && computed != length() - 1) return fail("decode length");
  const int num_pages = core::ceil_div(computed, page_tokens);
  for (const AttentionKind kind : kAttentionKinds) {
    const PageTable& table = tables[index_of(kind)];
    if (static_cast<int>(table.pages.size()) != num_pages) return fail("pages of the length");
    const int first = kind == AttentionKind::kFull
                          ? 0
                          : std::min(num_pages, std::max(0, computed - window + 1) / page_tokens);
    if (table.first != first) return fail("pages before the window");
    for (int i = 0; i < num_pages; ++i) {
      const bool is_held = table.pages[static_cast<std::size_t>(i)] != kNoPage;
      if (is_held != (i >= first)) return fail("entries of a table");
    }
  }
  return {};
}

}  // namespace tandem::engine
