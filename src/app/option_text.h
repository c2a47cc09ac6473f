#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/kernels/backend.h"

namespace tandem::app {

/// Bytes of "2GiB", "512MiB", "1.5GB", "4096": a number and a unit of 1024 (KiB, MiB, GiB, TiB;
/// K, M, G, T mean the same) or of 1000 (KB, MB, GB, TB), in any case. Nothing where it is not one
/// or does not fit into 63 bits.
std::optional<std::uint64_t> parse_size(std::string_view text);

/// "auto" is 0; else a size above 0.
std::optional<std::uint64_t> parse_kv_memory(std::string_view text);

/// "auto" is -1; else a number from 0 to kMaxDraft.
std::optional<int> parse_draft_length(std::string_view text);

/// "f16" or "int8".
std::optional<kernels::KvType> parse_kv_type(std::string_view text);

/// Rates in [0, 1], none above the one before it, separated by commas; 1 to kMaxDraft of them.
std::optional<std::vector<float>> parse_acceptance(std::string_view text);

/// Bytes for people: "1.78 GiB", "32.1 MiB", "512 B".
std::string format_size(std::uint64_t bytes);

}  // namespace tandem::app
