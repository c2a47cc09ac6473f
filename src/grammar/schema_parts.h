#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/grammar/number_set.h"
#include "tandem/grammar/schema_values.h"
#include "tandem/grammar/text_set.h"

namespace tandem::grammar {

/// That a value satisfies a schema, or that it does not.
struct Claim {
  const boost::json::value* schema = nullptr;
  bool is_denied = false;
};
using Claims = std::vector<Claim>;  ///< all of them

/// What several schemas that a value must all satisfy say together. Pointers are into the document,
/// or what its reader made of it.
struct SchemaParts {
  using Value = boost::json::value;
  using Schemas = std::vector<const Value*>;

  unsigned types = kAllTypes;
  std::optional<std::vector<Value>> values;  ///< of enum and const: one of these
  std::vector<Value> excluded;               ///< none of these

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
  bool are_items_unique = false;

  /// How many elements satisfy a schema.
  struct Contains {
    const Value* schema = nullptr;
    double min = 1;
    std::optional<double> max;
  };
  std::vector<Contains> contains;

  std::vector<TextPattern> patterns;  ///< of pattern and format
  double min_length = 0;
  std::optional<double> max_length;
  NumberSet numbers;

  /// One of the branches holds; each of them alone.
  struct Choice {
    std::vector<Claims> branches;
    bool is_one_of = false;  ///< and no other does; a branch is a single claim
  };
  std::vector<Choice> choices;

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
  /// Whether keys may be written that neither are named nor match a pattern: where a schema says
  /// so, or none has a pattern or a name that may be written.
  bool is_open() const;
  bool requires_key(std::string_view name) const;
  /// Elements whose schemas differ from those of the ones behind them, and what each schema says of
  /// the element at an index.
  std::size_t num_first_elements() const;
  Schemas element_schemas(std::size_t index) const;
};

}  // namespace tandem::grammar
