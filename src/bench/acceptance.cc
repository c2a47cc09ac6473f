#include "tandem/bench/acceptance.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

namespace tandem::bench {
namespace {

/// The first of the spellings of a counter that the page has.
std::string find_name(const PrometheusText& page, std::string_view suffix) {
  for (const std::string_view prefix : {"vllm:", "llamacpp:"}) {
    for (const std::string_view ending : {"_total", ""}) {
      std::string name = std::string(prefix).append(suffix).append(ending);
      if (page.sum(name)) return name;
    }
  }
  return {};
}

std::vector<double> difference(const std::vector<double>& after,
                               const std::vector<double>& before) {
  std::vector<double> out = after;
  for (std::size_t i = 0; i < std::min(out.size(), before.size()); ++i) out[i] -= before[i];
  return out;
}

std::uint64_t to_count(double value) {
  return static_cast<std::uint64_t>(value + 0.5);
}

}  // namespace

std::optional<DraftCounters> DraftCounters::read(const PrometheusText& page) {
  const auto rounds = page.sum(find_name(page, "spec_decode_num_drafts"));
  const auto accepted = page.sum(find_name(page, "spec_decode_num_accepted_tokens"));
  if (!rounds || !accepted) return std::nullopt;
  DraftCounters out;
  out.rounds = *rounds;
  out.accepted = *accepted;
  out.drafted = page.sum(find_name(page, "spec_decode_num_draft_tokens")).value_or(0.0);
  out.verify_steps = page.sum("tandem:verify_steps_total");
  out.accepted_at =
      page.sum_by_index(find_name(page, "spec_decode_num_accepted_tokens_per_pos"), "position");
  out.drafted_at = page.sum_by_index("tandem:spec_decode_drafted_tokens_per_pos_total", "position");
  return out;
}

std::optional<Acceptance> acceptance_between(const DraftCounters& before,
                                             const DraftCounters& after) {
  const double rounds = after.rounds - before.rounds;
  const double accepted = after.accepted - before.accepted;
  const double drafted = after.drafted - before.drafted;
  const double steps =
      after.verify_steps ? *after.verify_steps - before.verify_steps.value_or(0.0) : rounds;
  if (steps <= 0.0 || rounds < 0.0 || accepted < 0.0 || drafted < 0.0) return std::nullopt;
  Acceptance out;
  out.source = "metrics";
  out.mean_length = 1.0 + accepted / steps;
  out.verify_steps = to_count(steps);
  out.draft_rounds = to_count(rounds);
  out.drafted_tokens = to_count(drafted);
  out.accepted_tokens = to_count(accepted);
  const std::vector<double> accepted_at = difference(after.accepted_at, before.accepted_at);
  const std::vector<double> drafted_at = difference(after.drafted_at, before.drafted_at);
  for (std::size_t i = 0; i < accepted_at.size(); ++i) {
    const double times = after.drafted_at.empty() ? rounds
                         : i < drafted_at.size()  ? drafted_at[i]
                                                  : 0.0;
    if (times <= 0.0) break;  // a position is drafted only after those before it
    out.per_position.push_back(accepted_at[i] / times);
  }
  return out;
}

std::optional<Acceptance> acceptance_from_timings(std::uint64_t drafted, std::uint64_t accepted,
                                                  std::uint64_t tokens_after_first) {
  if (drafted == 0 || accepted >= tokens_after_first) return std::nullopt;
  Acceptance out;
  out.source = "timings";
  out.verify_steps = tokens_after_first - accepted;
  out.mean_length = 1.0 + static_cast<double>(accepted) / static_cast<double>(out.verify_steps);
  out.drafted_tokens = drafted;
  out.accepted_tokens = accepted;
  return out;
}

}  // namespace tandem::bench
