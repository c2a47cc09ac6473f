#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "tandem/core/units.h"
#include "tandem/kernels/host_device.h"

namespace tandem::kernels {

/// Accepts drafts by chance instead of by what they say, for measuring speed with weights whose
/// drafter agrees with nothing. The output is then no text of the model.
struct SyntheticAcceptance {
  std::int32_t positions = 0;  ///< drafts that can be accepted; 0: off, drafts count
  /// 2^32 * rate of each position, descending.
  std::uint32_t thresholds[kMaxDraft] = {};

  static SyntheticAcceptance of(std::span<const float> rates) {
    SyntheticAcceptance out;
    for (float rate : rates.first(std::min<std::size_t>(rates.size(), kMaxDraft))) {
      const double threshold = std::clamp(static_cast<double>(rate), 0.0, 1.0) * 4294967295.0;
      out.thresholds[out.positions++] = static_cast<std::uint32_t>(threshold);
    }
    return out;
  }

  /// How many of `drafted` drafts stay in the step that begins at `position` of `slot`.
  TANDEM_HOST_DEVICE int accepted(std::int32_t slot, Position position, int drafted) const {
    // The finalizer of MurmurHash3: a well mixed number per (slot, position).
    std::uint32_t u = static_cast<std::uint32_t>(position) * 0x9e3779b9u +
                      static_cast<std::uint32_t>(slot) * 0x7f4a7c15u + 1u;
    u = (u ^ (u >> 16)) * 0x85ebca6bu;
    u = (u ^ (u >> 13)) * 0xc2b2ae35u;
    u ^= u >> 16;
    int count = 0;
    while (count < drafted && count < positions && u < thresholds[count]) ++count;
    return count;
  }
};

}  // namespace tandem::kernels
