#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/grammar/number_set.h"

namespace tandem::grammar {

/// Types of JSON values, as bits.
enum JsonType : unsigned {
  kNullType = 1,
  kBooleanType = 2,
  kIntegerType = 4,
  kFractionType = 8,  ///< numbers that are no integers; a schema's "number" is both
  kStringType = 16,
  kArrayType = 32,
  kObjectType = 64,
  kAllTypes = 127,
};

/// The type of a value.
unsigned type_of(const boost::json::value& value);
/// A value as compact JSON; numbers with the fewest digits that read back as they are.
std::string to_json(const boost::json::value& value);

/// Whether JSON Schema takes the values for one: 1 and 1.0 are equal.
bool is_equal(const boost::json::value& a, const boost::json::value& b);

/// What several schemas that a value must all satisfy say together. Pointers are into the document.
struct SchemaParts {
  using Value = boost::json::value;
  using Schemas = std::vector<const Value*>;

  unsigned types = kAllTypes;
  std::optional<std::vector<Value>> values;  ///< of enum and const: one of these
  std::vector<Value> excluded;               ///< of not: none of these

  /// Of one schema each: its properties, and what holds of all other keys.
  struct Keys {
    const boost::json::object* properties = nullptr;
    const Value* pattern_properties = nullptr;
    const Value* additional = nullptr;
  };
  std::vector<Keys> keys;
  std::vector<std::string> required;
  Schemas property_names;
  double min_properties = 0;
  std::optional<double> max_properties;

  /// Of one schema each: the first elements, and what holds of those after them.
  struct Elements {
    const boost::json::array* first = nullptr;
    const Value* rest = nullptr;
  };
  std::vector<Elements> elements;
  double min_items = 0;
  std::optional<double> max_items;
  Schemas contains;  ///< each holds for one element at least

  std::vector<std::string> patterns, formats;
  double min_length = 0;
  std::optional<double> max_length;
  NumberSet numbers;

  const boost::json::array* alternatives = nullptr;  ///< anyOf or oneOf
  bool is_one_of = false;

  bool allows_nothing() const { return types == 0 || (values && values->empty()); }
  /// Whether anything beside types, listed and excluded values is said.
  bool says_more() const;
  /// Whether every value is allowed.
  bool says_nothing() const {
    return types == kAllTypes && !values && excluded.empty() && !says_more();
  }
  bool excludes(const Value& value) const;
  /// The keys that are named, in the schemas' order.
  std::vector<std::string> names() const;
  /// What each schema says of a key by this name, but for patterns.
  Schemas schemas_of(std::string_view name) const;
  /// Elements whose schemas differ from those of the ones behind them, and what each schema says of
  /// the element at an index.
  std::size_t num_first_elements() const;
  Schemas element_schemas(std::size_t index) const;
};

/// Gathers schemas of one document into SchemaParts. Bounded: the whole document may take so many
/// look-ups, so that references to references cannot multiply. Thread: one.
class SchemaReader {
 public:
  /// `root` must outlive the reader.
  explicit SchemaReader(const boost::json::value& root) : root_(&root) {}

  /// Adds what a schema says. kInvalidArgument: it is malformed, or uses a keyword that a grammar
  /// cannot keep.
  core::Status add(const boost::json::value& schema, SchemaParts& parts, int depth = 0);

  /// The schema that a local reference (#, #/...) names.
  core::Result<const boost::json::value*> resolve(std::string_view reference) const;
  /// The reference of a schema that says nothing else; empty: none.
  static std::string_view only_reference(const boost::json::value& schema);

  /// One more piece of work; fails when the document has taken too many.
  core::Status spend();

 private:
  core::Status add_not(const boost::json::value& schema, SchemaParts& parts, int depth);
  core::Status add_keyword(std::string_view key, const boost::json::value& value,
                           SchemaParts& parts, int depth);

  const boost::json::value* root_;
  int spent_ = 0;
};

}  // namespace tandem::grammar
