#include "tandem/grammar/compiler.h"

#include <fmt/format.h>

#include <utility>

#include "tandem/grammar/gbnf.h"
#include "tandem/grammar/regex.h"
#include "tandem/grammar/schema.h"

namespace tandem::grammar {
namespace {

core::Status check_size(const Source& source) {
  std::size_t bytes = source.text.size();
  for (const std::string& choice : source.choices) bytes += choice.size() + 1;
  if (source.calls) {
    for (const auto& f : source.calls->functions) bytes += f.name.size() + f.parameters.size() + 1;
  }
  if (bytes <= Compiler::kMaxSourceBytes) return {};
  return core::invalid_argument(fmt::format("the grammar has {} bytes; at most {} are compiled",
                                            bytes, Compiler::kMaxSourceBytes));
}

core::Result<RuleSet> read_text(const Source& source) {
  RuleSet rules;
  switch (source.kind) {
    case Source::Kind::kJsonObject:
      return json_object_rules();
    case Source::Kind::kJsonSchema:
      return read_schema(source.text);
    case Source::Kind::kGbnf:
      return read_gbnf(source.text);
    case Source::Kind::kAnyText:
      rules.set_root(rules.add_rule("root", rules.any_text()));
      return rules;
    case Source::Kind::kRegex: {
      TANDEM_ASSIGN(const ExprId expr, read_regex(rules, source.text, true, write_plain));
      rules.set_root(rules.add_rule("root", expr));
      return rules;
    }
    case Source::Kind::kChoice: {
      std::vector<ExprId> choices;
      for (const std::string& text : source.choices) choices.push_back(rules.literal(text));
      rules.set_root(rules.add_rule("root", rules.choice(choices)));
      return rules;
    }
  }
  return core::invalid_argument("a grammar of an unknown kind");
}

/// What tells sources apart.
std::string key_of(const Source& source) {
  std::string key = fmt::format("{} ", static_cast<int>(source.kind));
  if (source.thought) key += fmt::format("{} {} ", source.thought->open, source.thought->close);
  key += fmt::format("{}:{}", source.text.size(), source.text);
  for (const std::string& choice : source.choices) {
    key += fmt::format(" {}:{}", choice.size(), choice);
  }
  if (!source.calls) return key;
  const CallSource& calls = *source.calls;
  key += fmt::format(" calls {} {} {} {} {}", calls.open, calls.close, calls.quote, calls.must_call,
                     calls.may_repeat);
  for (const auto& [name, parameters] : calls.functions) {
    key += fmt::format(" {}:{} {}:{}", name.size(), name, parameters.size(), parameters);
  }
  return key;
}

}  // namespace

core::Result<RuleSet> read_source(const Source& source) {
  TANDEM_TRY(check_size(source));
  TANDEM_ASSIGN(RuleSet rules, read_text(source));
  if (source.calls) {
    TANDEM_TRY(add_calls(rules, *source.calls, source.kind == Source::Kind::kAnyText));
  }
  if (source.thought) {
    const ExprId thought = rules.sequence(
        {rules.token(source.thought->open), rules.any_text(), rules.token(source.thought->close)});
    const ExprId text = rules.rule(rules.root());
    rules.set_root(rules.add_rule("answer", rules.sequence({rules.optional(thought), text})));
  }
  return rules;
}

Compiler::Compiler(const tokenizer::Tokenizer& tokenizer)
    : trie_(std::make_shared<const TokenTrie>(tokenizer)), ends_(tokenizer.end_of_generation()) {}

core::Result<std::shared_ptr<const Grammar>> Compiler::compile(const Source& source) {
  TANDEM_TRY(check_size(source));
  const std::string key = key_of(source);
  if (auto known = find(key)) return known;
  TANDEM_ASSIGN(const RuleSet rules, read_source(source));
  TANDEM_ASSIGN(auto grammar, Grammar::create(rules, trie_, ends_));
  keep(key, grammar);
  return grammar;
}

std::shared_ptr<const Grammar> Compiler::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto it = index_.find(key);
  if (it == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  return it->second->grammar;
}

void Compiler::keep(const std::string& key, std::shared_ptr<const Grammar> grammar) {
  const std::lock_guard lock(mutex_);
  if (index_.contains(key)) return;  // compiled twice at once
  entries_.push_front({key, std::move(grammar)});
  index_.emplace(key, entries_.begin());
  std::size_t bytes = 0;
  std::size_t num_kept = 0;
  for (auto it = entries_.begin(); it != entries_.end();) {
    bytes += it->grammar->bytes() + it->key.size();
    if (num_kept == 0 || (num_kept < kMaxCached && bytes <= kMaxCachedBytes)) {
      ++num_kept;
      ++it;
    } else {
      index_.erase(it->key);
      it = entries_.erase(it);
    }
  }
}

std::size_t Compiler::num_cached() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace tandem::grammar
