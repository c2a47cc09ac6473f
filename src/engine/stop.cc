#include "tandem/engine/stop.h"

#include <algorithm>
#include <utility>

namespace tandem::engine {

StopFilter::StopFilter(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    Matcher matcher;
    matcher.fallback.resize(stop.size(), 0);
    for (std::size_t i = 1, border = 0; i < stop.size(); ++i) {
      while (border > 0 && stop[i] != stop[border]) border = matcher.fallback[border - 1];
      if (stop[i] == stop[border]) ++border;
      matcher.fallback[i] = border;
    }
    matcher.stop = std::move(stop);
    matchers_.push_back(std::move(matcher));
  }
}

void StopFilter::advance(Matcher& m, char byte) {
  while (m.matched > 0 && m.stop[m.matched] != byte) m.matched = m.fallback[m.matched - 1];
  if (m.stop[m.matched] == byte) ++m.matched;
}

std::string StopFilter::push(std::string_view text) {
  if (found_) return {};
  if (matchers_.empty()) return std::string(text);
  for (const char byte : text) {
    held_.push_back(byte);
    std::size_t stop_bytes = 0;
    for (Matcher& m : matchers_) {
      advance(m, byte);
      if (m.matched == m.stop.size()) stop_bytes = std::max(stop_bytes, m.matched);
    }
    if (stop_bytes > 0) {
      found_ = true;
      held_.resize(held_.size() - stop_bytes);
      return std::exchange(held_, {});
    }
  }
  std::size_t keep = 0;
  for (const Matcher& m : matchers_) keep = std::max(keep, m.matched);
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopFilter::flush() {
  return std::exchange(held_, {});
}

}  // namespace tandem::engine
