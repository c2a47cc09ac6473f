#include "schema_validator.h"

#include <algorithm>
#include <cmath>
#include <regex>
#include <string>
#include <string_view>

namespace tandem::testing {
namespace {

namespace json = boost::json;

std::string text_of(const json::value& value) {
  return std::string(value.as_string());
}

bool is_type(const json::value& value, std::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_bool();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (!value.is_number()) return false;
  const double number = value.to_number<double>();
  return type == "number" || number == std::floor(number);
}

bool equal(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) return a.to_number<double>() == b.to_number<double>();
  return a == b;
}

double num_characters(std::string_view text) {
  return static_cast<double>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool has_format(const std::string& text, std::string_view format) {
  const auto matches = [&](const char* pattern) {
    return std::regex_match(text, std::regex(pattern));
  };
  const std::string date = text.substr(0, 10);
  if (format == "date" || format == "date-time") {
    if (!std::regex_match(date, std::regex("\\d{4}-\\d\\d-\\d\\d"))) return false;
    const int year = std::stoi(date), month = std::stoi(date.substr(5)),
              day = std::stoi(date.substr(8));
    constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (month < 1 || month > 12 || day < 1) return false;
    const bool is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if (day > kDays[month - 1] + (month == 2 && is_leap)) return false;
    if (format == "date") return text.size() == 10;
    return text.size() > 11 && text[10] == 'T' && has_format(text.substr(11), "time");
  }
  if (format == "time") {
    return matches("([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d+)?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)");
  }
  if (format == "uuid") return matches("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}");
  if (format == "email") return matches("[^@ ]+@[^@ ]+\\.[^@ ]+");
  if (format == "ipv4") {
    if (!matches("\\d{1,3}(\\.\\d{1,3}){3}")) return false;
    for (std::size_t at = 0; at != std::string::npos; at = text.find('.', at + 1)) {
      if (std::stoi(text.substr(at + (at > 0))) > 255) return false;
    }
  }
  return true;
}

bool is_valid_string(const std::string& text, const json::object& s) {
  if (const auto* min = s.if_contains("minLength")) {
    if (num_characters(text) < min->to_number<double>()) return false;
  }
  if (const auto* max = s.if_contains("maxLength")) {
    if (num_characters(text) > max->to_number<double>()) return false;
  }
  if (const auto* format = s.if_contains("format")) {
    if (!has_format(text, text_of(*format))) return false;
  }
  if (const auto* pattern = s.if_contains("pattern")) {
    // std::regex reads bytes: patterns beyond ASCII are left to the golden's own texts.
    const std::string p = text_of(*pattern);
    const bool is_ascii = std::all_of(p.begin(), p.end(), [](char c) { return c >= 0; });
    if (is_ascii && !std::regex_search(text, std::regex(p))) return false;
  }
  return true;
}

bool is_valid_number(double number, const json::object& s) {
  const auto bound = [&](const char* key) {
    const auto* value = s.if_contains(key);
    return value == nullptr ? std::nan("") : value->to_number<double>();
  };
  if (const auto* step = s.if_contains("multipleOf")) {  // as exact as doubles are
    const double quotient = number / step->to_number<double>();
    if (std::abs(quotient - std::round(quotient)) > 1e-12 + 1e-15 * std::abs(quotient)) {
      return false;
    }
  }
  // Comparisons with NaN are false.
  return !(number < bound("minimum") || number > bound("maximum") ||
           number <= bound("exclusiveMinimum") || number >= bound("exclusiveMaximum"));
}

bool is_valid_array(const json::array& array, const json::object& s, const json::value& root) {
  const auto size = static_cast<double>(array.size());
  if (const auto* min = s.if_contains("minItems"); min && size < min->to_number<double>())
    return false;
  if (const auto* max = s.if_contains("maxItems"); max && size > max->to_number<double>())
    return false;
  if (const auto* wanted = s.if_contains("contains")) {
    const auto* least = s.if_contains("minContains");
    const auto* most = s.if_contains("maxContains");
    const auto count = std::count_if(array.begin(), array.end(), [&](const json::value& each) {
      return is_valid(each, *wanted, root);
    });
    if (count < (least == nullptr ? 1 : least->to_number<int>())) return false;
    if (most != nullptr && count > most->to_number<int>()) return false;
  }
  if (const auto* unique = s.if_contains("uniqueItems"); unique && unique->as_bool()) {
    for (std::size_t i = 0; i < array.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (equal(array[i], array[j])) return false;
      }
    }
  }
  const auto* first = s.if_contains("prefixItems");
  const auto* items = s.if_contains("items");
  const std::size_t num_first = first == nullptr ? 0 : first->as_array().size();
  for (std::size_t i = 0; i < array.size(); ++i) {
    if (i < num_first) {
      if (!is_valid(array[i], first->as_array()[i], root)) return false;
    } else if (items != nullptr && !is_valid(array[i], *items, root)) {
      return false;
    }
  }
  return true;
}

bool is_valid_object(const json::object& object, const json::object& s, const json::value& root) {
  const auto size = static_cast<double>(object.size());
  if (const auto* min = s.if_contains("minProperties"); min && size < min->to_number<double>())
    return false;
  if (const auto* max = s.if_contains("maxProperties"); max && size > max->to_number<double>())
    return false;
  if (const auto* required = s.if_contains("required")) {
    for (const auto& name : required->as_array()) {
      if (!object.contains(name.as_string())) return false;
    }
  }
  for (const auto& member : object) {
    const std::string key(member.key());
    bool is_named = false;
    if (const auto* properties = s.if_contains("properties")) {
      if (const auto* own = properties->as_object().if_contains(key)) {
        is_named = true;
        if (!is_valid(member.value(), *own, root)) return false;
      }
    }
    if (const auto* patterns = s.if_contains("patternProperties")) {
      for (const auto& each : patterns->as_object()) {
        if (!std::regex_search(key, std::regex(std::string(each.key())))) continue;
        is_named = true;
        if (!is_valid(member.value(), each.value(), root)) return false;
      }
    }
    const auto* additional = s.if_contains("additionalProperties");
    if (!is_named && additional && !is_valid(member.value(), *additional, root)) return false;
    const auto* names = s.if_contains("propertyNames");
    if (names != nullptr && !is_valid(json::value(key), *names, root)) return false;
  }
  return true;
}

bool is_valid_under_conditions(const json::value& value, const json::object& s,
                               const json::value& root) {
  if (const auto* condition = s.if_contains("if")) {
    const auto* then = s.if_contains(is_valid(value, *condition, root) ? "then" : "else");
    if (then != nullptr && !is_valid(value, *then, root)) return false;
  }
  const json::object* object = value.if_object();
  const auto* names = s.if_contains("dependentRequired");
  if (object != nullptr && names != nullptr) {
    for (const auto& each : names->as_object()) {
      for (const auto& other : each.value().as_array()) {
        if (object->contains(each.key()) && !object->contains(other.as_string())) return false;
      }
    }
  }
  const auto* schemas = s.if_contains("dependentSchemas");
  if (object != nullptr && schemas != nullptr) {
    for (const auto& each : schemas->as_object()) {
      if (object->contains(each.key()) && !is_valid(value, each.value(), root)) return false;
    }
  }
  return true;
}

bool is_valid_under_lists(const json::value& value, const json::object& s,
                          const json::value& root) {
  const auto count = [&](const json::value& schemas) {
    return std::count_if(schemas.as_array().begin(), schemas.as_array().end(),
                         [&](const json::value& each) { return is_valid(value, each, root); });
  };
  if (const auto* any = s.if_contains("anyOf"); any && count(*any) == 0) return false;
  if (const auto* one = s.if_contains("oneOf"); one && count(*one) != 1) return false;
  if (const auto* refused = s.if_contains("not"); refused && is_valid(value, *refused, root)) {
    return false;
  }
  if (const auto* all = s.if_contains("allOf")) {
    if (static_cast<std::size_t>(count(*all)) != all->as_array().size()) return false;
  }
  return true;
}

}  // namespace

bool is_valid(const json::value& value, const json::value& schema, const json::value& root) {
  if (schema.is_bool()) return schema.as_bool();
  const json::object& s = schema.as_object();
  if (const auto* reference = s.if_contains("$ref")) {
    const std::string name = text_of(*reference);
    const json::value& target = name == "#" ? root : root.at_pointer(name.substr(1));
    if (!is_valid(value, target, root)) return false;
  }
  if (const auto* type = s.if_contains("type")) {
    bool is_one = type->is_string() && is_type(value, text_of(*type));
    if (type->is_array()) {
      for (const auto& each : type->as_array()) is_one |= is_type(value, text_of(each));
    }
    if (!is_one) return false;
  }
  if (const auto* constant = s.if_contains("const"); constant && !equal(value, *constant))
    return false;
  if (const auto* values = s.if_contains("enum")) {
    const auto& list = values->as_array();
    if (std::none_of(list.begin(), list.end(), [&](const auto& v) { return equal(v, value); })) {
      return false;
    }
  }
  if (!is_valid_under_lists(value, s, root)) return false;
  if (!is_valid_under_conditions(value, s, root)) return false;
  if (value.is_string()) return is_valid_string(text_of(value), s);
  if (value.is_number()) return is_valid_number(value.to_number<double>(), s);
  if (value.is_array()) return is_valid_array(value.as_array(), s, root);
  if (value.is_object()) return is_valid_object(value.as_object(), s, root);
  return true;
}

}  // namespace tandem::testing
