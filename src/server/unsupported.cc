#include "tandem/server/unsupported.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

namespace tandem::server {

namespace json = boost::json;

bool never(const json::value&) {
  return false;
}
bool is_false(const json::value& value) {
  return value.is_bool() && !value.get_bool();
}
bool is_true(const json::value& value) {
  return value.is_bool() && value.get_bool();
}
bool is_one(const json::value& value) {
  return value.is_number() && value.to_number<double>() == 1;
}
bool is_zero(const json::value& value) {
  return value.is_number() && value.to_number<double>() == 0;
}
bool is_not_positive(const json::value& value) {
  return value.is_number() && value.to_number<double>() <= 0;
}
bool is_empty(const json::value& value) {
  if (const auto* object = value.if_object()) return object->empty();
  if (const auto* array = value.if_array()) return array->empty();
  const auto text = text_of(value);
  return text && text->empty();
}

void refuse_unsupported(BodyReader& reader, std::span<const Unsupported> members) {
  for (const Unsupported& member : members) {
    const json::value* value = reader.find(member.name);
    if (value != nullptr && !member.is_neutral(*value)) {
      reader.fail(not_supported(reader.path_of(member.name)));
    }
  }
}

}  // namespace tandem::server
