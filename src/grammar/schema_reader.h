#pragma once

#include <boost/json/value.hpp>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/grammar/char_automaton.h"
#include "tandem/grammar/schema_parts.h"

namespace tandem::grammar {

/// Gathers schemas of one document into SchemaParts. Bounded: the whole document may take so many
/// look-ups, so that references to references cannot multiply. Thread: one.
class SchemaReader {
 public:
  /// `root` must outlive the reader.
  explicit SchemaReader(const boost::json::value& root) : root_(&root) {}

  /// Adds what a schema says. kInvalidArgument: it is malformed, or uses a keyword that a grammar
  /// cannot keep.
  core::Status add(const boost::json::value& schema, SchemaParts& parts, int depth = 0);
  /// Adds that a value does not satisfy the schema. Keyword by keyword, by the laws of De Morgan;
  /// kInvalidArgument where one has no complement that can be written.
  core::Status add_denied(const boost::json::value& schema, SchemaParts& parts, int depth = 0);
  core::Status add(const Claim& claim, SchemaParts& parts, int depth = 0) {
    return claim.is_denied ? add_denied(*claim.schema, parts, depth)
                           : add(*claim.schema, parts, depth);
  }
  core::Result<SchemaParts> parts_of(const SchemaParts::Schemas& schemas);
  /// What each schema says of the value of a key by this name.
  core::Result<SchemaParts::Schemas> schemas_of(const SchemaParts& parts, std::string_view name);

  /// Parts under one branch of their last choice.
  struct Branch {
    SchemaParts parts;
    const boost::json::value* alone = nullptr;  ///< the schema that says no less; null: none does
  };
  /// `parts` (with a choice) under each branch of the last one. That the branches of a oneOf rule
  /// each other out is not said.
  core::Result<std::vector<Branch>> branches(const SchemaParts& parts);

  /// Whether the value satisfies all parts. kInvalidArgument: it takes too much work, or a pattern
  /// is malformed.
  core::Result<bool> allows(const SchemaParts& parts, const boost::json::value& value,
                            int depth = 0);
  /// All values that the parts allow if they are few and simple: listed ones, null, booleans and
  /// integers between near bounds. Nothing where they are not.
  core::Result<std::optional<std::vector<boost::json::value>>> few_values(const SchemaParts& parts,
                                                                          int depth = 0);

  /// The schema that a local reference (#, #/...) names.
  core::Result<const boost::json::value*> resolve(std::string_view reference) const;
  /// The reference of a schema that says nothing else; empty: none.
  static std::string_view only_reference(const boost::json::value& schema);

  /// Pieces of work; fails when the document has taken too many.
  core::Status spend(std::size_t pieces = 1);

 private:
  core::Status add_keyword(std::string_view key, const boost::json::value& value,
                           SchemaParts& parts, int depth);
  core::Status add_combination(std::string_view key, const boost::json::value& value,
                               SchemaParts& parts, int depth);
  static void add_condition(const boost::json::object& schema, SchemaParts& parts);

  /// The ways in which a value may fail to do what one keyword says.
  core::Result<std::vector<Claims>> denials(const boost::json::object& schema,
                                            std::string_view key);
  core::Result<std::vector<Claims>> denials_of_members(std::string_view key,
                                                       const boost::json::value& value);
  core::Result<std::vector<Claims>> denials_of_contains(const boost::json::object& schema,
                                                        const boost::json::value& value);
  core::Result<std::vector<Claims>> denials_of_list(std::string_view key,
                                                    const boost::json::value& value);

  core::Result<bool> matches(const TextPattern& pattern, std::string_view text);
  core::Result<bool> allows_string(const SchemaParts& parts, std::string_view text);
  core::Result<bool> allows_all(const SchemaParts::Schemas& schemas,
                                const boost::json::value& value, int depth);
  core::Result<bool> allows_array(const SchemaParts& parts, const boost::json::array& array,
                                  int depth);
  core::Result<bool> allows_object(const SchemaParts& parts, const boost::json::object& object,
                                   int depth);
  core::Result<bool> allows_choice(const SchemaParts::Choice& choice,
                                   const boost::json::value& value, int depth);

  core::Status spend_on(const boost::json::value& value);
  /// Keeps a schema that the document says in other words.
  core::Result<const boost::json::value*> own(boost::json::value schema);

  static constexpr int kMaxDepth = 64;
  static core::Status too_deep();

  const boost::json::value* root_;
  std::deque<boost::json::value> made_;
  std::map<std::pair<std::string, bool>, CharAutomaton> patterns_;  // by text, and whether is_whole
  std::size_t spent_ = 0;
};

/// A keyword's value is malformed, or what it asks for is refused.
core::Status malformed(std::string_view key, std::string_view wanted);
core::Status unsupported(std::string_view key, std::string_view why);

}  // namespace tandem::grammar
