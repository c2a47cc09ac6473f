#pragma once

#include <array>
#include <cstddef>

#include "tandem/kernels/backend.h"

namespace tandem::kernels {

/// Bytes of the KV budget for pages of each kind, where memory is set aside for good: together the
/// budget. layout: page_tokens and page_bytes are read.
/// The windows of all sequences, with the rows of a step in flight, are the most that sliding pages
/// are good for. One window, or half of the budget if that is less than all of them, they always
/// get. Between these bounds, full pages get what one sequence of the longest context takes, or
/// what is theirs of short texts, if that is more.
std::array<std::size_t, kNumAttentionKinds> kv_shares(const Geometry& geometry,
                                                      const KvLayout& layout);

}  // namespace tandem::kernels
