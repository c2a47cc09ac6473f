#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/core/units.h"
#include "tandem/grammar/calls.h"
#include "tandem/grammar/grammar.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::grammar {

/// What a text must be.
struct Source {
  enum class Kind : std::uint8_t {
    kJsonObject,  ///< any JSON object
    kJsonSchema,  ///< a JSON value valid under the schema `text`; see read_schema()
    kRegex,       ///< a match of the pattern `text` from end to end; see read_regex()
    kGbnf,        ///< a text of the grammar `text`; see read_gbnf()
    kChoice,      ///< one of `choices`
    kAnyText,
  };
  /// Tokens around a thought that may come first, of any text.
  struct Thought {
    TokenId open = 0;
    TokenId close = 0;
  };

  Kind kind = Kind::kJsonObject;
  std::string text;
  std::vector<std::string> choices;
  std::optional<CallSource> calls;  ///< may, or must, stand in the text's place; see add_calls()
  std::optional<Thought> thought;
};

/// Compiles grammars for one vocabulary and keeps those used last. Thread: any; a compilation takes
/// milliseconds to tenths of a second and is best kept off the threads that serve.
class Compiler {
 public:
  static constexpr std::size_t kMaxSourceBytes = 256U << 10;
  static constexpr std::size_t kMaxCached = 32;
  static constexpr std::size_t kMaxCachedBytes = 256U << 20;

  /// Sorts the vocabulary into a trie: tenths of a second. `tokenizer` must outlive the compiler
  /// and its grammars.
  explicit Compiler(const tokenizer::Tokenizer& tokenizer);

  /// The grammar of a source, from the cache where it can be. kInvalidArgument: the source is
  /// malformed, asks for what a grammar cannot keep, or would take too much; the message says what.
  core::Result<std::shared_ptr<const Grammar>> compile(const Source& source);

  std::size_t num_cached() const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const Grammar> grammar;  // shared with the requests that use it
  };
  std::shared_ptr<const Grammar> find(const std::string& key);
  void keep(const std::string& key, std::shared_ptr<const Grammar> grammar);

  std::shared_ptr<const TokenTrie> trie_;  // shared with the grammars
  std::vector<TokenId> ends_;

  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // used last first
  std::unordered_map<std::string, std::list<Entry>::iterator> index_;
};

/// The rules of a source, as compile() compiles them.
core::Result<RuleSet> read_source(const Source& source);

}  // namespace tandem::grammar
