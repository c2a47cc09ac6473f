#include "tandem/server/thinking.h"

#include <algorithm>
#include <limits>
#include <string_view>

namespace tandem::server {
namespace {

namespace json = boost::json;

struct Level {
  std::string_view name;
  Thinking thinking;
};
constexpr Level kLevels[] = {
    {"none", {}},
    {"minimal", {}},
    {"low", {true, 1024}},
    {"medium", {true, 8192}},
    {"high", {true, 24'576}},
    {"xhigh", {true, std::nullopt}},
};

/// The effort in the member `name`; no thinking if absent.
Thinking read_effort(BodyReader& reader, std::string_view name) {
  const auto effort = reader.string(name);
  if (!effort) return {};
  const auto* level = std::find_if(std::begin(kLevels), std::end(kLevels),
                                   [&](const Level& each) { return each.name == *effort; });
  if (level != std::end(kLevels)) return level->thinking;
  reader.fail(name, "must be none, minimal, low, medium, high or xhigh");
  return {};
}

void read_budget(BodyReader& reader, Thinking& thinking) {
  for (const char* name : {"thinking_budget", "max_thinking_tokens", "thinking_token_budget"}) {
    const auto budget = reader.integer(name, -1, std::numeric_limits<int>::max());
    if (!budget) continue;
    thinking.is_on = *budget != 0;
    thinking.budget = *budget < 0 ? std::nullopt : std::optional(static_cast<int>(*budget));
  }
}

void read_switch(BodyReader& reader, Thinking& thinking) {
  const json::value* value = reader.find("chat_template_kwargs");
  if (value == nullptr) return;
  const json::object* object = value->if_object();
  if (object == nullptr) return reader.fail("chat_template_kwargs", "must be an object");
  BodyReader switches(*object, "chat_template_kwargs");
  thinking.is_on = switches.boolean("enable_thinking").value_or(thinking.is_on);
  if (switches.error()) reader.fail(*switches.error());
}

Thinking read_rest(BodyReader& reader, Thinking thinking) {
  read_budget(reader, thinking);
  read_switch(reader, thinking);
  return thinking;
}

}  // namespace

Thinking read_thinking(BodyReader& reader) {
  return read_rest(reader, read_effort(reader, "reasoning_effort"));
}

Thinking read_thinking_of_response(BodyReader& reader) {
  const json::value* value = reader.find("reasoning");
  if (value == nullptr) return read_rest(reader, {});
  const json::object* object = value->if_object();
  if (object == nullptr) {
    reader.fail("reasoning", "must be an object");
    return {};
  }
  BodyReader reasoning(*object, "reasoning");
  const Thinking thinking = read_effort(reasoning, "effort");
  if (reasoning.error()) reader.fail(*reasoning.error());
  return read_rest(reader, thinking);
}

}  // namespace tandem::server
