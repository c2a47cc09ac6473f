#include "tandem/server/output_format.h"

#include <fmt/format.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <string>
#include <utility>

#include "tandem/server/json_text.h"
#include "tandem/server/unsupported.h"

namespace tandem::server {
namespace {

namespace json = boost::json;
using grammar::Source;

/// A member that asks for a form, and how its value is read.
struct Form {
  std::string_view name;
  Source::Kind kind;
};

constexpr Form kForms[] = {
    {"json_schema", Source::Kind::kJsonSchema},
    {"grammar", Source::Kind::kGbnf},
    {"regex", Source::Kind::kRegex},
    {"choice", Source::Kind::kChoice},
    {"guided_json", Source::Kind::kJsonSchema},
    {"guided_grammar", Source::Kind::kGbnf},
    {"guided_regex", Source::Kind::kRegex},
    {"guided_choice", Source::Kind::kChoice},
};
constexpr Form kStructuredForms[] = {
    {"json", Source::Kind::kJsonSchema},
    {"grammar", Source::Kind::kGbnf},
    {"regex", Source::Kind::kRegex},
    {"choice", Source::Kind::kChoice},
    {"json_object", Source::Kind::kJsonObject},
};

constexpr Unsupported kUnsupportedForms[] = {
    {"structural_tag", never},
    {"whitespace_pattern", never},
    {"disable_any_whitespace", is_false},
    {"disable_additional_properties", is_false},
};

constexpr Unsupported kUnsupportedTexts[] = {
    {"verbosity",
     [](const json::value& value) {
       return text_of(value) == "medium";
     }},
};

Source source_of(Source::Kind kind, std::string text = {}) {
  Source source;
  source.kind = kind;
  source.text = std::move(text);
  return source;
}

std::optional<Source> read_choices(BodyReader& reader, std::string_view name,
                                   const json::value& value) {
  const json::array* array = value.if_array();
  Source source;
  source.kind = Source::Kind::kChoice;
  for (std::size_t i = 0; array != nullptr && i < array->size(); ++i) {
    const auto text = text_of((*array)[i]);
    if (text && !text->empty()) source.choices.emplace_back(*text);
  }
  if (array != nullptr && !array->empty() && source.choices.size() == array->size()) return source;
  reader.fail(name, "must be an array of strings that are not empty");
  return std::nullopt;
}

/// The source that a member asks for; none if it is empty.
std::optional<Source> read_form(BodyReader& reader, const Form& form, const json::value& value) {
  const auto text = text_of(value);
  switch (form.kind) {
    case Source::Kind::kChoice:
      return read_choices(reader, form.name, value);
    case Source::Kind::kJsonObject:
      if (reader.boolean(form.name).value_or(false)) return source_of(form.kind);
      return std::nullopt;
    case Source::Kind::kJsonSchema:  // some clients send the schema as text
      if (text) return source_of(form.kind, std::string(*text));
      if (value.is_object() || value.is_bool()) return source_of(form.kind, exact_json(value));
      reader.fail(form.name, "must be a JSON schema");
      return std::nullopt;
    default:
      if (!text) reader.fail(form.name, "must be a string");
      if (!text || text->empty()) return std::nullopt;
      return source_of(form.kind, std::string(*text));
  }
}

/// `schema` of a response_format or text.format. It is kept to the letter whether or not it is
/// called strict.
std::optional<Source> read_schema_of(BodyReader& holder) {
  const json::value* schema = holder.find("schema");
  if (schema != nullptr && schema->is_object()) {
    return source_of(Source::Kind::kJsonSchema, exact_json(*schema));
  }
  holder.fail("schema", "must be a JSON schema");
  return std::nullopt;
}

/// `format`: {"type":"text"|"json_object"|"json_schema",..}; with `is_flat` the schema is its own
/// member, else that of its member json_schema.
std::optional<Source> read_format(BodyReader& format, bool is_flat) {
  const auto type = format.string("type").value_or("");
  if (type == "text") return std::nullopt;
  if (type == "json_object") {  // llama.cpp's clients put a schema beside it
    if (format.find("schema") != nullptr) return read_schema_of(format);
    return source_of(Source::Kind::kJsonObject);
  }
  if (type != "json_schema") {
    format.fail("type", "must be text, json_object or json_schema");
    return std::nullopt;
  }
  if (is_flat) return read_schema_of(format);
  const json::value* value = format.find("json_schema");
  const json::object* object = value == nullptr ? nullptr : value->if_object();
  if (object == nullptr) {
    format.fail("json_schema", "must be an object with the member schema");
    return std::nullopt;
  }
  BodyReader holder(*object, format.path_of("json_schema"));
  auto source = read_schema_of(holder);
  if (holder.error()) format.fail(*holder.error());
  return source;
}

/// Reads an object member with `read(reader of it)`.
template <typename Read>
std::optional<Source> read_object(BodyReader& reader, std::string_view name, Read read) {
  const json::value* value = reader.find(name);
  if (value == nullptr) return std::nullopt;
  const json::object* object = value->if_object();
  if (object == nullptr) {
    reader.fail(name, "must be an object");
    return std::nullopt;
  }
  BodyReader inner(*object, reader.path_of(name));
  std::optional<Source> source = read(inner);
  if (inner.error()) reader.fail(*inner.error());
  return source;
}

/// Keeps the one source that is asked for.
class OnlyOne {
 public:
  explicit OnlyOne(BodyReader& reader) : reader_(reader) {}

  void add(std::string_view name, std::optional<Source> source) {
    if (!source) return;
    if (format_) reader_.fail(name, "asks for a second form of the answer; give one");
    format_ = {*std::move(source), reader_.path_of(name)};
  }
  void add_forms(std::span<const Form> forms, BodyReader& members) {
    for (const Form& form : forms) {
      const json::value* value = members.find(form.name);
      if (value != nullptr) add(form.name, read_form(members, form, *value));
    }
  }
  std::optional<OutputFormat> take() { return std::move(format_); }

 private:
  BodyReader& reader_;
  std::optional<OutputFormat> format_;
};

}  // namespace

std::optional<OutputFormat> read_output_format(BodyReader& reader) {
  OnlyOne form(reader);
  form.add("response_format", read_object(reader, "response_format", [](BodyReader& format) {
             return read_format(format, false);
           }));
  form.add("structured_outputs", read_object(reader, "structured_outputs", [](BodyReader& members) {
             OnlyOne inner(members);
             inner.add_forms(kStructuredForms, members);
             refuse_unsupported(members, kUnsupportedForms);
             auto found = inner.take();
             return found ? std::optional(std::move(found->source)) : std::nullopt;
           }));
  form.add_forms(kForms, reader);
  return form.take();
}

std::optional<OutputFormat> read_text_format(BodyReader& reader) {
  OnlyOne form(reader);
  form.add("text", read_object(reader, "text", [](BodyReader& text) {
             refuse_unsupported(text, kUnsupportedTexts);
             return read_object(text, "format",
                                [](BodyReader& format) { return read_format(format, true); });
           }));
  return form.take();
}

}  // namespace tandem::server
