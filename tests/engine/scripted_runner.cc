#include "scripted_runner.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "tandem/grammar/compiler.h"
#include "tandem/grammar/matcher.h"
#include "tandem/kernels/sampling.h"
#include "tandem/tokenizer/stream_decoder.h"

namespace tandem::testing {
namespace {

std::uint64_t mix(std::uint64_t h, std::uint64_t value) {
  h ^= value + 0x9e3779b97f4a7c15ULL + (h << 6) + (h >> 2);
  h *= 0xbf58476d1ce4e5b9ULL;
  return h ^ (h >> 29);
}

}  // namespace

std::shared_ptr<const tokenizer::Tokenizer> scripted_tokenizer() {
  tokenizer::VocabData data;
  const auto add = [&](std::string token, tokenizer::TokenKind kind) {
    data.tokens.push_back(std::move(token));
    data.kinds.push_back(kind);
  };
  for (int i = 0; i < 256; ++i) add(fmt::format("<0x{:02X}>", i), tokenizer::TokenKind::kByte);
  for (char c = 'a'; c <= 'z'; ++c) add(std::string(1, c), tokenizer::TokenKind::kNormal);
  add("<eos>", tokenizer::TokenKind::kControl);
  add("<bos>", tokenizer::TokenKind::kControl);
  data.eos = kEos;
  data.bos = kEos + 1;
  return std::move(tokenizer::Tokenizer::create(std::move(data))).value();
}

std::shared_ptr<const grammar::Grammar> scripted_grammar() {
  static const auto tokenizer = scripted_tokenizer();
  static grammar::Compiler compiler(*tokenizer);
  grammar::Source source;
  source.kind = grammar::Source::Kind::kGbnf;
  source.text =
      "root ::= word (\",\" root | \"!\")\nword ::= [a-m]{1,3} | \"(\" word \")\" | [n-z] word\n";
  return std::move(compiler.compile(source)).value();
}

TokenId ScriptedModel::next(std::span<const TokenId> full, std::span<const TokenId> visible,
                            const kernels::SamplingParams& sampling) const {
  std::uint64_t h = 1;
  for (const TokenId token : full) h = mix(h, static_cast<std::uint64_t>(token));
  for (const TokenId token : visible) h = mix(h, static_cast<std::uint64_t>(token) << 20);
  if (sampling.temperature > 0.0F) h = mix(mix(h, sampling.seed), full.size());
  if (static_cast<double>(h % 10000) < 10000 * eos_share) return kEos;
  return kFirstLetter + static_cast<TokenId>((h >> 20) % 26);
}

TokenId ScriptedModel::next(std::span<const TokenId> text,
                            const kernels::SamplingParams& sampling) const {
  const auto visible = std::min(text.size(), static_cast<std::size_t>(window));
  return next(text, text.last(visible), sampling);
}

std::vector<float> ScriptedModel::logits(TokenId token) {
  std::vector<float> out;
  for (std::uint64_t id = 0; id < kScriptedVocab; ++id) {
    const std::uint64_t h = mix(static_cast<std::uint64_t>(token) + 1, id) >> 20;
    out.push_back(-1.0F + static_cast<float>(h % 4096) / 1024.0F);
  }
  out[static_cast<std::size_t>(token)] = 4.0F;
  return out;
}

ScriptedRunner::ScriptedRunner(const Options& options) : options_(options) {
  limits_.max_sequences = options.max_sequences;
  limits_.max_rows = options.max_rows;
  limits_.max_kept_rows = options.max_kept_rows;
  limits_.max_context = options.max_context;
  limits_.window = options.model.window;
  limits_.max_draft = options.max_draft;
  limits_.runs_ahead = options.runs_ahead;
  limits_.kv_memory_bytes = options.kv_memory_bytes;
  limits_.kv.page_tokens = options.page_tokens;
  limits_.kv.page_bytes = options.page_bytes;
  for (std::size_t kind = 0; kind < pages_.size(); ++kind) {
    int& max_pages = limits_.kv.max_pages[kind];
    max_pages = static_cast<int>(options.kv_memory_bytes / options.page_bytes[kind]);
    if (options.max_pages[kind] > 0) max_pages = std::min(max_pages, options.max_pages[kind]);
    pages_[kind].assign(static_cast<std::size_t>(max_pages),
                        std::vector<Cell>(static_cast<std::size_t>(options.page_tokens)));
  }
  slots_.resize(static_cast<std::size_t>(options.max_sequences));
}

void ScriptedRunner::fault(std::string what) {
  faults_.push_back(fmt::format("step {}: {}", steps_, what));
}

void ScriptedRunner::set_slot(int slot, const kernels::SamplingParams& sampling) {
  slots_.at(static_cast<std::size_t>(slot)) =
      Slot{.is_set = true, .sampling = sampling, .drafts = {}};
}

void ScriptedRunner::check_plan(const kernels::StepPlan& plan) {
  int rows = 0;
  int kept = 0;
  int prompt_rows = 0;
  std::set<int> slots;
  for (const kernels::Span& span : plan.spans) {
    if (!slots.insert(span.slot).second) fault("a slot has two spans");
    const Slot& slot = slots_.at(static_cast<std::size_t>(span.slot));
    if (!slot.is_set) fault("the slot was not set");
    const int span_rows =
        span.is_decode() ? 1 + span.num_drafts : static_cast<int>(span.prompt.size());
    rows += span_rows;
    if (span.is_decode()) {
      kept += span_rows;
      if (slot.position < 0) fault("a slot without a token decodes");
      if (span.num_drafts > static_cast<int>(slot.drafts.size())) fault("drafts that are not held");
    } else {
      prompt_rows += span_rows;
      if (span.keep == kernels::Keep::kLast) ++kept;
      if (span.keep == kernels::Keep::kAll) kept += span_rows;
    }
    const bool is_whole = span.is_decode() || span.keep == kernels::Keep::kAll;
    const std::size_t sampled = is_whole ? static_cast<std::size_t>(span_rows) : 1;
    if (!span.rules.empty() && span.rules.size() != sampled) fault("rules of other rows");
    if (span.next_drafts > options_.max_draft) fault("too many drafts asked for");
  }
  if (plan.spans.empty()) fault("an empty step");
  if (rows > options_.max_rows) fault(fmt::format("{} rows", rows));
  if (kept > options_.max_kept_rows) fault(fmt::format("{} kept rows", kept));
  prompt_rows_.push_back(prompt_rows);
}

std::vector<TokenId> ScriptedRunner::tokens_of(const kernels::Span& span) const {
  if (!span.is_decode()) return {span.prompt.begin(), span.prompt.end()};
  const Slot& slot = slots_.at(static_cast<std::size_t>(span.slot));
  std::vector<TokenId> tokens = {slot.token};
  for (int i = 0; i < span.num_drafts; ++i)
    tokens.push_back(slot.drafts.at(static_cast<std::size_t>(i)));
  return tokens;
}

ScriptedRunner::Cell* ScriptedRunner::cell(const kernels::Span& span, int kind, Position position) {
  const auto& table = span.pages[static_cast<std::size_t>(kind)];
  const auto i = static_cast<std::size_t>(position / options_.page_tokens);
  if (i >= table.size() || table[i] == kNoPage) {
    fault(fmt::format("slot {} has no page of kind {} for position {}", span.slot, kind, position));
    return nullptr;
  }
  auto& pages = pages_[static_cast<std::size_t>(kind)];
  return &pages.at(static_cast<std::size_t>(table[i]))
              .at(static_cast<std::size_t>(position % options_.page_tokens));
}

void ScriptedRunner::write(const kernels::Span& span, std::span<const TokenId> tokens) {
  const Slot& slot = slots_[static_cast<std::size_t>(span.slot)];
  Position position = span.is_decode() ? slot.position : span.first_position;
  for (const TokenId token : tokens) {
    for (int kind = 0; kind < kernels::kNumAttentionKinds; ++kind) {
      if (Cell* c = cell(span, kind, position)) *c = {position, token};
    }
    ++position;
  }
}

std::vector<TokenId> ScriptedRunner::read(const kernels::Span& span, int kind, Position begin,
                                          Position end) {
  std::vector<TokenId> tokens;
  for (Position p = std::max(begin, 0); p < end; ++p) {
    const Cell* c = cell(span, kind, p);
    if (c != nullptr && c->position != p) {
      fault(fmt::format("slot {} finds position {} where {} belongs", span.slot, c->position, p));
    }
    tokens.push_back(c == nullptr ? -1 : c->token);
  }
  return tokens;
}

TokenId ScriptedRunner::choose(const kernels::Span& span, std::size_t row, Position position,
                               const kernels::SamplingParams& sampling,
                               kernels::TokenLogprobs& logprobs) {
  const auto full = read(span, 1, 0, position + 1);
  const auto visible = read(span, 0, position + 1 - options_.model.window, position + 1);
  const TokenId token = options_.model.next(full, visible, sampling);
  if (span.rules.empty()) return token;
  std::vector<float> logits = ScriptedModel::logits(token);
  kernels::SamplingScratch scratch;
  return kernels::sample(logits, {.temperature = 0.0F}, span.rules[row], position, scratch,
                         logprobs);
}

kernels::SpanResult ScriptedRunner::run_span(const kernels::Span& span,
                                             std::span<const TokenId> tokens) {
  Slot& slot = slots_[static_cast<std::size_t>(span.slot)];
  kernels::SpanResult result;
  result.slot = span.slot;
  const Position first = span.is_decode() ? slot.position : span.first_position;
  if (!span.is_decode()) {
    slot.position = first + static_cast<Position>(tokens.size());
    if (span.keep == kernels::Keep::kAll) {
      for (std::size_t row = 0; row < tokens.size(); ++row) {
        choose(span, row, first + static_cast<Position>(row), slot.sampling,
               result.logprobs.emplace_back());
      }
    }
    if (span.keep != kernels::Keep::kLast) return result;
    kernels::TokenLogprobs logprobs;
    result.tokens[0] = choose(span, 0, slot.position - 1, slot.sampling, logprobs);
    result.num_tokens = 1;
  } else {
    result.num_drafted = span.num_drafts;
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      kernels::TokenLogprobs logprobs;
      const TokenId token =
          choose(span, row, first + static_cast<Position>(row), slot.sampling, logprobs);
      result.tokens[row] = token;
      ++result.num_tokens;
      if (row + 1 < tokens.size() && tokens[row + 1] != token) break;
    }
    slot.position = first + result.num_tokens;
  }
  slot.token = result.tokens[static_cast<std::size_t>(result.num_tokens - 1)];
  draft(span, slot);
  result.num_next_drafts = static_cast<std::int32_t>(slot.drafts.size());
  std::copy(slot.drafts.begin(), slot.drafts.end(), result.next_drafts.begin());
  return result;
}

void ScriptedRunner::draft(const kernels::Span& span, Slot& slot) {
  slot.drafts.clear();
  if (span.next_drafts == 0) return;
  std::vector<TokenId> text = read(span, 1, 0, slot.position);
  read(span, 0, slot.position - options_.model.window + 1, slot.position);  // a drafter sees these
  text.push_back(slot.token);
  for (int i = 0; i < span.next_drafts; ++i) {
    TokenId token = options_.model.next(text, slot.sampling);
    const std::uint64_t h = mix(mix(7, static_cast<std::uint64_t>(token)), text.size());
    if (static_cast<double>(h % 1000) >= 1000 * options_.draft_accuracy) token = kEos + 1;
    slot.drafts.push_back(token);
    text.push_back(token);
  }
}

core::Result<kernels::StepResult> ScriptedRunner::step(const kernels::StepPlan& plan,
                                                       const std::function<void()>& meanwhile) {
  if (fail_from_ >= 0 && steps_ >= fail_from_) return core::internal_error("the device is gone");
  check_plan(plan);
  // All rows are written before any is read, as by a kernel that runs layer by layer.
  std::vector<std::vector<TokenId>> tokens;
  for (const kernels::Span& span : plan.spans) {
    tokens.push_back(tokens_of(span));
    write(span, tokens.back());
  }
  kernels::StepResult result;
  for (std::size_t i = 0; i < plan.spans.size(); ++i) {
    result.spans.push_back(run_span(plan.spans[i], tokens[i]));
    result.spans.back().is_broken = std::ranges::count(tokens[i], options_.broken_token) > 0;
  }
  std::array<int, 3> shape = {static_cast<int>(plan.spans.size()), 0, 0};
  for (std::size_t i = 0; i < plan.spans.size(); ++i) {
    shape[1] += static_cast<int>(tokens[i].size());
    shape[2] = std::max(shape[2], plan.spans[i].next_drafts);
  }
  was_first_of_shape_ = result.is_first_of_shape = ++shapes_[shape] <= 2;
  ++steps_;
  meanwhile();
  return result;
}

namespace {

/// The token that the request's own words ask for.
TokenId choose_by_request(TokenId token, const engine::Request& request,
                          std::span<const TokenId> output, const grammar::Matcher* matcher) {
  std::vector<float> logits = ScriptedModel::logits(token);
  const auto times = [](std::span<const TokenId> text, TokenId id) {
    return static_cast<float>(std::count(text.begin(), text.end(), id));
  };
  for (TokenId id = 0; id < kScriptedVocab; ++id) {
    float& x = logits[static_cast<std::size_t>(id)];
    const float said = times(output, id);
    const engine::Penalties& p = request.penalties;
    if (said > 0 || times(request.prompt, id) > 0) x = x > 0 ? x / p.repetition : x * p.repetition;
    float add = said > 0 ? -(p.presence + p.frequency * said) : 0.0F;
    for (const auto& bias : request.logit_bias) add += bias.token == id ? bias.bias : 0.0F;
    x += add;
  }
  const bool must_end = matcher != nullptr && matcher->must_end();
  if (static_cast<int>(output.size()) < request.min_tokens && !must_end) {
    if (!request.ignore_eos) logits[kEos] = -std::numeric_limits<float>::infinity();
    for (const TokenId id : request.stop_tokens) {
      logits[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
    }
  }
  for (TokenId id = 0; matcher != nullptr && id < kScriptedVocab; ++id) {
    if (grammar::Matcher ahead = *matcher; !ahead.accept(id)) {
      logits[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
    }
  }
  if (const auto& budget = request.thought_budget) {
    // Tokens since a thought was opened and not closed.
    int tokens = -1;
    for (const TokenId id : request.prompt) {
      if (id == budget->open) tokens = 0;
      if (id == budget->close) tokens = -1;
    }
    for (const TokenId id : output) {
      tokens = id == budget->close ? -1 : id == budget->open ? 0 : tokens < 0 ? -1 : tokens + 1;
    }
    const bool may_close = matcher == nullptr || grammar::Matcher(*matcher).accept(budget->close);
    if (tokens >= budget->max_tokens && may_close) return budget->close;
  }
  return kernels::argmax(logits);
}

}  // namespace

Expected oracle(const ScriptedModel& model, const tokenizer::Tokenizer& tokenizer,
                const engine::Request& request, int context) {
  Expected expected;
  std::optional<grammar::Matcher> matcher;
  if (request.grammar != nullptr) matcher.emplace(request.grammar);
  tokenizer::StreamDecoder decoder(tokenizer);
  std::vector<TokenId> text = request.prompt;
  std::size_t limit = static_cast<std::size_t>(context) - request.prompt.size();
  if (request.max_tokens > 0) limit = std::min(limit, static_cast<std::size_t>(request.max_tokens));
  while (expected.tokens.size() < limit) {
    TokenId token = model.next(text, request.sampling);
    token = choose_by_request(token, request, expected.tokens, matcher ? &*matcher : nullptr);
    if (matcher) matcher->accept(token);
    text.push_back(token);
    expected.tokens.push_back(token);
    if ((token == kEos && !request.ignore_eos) ||
        std::ranges::find(request.stop_tokens, token) != request.stop_tokens.end()) {
      expected.finish = engine::FinishReason::kStop;
      break;
    }
    expected.text += decoder.push(token);
    std::size_t cut = std::string::npos;
    for (const std::string& stop : request.stop) cut = std::min(cut, expected.text.find(stop));
    if (cut != std::string::npos) {
      expected.text.resize(cut);
      expected.finish = engine::FinishReason::kStop;
      return expected;
    }
  }
  expected.text += decoder.flush();
  return expected;
}

}  // namespace tandem::testing
