#include "driver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tandem/core/checked_math.h"

namespace tandem::testing {

using kernels::AttentionKind;
using kernels::Keep;
using kernels::Span;

constexpr std::size_t kSlidingIndex = index_of(AttentionKind::kSliding);

Driver::Driver(model::Model& model, unsigned seed) : model_(model), random_(seed) {
  for (std::size_t kind = 0; kind < free_pages_.size(); ++kind) {
    constexpr int kMaxPages = 4096;
    const int num_pages = std::min(model.limits().kv.max_pages[kind], kMaxPages);
    free_pages_[kind].resize(static_cast<std::size_t>(num_pages));
    std::iota(free_pages_[kind].begin(), free_pages_[kind].end(), 0);
    std::shuffle(free_pages_[kind].begin(), free_pages_[kind].end(), random_);
  }
}

void Driver::add_pages(Running& running, Position end) {
  const int needed = core::ceil_div(end, model_.limits().kv.page_tokens);
  for (std::size_t kind = 0; kind < running.pages.size(); ++kind) {
    while (static_cast<int>(running.pages[kind].size()) < needed) {
      ASSERT_FALSE(free_pages_[kind].empty()) << "the test needs more pages";
      running.pages[kind].push_back(free_pages_[kind].back());
      free_pages_[kind].pop_back();
    }
  }
}

void Driver::drop_pages(Running& running, Position window_end) {
  const int first_visible = std::max(0, window_end - model_.limits().window);
  const int dead = first_visible / model_.limits().kv.page_tokens;
  std::vector<PageId>& pages = running.pages[kSlidingIndex];
  for (int i = 0; i < std::min(dead, static_cast<int>(pages.size())); ++i) {
    PageId& page = pages[static_cast<std::size_t>(i)];
    if (page != kNoPage) free_pages_[kSlidingIndex].push_back(page);
    page = kNoPage;
  }
}

/// Adds the sequence's next span to the plan; false if the step has no room for it.
bool Driver::plan(Running& running, int& rows_left) {
  const Sequence& request = *running.request;
  Span span;
  span.slot = running.slot;
  span.next_drafts = request.drafts;
  int rows = 0;
  const int prompt_left = static_cast<int>(request.prompt.size()) - running.prompt_done;
  if (prompt_left > 0) {
    rows = std::min({request.chunk, prompt_left, rows_left});
    span.prompt =
        std::span(request.prompt)
            .subspan(static_cast<std::size_t>(running.prompt_done), static_cast<std::size_t>(rows));
    span.first_position = running.prompt_done;
    span.keep = rows == prompt_left ? Keep::kLast : Keep::kNone;
    running.position = running.prompt_done;
    running.prompt_done += rows;
  } else {
    span.num_drafts = std::min(running.held_drafts, running.remaining());
    rows = 1 + span.num_drafts;
  }
  if (rows == 0 || rows > rows_left) return false;
  rows_left -= rows;
  drop_pages(running, running.position + 1);
  add_pages(running, running.position + rows);
  span.pages = {running.pages[0], running.pages[1]};
  plan_.spans.push_back(span);
  return true;
}

void Driver::apply(const kernels::SpanResult& result, const Span& span, Running& running) {
  EXPECT_EQ(result.slot, running.slot);
  if (!span.is_decode()) {
    running.position += static_cast<int>(span.prompt.size());
    EXPECT_EQ(result.num_tokens, span.keep == Keep::kLast ? 1 : 0);
  } else {
    EXPECT_EQ(result.num_drafted, span.num_drafts);
    EXPECT_GE(result.num_tokens, 1);
    running.position += result.num_tokens;
    ++running.out.rounds;
    for (int i = 0; i < result.num_drafted; ++i) {
      ++running.out.drafted[static_cast<std::size_t>(i)];
      if (i + 1 < result.num_tokens) ++running.out.accepted[static_cast<std::size_t>(i)];
    }
  }
  if (result.num_tokens > 0) running.held_drafts = span.next_drafts;
  for (int i = 0; i < result.num_tokens && !running.finished(); ++i) {
    running.out.tokens.push_back(result.tokens[static_cast<std::size_t>(i)]);
  }
}

std::vector<Generated> Driver::generate(std::span<const Sequence> sequences) {
  std::vector<Running> all(sequences.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].request = &sequences[i];
    all[i].slot = static_cast<int>(i);
    model_.set_slot(all[i].slot, sequences[i].sampling);
  }
  const auto busy = [](const Running& r) {
    return !r.finished();
  };
  for (int step = 0; std::any_of(all.begin(), all.end(), busy); ++step) {
    plan_.spans.clear();
    std::vector<Running*> members;
    int rows_left = model_.limits().max_rows;
    for (std::size_t i = 0; i < all.size(); ++i) {
      // Rotates who comes first, so that a row's place in the batch changes.
      Running& running = all[(i + static_cast<std::size_t>(step)) % all.size()];
      if (running.finished() || step < running.request->first_step) continue;
      if (plan(running, rows_left)) members.push_back(&running);
    }
    if (plan_.spans.empty()) continue;
    auto result = model_.step(plan_);
    if (!result.ok() || result->spans.size() != members.size()) {
      ADD_FAILURE() << result.status().message();
      break;
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      apply(result->spans[i], plan_.spans[i], *members[i]);
    }
  }
  std::vector<Generated> out;
  for (Running& running : all) {
    for (std::size_t kind = 0; kind < free_pages_.size(); ++kind) {
      for (PageId page : running.pages[kind]) {
        if (page != kNoPage) free_pages_[kind].push_back(page);
      }
    }
    out.push_back(std::move(running.out));
  }
  return out;
}

kernels::SlotSnapshot run_prompt(model::Model& model, std::span<const TokenId> ids, int drafts) {
  const int page_tokens = model.limits().kv.page_tokens;
  std::vector<PageId> pages;
  for (int p = 0; p * page_tokens < static_cast<int>(ids.size()); ++p) pages.push_back(p);
  model.set_slot(0, {.temperature = 0.0F});
  kernels::StepPlan plan;
  plan.spans.resize(1);
  plan.spans[0].prompt = ids;
  plan.spans[0].keep = kernels::Keep::kLast;
  plan.spans[0].next_drafts = drafts;
  plan.spans[0].pages = {pages, pages};
  const auto result = model.step(plan);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return model.backend().read_slot(0);
}

}  // namespace tandem::testing
