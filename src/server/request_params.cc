#include "tandem/server/request_params.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <charconv>
#include <limits>
#include <utility>

#include "tandem/chat/wire_json.h"
#include "tandem/server/unsupported.h"

namespace tandem::server {

namespace json = boost::json;

namespace {

constexpr std::size_t kMaxStops = 64;
constexpr std::size_t kMaxStopBytes = 1024;
constexpr int kMaxInt = std::numeric_limits<int>::max();

/// vLLM's and llama.cpp's members that would change an answer.
constexpr Unsupported kUnsupported[] = {
    {"allowed_token_ids", never},
    {"bad_words", is_empty},
    {"cache_salt", never},
    {"dry_multiplier", is_not_positive},
    {"dynatemp_range", is_not_positive},
    {"guided_whitespace_pattern", never},
    {"include_stop_str_in_output", is_false},
    {"logits_processors", is_empty},
    {"lora", is_empty},
    {"mirostat", is_not_positive},
    {"n_probs", is_not_positive},
    {"priority", is_zero},
    {"repetition_detection", never},
    {"return_token_ids", is_false},
    {"return_tokens", is_false},
    {"return_tokens_as_token_ids", is_false},
    {"skip_special_tokens", is_true},
    {"top_n_sigma", is_not_positive},
    {"truncate_prompt_tokens", never},
    {"typical_p", is_one},
    {"use_beam_search", is_false},
    {"xtc_probability", is_not_positive},
};

void read_stop(BodyReader& reader, std::vector<std::string>& stop) {
  const json::value* value = reader.find("stop");
  if (value == nullptr) return;
  const auto is_usable = [](std::string_view text) {
    return !text.empty() && text.size() <= kMaxStopBytes;
  };
  const auto fail = [&reader] {
    reader.fail("stop", fmt::format("must be a string or an array of at most {} strings, each of "
                                    "1 to {} bytes",
                                    kMaxStops, kMaxStopBytes));
  };
  if (const auto text = text_of(*value)) {
    if (!is_usable(*text)) return fail();
    stop.emplace_back(*text);
    return;
  }
  const json::array* array = value->if_array();
  if (array == nullptr || array->size() > kMaxStops) return fail();
  for (const json::value& item : *array) {
    const auto text = text_of(item);
    if (!text || !is_usable(*text)) return fail();
    stop.emplace_back(*text);
  }
}

void read_stop_tokens(BodyReader& reader, std::vector<TokenId>& stop_tokens) {
  const json::value* value = reader.find("stop_token_ids");
  if (value == nullptr) return;
  const json::array* array = value->if_array();
  auto ids = array == nullptr ? std::nullopt : token_ids(*array);
  if (!ids || ids->size() > engine::kMaxStopTokens) {
    return reader.fail("stop_token_ids", fmt::format("must be an array of at most {} token ids",
                                                     engine::kMaxStopTokens));
  }
  stop_tokens = std::move(*ids);
}

void read_logit_bias(BodyReader& reader, std::vector<engine::LogitBias>& biases) {
  const json::value* value = reader.find("logit_bias");
  if (value == nullptr) return;
  const json::array* array = value->if_array();  // llama.cpp's default, and PHP's empty object
  if (array != nullptr && array->empty()) return;
  const auto fail = [&reader] {
    reader.fail("logit_bias",
                fmt::format("must be an object of at most {} token ids with numbers from -100 to "
                            "100",
                            engine::kMaxLogitBiases));
  };
  const json::object* object = value->if_object();
  if (object == nullptr || object->size() > engine::kMaxLogitBiases) return fail();
  for (const auto& [key, number] : *object) {
    engine::LogitBias bias;
    const char* end = key.data() + key.size();
    const auto [stopped, error] = std::from_chars(key.data(), end, bias.token);
    if (error != std::errc() || stopped != end || bias.token < 0 || !number.is_number()) {
      return fail();
    }
    const auto amount = number.to_number<double>();
    if (!(amount >= -100 && amount <= 100)) return fail();
    bias.bias = static_cast<float>(amount);
    biases.push_back(bias);
  }
  // Keys such as "7" and "07" name the same token.
  std::sort(biases.begin(), biases.end(),
            [](const auto& a, const auto& b) { return a.token < b.token; });
  const auto is_same = [](const auto& a, const auto& b) {
    return a.token == b.token;
  };
  if (std::adjacent_find(biases.begin(), biases.end(), is_same) != biases.end()) fail();
}

void read_penalties(BodyReader& reader, engine::Penalties& penalties) {
  penalties.presence = static_cast<float>(reader.number("presence_penalty", -2, 2).value_or(0));
  penalties.frequency = static_cast<float>(reader.number("frequency_penalty", -2, 2).value_or(0));
  // vLLM's name and llama.cpp's.
  for (const char* name : {"repetition_penalty", "repeat_penalty"}) {
    if (const auto value = reader.number(name, 0.01, 10)) {
      penalties.repetition = static_cast<float>(*value);
    }
  }
}

void read_stream_options(BodyReader& reader, GenerationParams& params) {
  const json::value* value = reader.find("stream_options");
  if (value == nullptr) return;
  const json::object* object = value->if_object();
  if (object == nullptr) return reader.fail("stream_options", "must be an object");
  if (!params.stream) {
    return reader.fail("stream_options", "is only allowed when 'stream' is true");
  }
  BodyReader options(*object, "stream_options");
  params.include_usage = options.boolean("include_usage").value_or(false);
  params.continuous_usage = options.boolean("continuous_usage_stats").value_or(false);
  if (options.error()) reader.fail(*options.error());
}

void read_sampling(BodyReader& reader, kernels::SamplingParams& sampling) {
  if (const auto value = reader.number("temperature", 0, 2)) {
    sampling.temperature = static_cast<float>(*value);
  }
  if (const auto value = reader.integer("top_k", -1, kMaxInt)) {
    sampling.top_k = static_cast<std::int32_t>(std::max<std::int64_t>(*value, 0));  // -1: off
  }
  if (const auto value = reader.number("top_p", 0, 1)) {
    // 0 keeps the best token alone, as any value below its probability does.
    sampling.top_p = std::max(static_cast<float>(*value), std::numeric_limits<float>::min());
  }
  if (const auto value = reader.number("min_p", 0, 1)) {
    sampling.min_p = static_cast<float>(*value);
  }
}

void read_choices(BodyReader& reader, GenerationParams& params) {
  params.n = static_cast<int>(reader.integer("n", 1, kMaxChoices).value_or(1));
  // Choices that are made and thrown away are not supported.
  const auto best_of = reader.integer("best_of", 1, kMaxInt).value_or(params.n);
  if (best_of < params.n) reader.fail("best_of", "must be at least 'n'");
  if (best_of > params.n) reader.fail(not_supported("best_of"));
}

void read_lengths(BodyReader& reader, int least_tokens, GenerationParams& params) {
  // llama.cpp's name and OpenAI's. -1 is no limit, as for llama.cpp and LM Studio.
  for (const char* name : {"n_predict", "max_tokens", "max_completion_tokens"}) {
    const json::value* value = reader.find(name);
    if (value != nullptr && *value == json::value(-1)) continue;
    if (const auto most = reader.integer(name, least_tokens, kMaxInt)) {
      params.max_tokens = static_cast<int>(*most);
    }
  }
  const int most = params.max_tokens.value_or(kMaxInt);
  params.min_tokens = static_cast<int>(reader.integer("min_tokens", 0, most).value_or(0));
}

}  // namespace

std::optional<std::vector<TokenId>> token_ids(const json::array& array) {
  std::vector<TokenId> ids;
  ids.reserve(array.size());
  for (const json::value& item : array) {
    const std::int64_t* number = item.if_int64();
    if (number == nullptr || *number < 0 || *number > kMaxInt) return std::nullopt;
    ids.push_back(static_cast<TokenId>(*number));
  }
  return ids;
}

void read_prompt_logprobs(BodyReader& reader, GenerationParams& params) {
  const auto count = reader.integer("prompt_logprobs", 0, kernels::kMaxTopLogprobs);
  if (!count) return;
  if (params.stream) {
    return reader.fail("prompt_logprobs", "is not available when 'stream' is true");
  }
  params.prompt_logprobs = static_cast<int>(*count);
}

GenerationParams read_params(BodyReader& reader, const kernels::SamplingParams& defaults,
                             int least_tokens) {
  GenerationParams params;
  params.model = std::string(reader.string("model").value_or(""));
  params.sampling = defaults;
  read_sampling(reader, params.sampling);
  constexpr auto kAnyInteger = std::numeric_limits<std::int64_t>::min();
  if (const auto seed =
          reader.integer("seed", kAnyInteger, std::numeric_limits<std::int64_t>::max())) {
    params.seed = static_cast<std::uint64_t>(*seed);
  }
  read_choices(reader, params);
  read_lengths(reader, least_tokens, params);
  read_penalties(reader, params.penalties);
  read_logit_bias(reader, params.logit_bias);
  read_stop(reader, params.stop);
  read_stop_tokens(reader, params.stop_tokens);
  params.ignore_eos = reader.boolean("ignore_eos").value_or(false);
  if (const auto length = reader.integer("draft_length", 0, kMaxDraft)) {
    params.draft_length = static_cast<int>(*length);
  }
  params.format = read_output_format(reader);
  params.stream = reader.boolean("stream").value_or(false);
  read_stream_options(reader, params);
  reader.string("user");
  refuse_unsupported(reader, kUnsupported);
  return params;
}

}  // namespace tandem::server
