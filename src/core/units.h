#pragma once

#include <cstdint>

namespace tandem {

/// Index into the vocabulary.
using TokenId = std::int32_t;
/// Absolute position in a sequence, counted from 0.
using Position = std::int32_t;
/// Id of a KV page of one kind; kNoPage marks a table entry that holds none.
using PageId = std::int32_t;
inline constexpr PageId kNoPage = -1;
/// Longest draft of one step, K <= kMaxDraft.
inline constexpr int kMaxDraft = 8;

}  // namespace tandem
