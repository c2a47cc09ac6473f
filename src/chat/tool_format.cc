#include "tandem/chat/tool_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/chat/python_text.h"
#include "tandem/chat/wire_json.h"

namespace tandem::chat {

namespace {

namespace json = boost::json;

enum class Keys { kBare, kQuoted };

/// Writes a comma before every item but the first.
class Commas {
 public:
  explicit Commas(PromptBuilder& out) : out_(out) {}
  PromptBuilder& next() {
    if (!std::exchange(first_, false)) out_.markup(",");
    return out_;
  }

 private:
  PromptBuilder& out_;
  bool first_ = true;
};

void write_string(std::string_view text, PromptBuilder& out) {
  out.markup("<|\"|>").text(text).markup("<|\"|>");
}

/// Jinja's dictsort: by lower-cased key, equals in the order given.
std::vector<const json::key_value_pair*> sorted(const json::object& object) {
  std::vector<std::pair<std::string, const json::key_value_pair*>> keyed;
  for (const auto& pair : object) keyed.emplace_back(lower(pair.key()), &pair);
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<const json::key_value_pair*> pairs;
  for (const auto& entry : keyed) pairs.push_back(entry.second);
  return pairs;
}

/// The template's format_argument.
void write_value(const json::value& value, Keys keys, PromptBuilder& out) {
  if (value.is_string() && !big_integer(value)) {
    write_string(value.get_string(), out);
  } else if (const bool* flag = value.if_bool()) {
    out.markup(*flag ? "true" : "false");
  } else if (const auto* object = value.if_object()) {
    out.markup("{");
    Commas commas(out);
    for (const auto* pair : sorted(*object)) {
      commas.next();
      if (keys == Keys::kQuoted) {
        write_string(pair->key(), out);
      } else {
        out.text(pair->key());
      }
      out.markup(":");
      write_value(pair->value(), keys, out);
    }
    out.markup("}");
  } else if (const auto* array = value.if_array()) {
    out.markup("[");
    Commas commas(out);
    for (const auto& item : *array) {
      commas.next();
      write_value(item, keys, out);
    }
    out.markup("]");
  } else {
    out.text(to_python_str(value));
  }
}

void write_members(const json::object& object, PromptBuilder& out) {
  Commas commas(out);
  for (const auto* pair : sorted(object)) {
    commas.next().text(pair->key()).markup(":");
    write_value(pair->value(), Keys::kBare, out);
  }
}

/// The value's text in upper case, as `value | upper` gives it; empty when there is none.
std::string upper_of(const json::value* value) {
  return value == nullptr ? std::string() : upper(to_python_str(*value));
}

/// `name:<|"|>text<|"|>`
void write_field(std::string_view name, std::string_view text, PromptBuilder& out) {
  out.markup(name).markup(":");
  write_string(text, out);
}

/// Writes the declaration of one function; `path` is where in it the writer is, for messages.
class DeclarationWriter {
 public:
  explicit DeclarationWriter(PromptBuilder& out) : out_(out) {}

  core::Status write(const json::object& function) {
    const json::value* name = function.if_contains("name");
    const json::value* description = function.if_contains("description");
    out_.markup("declaration:").text(name == nullptr ? "" : to_python_str(*name)).markup("{");
    write_field("description", description == nullptr ? "" : to_python_str(*description), out_);
    if (const json::value* parameters = function.if_contains("parameters"); is_truthy(parameters)) {
      TANDEM_TRY(write_parameters(*parameters).with_context("parameters"));
    }
    if (const json::value* response = function.if_contains("response")) {
      TANDEM_TRY(write_response_type(*response));
    }
    out_.markup("}");
    return {};
  }

 private:
  core::Status write_parameters(const json::value& parameters) {
    const json::object* schema = parameters.if_object();
    if (schema == nullptr) return core::invalid_argument("must be an object");
    out_.markup(",parameters:{");
    if (const json::value* properties = schema->if_contains("properties"); is_truthy(properties)) {
      if (!properties->is_object()) return core::invalid_argument("properties must be an object");
      out_.markup("properties:{");
      TANDEM_TRY(write_properties(properties->get_object()));
      out_.markup("},");
    }
    if (const json::value* required = schema->if_contains("required"); is_truthy(required)) {
      TANDEM_TRY(write_required(*required));
      out_.markup(",");
    }
    if (const json::value* type = schema->if_contains("type"); is_truthy(type)) {
      write_field("type", upper_of(type), out_);
      out_.markup("}");
    }
    return {};
  }

  core::Status write_response_type(const json::value& response) {
    out_.markup(",response:{");
    const json::object* schema = response.if_object();
    if (schema == nullptr) return {};
    if (const json::value* description = schema->if_contains("description");
        is_truthy(description)) {
      write_field("description", to_python_str(*description), out_);
      out_.markup(",");
    }
    if (upper_of(schema->if_contains("type")) == "OBJECT") {
      write_field("type", "OBJECT", out_);
      out_.markup("}");
    }
    return {};
  }

  /// `required:[...]`
  core::Status write_required(const json::value& required) {
    if (!required.is_array()) return core::invalid_argument("required must be a list of names");
    out_.markup("required:[");
    Commas commas(out_);
    for (const auto& item : required.get_array()) {
      commas.next();
      write_string(to_python_str(item), out_);
    }
    out_.markup("]");
    return {};
  }

  /// The template's format_parameters.
  core::Status write_properties(const json::object& properties) {
    // A property named like a schema keyword is skipped, because the template hands whole schemas
    // to this function where an object type has no `properties`.
    static constexpr std::array<std::string_view, 5> kSchemaKeys = {
        "description", "type", "properties", "required", "nullable"};
    Commas commas(out_);
    for (const auto* pair : sorted(properties)) {
      const std::string_view name = pair->key();
      if (std::find(kSchemaKeys.begin(), kSchemaKeys.end(), name) != kSchemaKeys.end()) continue;
      commas.next().text(name).markup(":{");
      TANDEM_TRY(write_property(pair->value()).with_context(fmt::format("properties.{}", name)));
      out_.markup("}");
    }
    return {};
  }

  core::Status write_property(const json::value& value) {
    static const json::object kNoMembers;
    const json::object& schema = value.is_object() ? value.get_object() : kNoMembers;
    const json::value* type = schema.if_contains("type");
    const std::string type_name = upper_of(type);
    Commas commas(out_);
    if (const auto* description = schema.if_contains("description"); is_truthy(description)) {
      commas.next();
      write_field("description", to_python_str(*description), out_);
    }
    if (const auto* choices = schema.if_contains("enum");
        type_name == "STRING" && is_truthy(choices)) {
      commas.next().markup("enum:");
      write_value(*choices, Keys::kQuoted, out_);
    }
    if (const auto* items = schema.if_contains("items");
        type_name == "ARRAY" && is_truthy(items) && items->is_object()) {
      commas.next().markup("items:{");
      TANDEM_TRY(write_items(items->get_object()).with_context("items"));
      out_.markup("}");
    }
    if (is_truthy(schema.if_contains("nullable"))) commas.next().markup("nullable:true");
    if (type_name == "OBJECT") TANDEM_TRY(write_object_type(schema, commas));
    commas.next();
    write_field("type", type_name, out_);
    return {};
  }

  core::Status write_object_type(const json::object& schema, Commas& commas) {
    const json::value* properties = schema.if_contains("properties");
    commas.next().markup("properties:{");
    const bool has_properties = properties != nullptr && properties->is_object();
    TANDEM_TRY(write_properties(has_properties ? properties->get_object() : schema));
    out_.markup("}");
    if (const json::value* required = schema.if_contains("required"); is_truthy(required)) {
      commas.next();
      TANDEM_TRY(write_required(*required));
    }
    return {};
  }

  /// The members of an array's item schema, which the template writes one by one.
  core::Status write_items(const json::object& items) {
    Commas commas(out_);
    for (const auto* pair : sorted(items)) {
      const std::string_view key = pair->key();
      const json::value& value = pair->value();
      if (value.is_null()) continue;
      commas.next();
      if (key == "properties") {
        out_.markup("properties:{");
        if (value.is_object()) TANDEM_TRY(write_properties(value.get_object()));
        out_.markup("}");
      } else if (key == "required") {
        TANDEM_TRY(write_required(value));
      } else if (key == "type") {
        out_.markup("type:");
        TANDEM_TRY(write_item_type(value));
      } else {
        out_.text(key).markup(":");
        write_value(value, Keys::kQuoted, out_);
      }
    }
    return {};
  }

  core::Status write_item_type(const json::value& type) {
    if (type.is_string()) {
      write_string(upper_of(&type), out_);
      return {};
    }
    if (!type.is_array()) return core::invalid_argument("type must be a string or a list");
    json::array names;
    for (const auto& name : type.get_array()) names.emplace_back(upper_of(&name));
    write_value(names, Keys::kQuoted, out_);
    return {};
  }

  PromptBuilder& out_;
};

}  // namespace

core::Status write_declaration(const json::object& function, PromptBuilder& out) {
  return DeclarationWriter(out).write(function);
}

void write_call(const ToolCall& call, PromptBuilder& out) {
  out.markup("<|tool_call>call:").text(call.name).markup("{");
  if (const auto* members = call.arguments.if_object()) {
    write_members(*members, out);
  } else if (const auto* verbatim = call.arguments.if_string()) {
    out.text(*verbatim);
  }
  out.markup("}<tool_call|>");
}

void write_response(const ToolResponse& response, PromptBuilder& out) {
  out.markup("<|tool_response>response:").text(response.name).markup("{");
  if (const auto* members = response.response.if_object()) {
    write_members(*members, out);
  } else {
    out.markup("value:");
    write_value(response.response, Keys::kBare, out);
  }
  out.markup("}<tool_response|>");
}

}  // namespace tandem::chat
