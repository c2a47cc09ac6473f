#include "tandem/server/answer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "tandem/core/utf8.h"
#include "tandem/server/json_text.h"

namespace tandem::server {
namespace {

/// A token's bytes as text; a part of a character becomes U+FFFD.
std::string spelled(TokenId token, const tokenizer::Tokenizer& tokenizer) {
  return std::string(core::sanitize_utf8(tokenizer.bytes(token)));
}

/// JSON has no infinity: as OpenAI does, what is impossible is -9999.
float finite(float logprob) {
  return std::max(logprob, -9999.0F);
}

void append_scored_token(std::string& out, const kernels::TokenLogprob& scored,
                         const tokenizer::Tokenizer& tokenizer) {
  out += R"("token":)";
  append_json_string(out, spelled(scored.token, tokenizer));
  fmt::format_to(std::back_inserter(out), R"(,"logprob":{},"bytes":[)", finite(scored.logprob));
  const char* separator = "";
  for (const char byte : tokenizer.bytes(scored.token)) {
    fmt::format_to(std::back_inserter(out), "{}{}", separator, static_cast<unsigned char>(byte));
    separator = ",";
  }
  out += ']';
}

/// `write(item)` for each item, with commas between.
template <typename Items, typename Write>
void append_list(std::string& out, const Items& items, Write write) {
  out += '[';
  bool is_first = true;
  for (const auto& item : items) {
    if (!is_first) out += ',';
    is_first = false;
    write(item);
  }
  out += ']';
}

std::size_t num_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

/// {"spelling":logprob,..}: the likeliest tokens and the token itself, of those that are spelled
/// alike the likelier one; null where nothing comes before.
void append_top_of_text(std::string& out, const ScoredToken& scored,
                        const tokenizer::Tokenizer& tokenizer) {
  if (std::isnan(scored.chosen.logprob)) {
    out += "null";
    return;
  }
  std::vector<std::string> written;
  out += '{';
  const auto append = [&](const kernels::TokenLogprob& each) {
    std::string name = spelled(each.token, tokenizer);
    if (std::find(written.begin(), written.end(), name) != written.end()) return;
    if (!written.empty()) out += ',';
    append_json_string(out, name);
    fmt::format_to(std::back_inserter(out), ":{}", finite(each.logprob));
    written.push_back(std::move(name));
  };
  for (const kernels::TokenLogprob& top : scored.top) append(top);
  append(scored.chosen);
  out += '}';
}

/// "ID":{"logprob":..,"rank":..,"decoded_token":..}
void append_ranked_token(std::string& out, const kernels::TokenLogprob& scored, std::int32_t rank,
                         const tokenizer::Tokenizer& tokenizer) {
  fmt::format_to(std::back_inserter(out), R"("{}":{{"logprob":{},"rank":{},"decoded_token":)",
                 scored.token, finite(scored.logprob), rank);
  append_json_string(out, spelled(scored.token, tokenizer));
  out += '}';
}

}  // namespace

void append_head(std::string& out, const AnswerHead& head, std::string_view object) {
  out += R"({"id":)";
  append_json_string(out, head.id);
  out += R"(,"object":)";
  append_json_string(out, object);
  fmt::format_to(std::back_inserter(out), R"(,"created":{},"model":)", head.created);
  append_json_string(out, head.model);
  out += R"(,"system_fingerprint":)";
  append_json_string(out, head.fingerprint);
  out += R"(,"choices":[)";
}

void append_usage(std::string& out, const AnswerUsage& usage) {
  fmt::format_to(std::back_inserter(out),
                 R"("usage":{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                 R"("prompt_tokens_details":{{"cached_tokens":{}}},"completion_tokens_details":)"
                 R"({{"reasoning_tokens":{},"accepted_prediction_tokens":{},)"
                 R"("rejected_prediction_tokens":{},"drafted_tokens":{}}}}})",
                 usage.prompt_tokens, usage.completion_tokens,
                 usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens,
                 usage.reasoning_tokens, usage.accepted_tokens,
                 usage.drafted_tokens - usage.accepted_tokens, usage.drafted_tokens);
}

void append_chunk_end(std::string& out, const AnswerHead& head, std::string_view finish_reason,
                      const AnswerUsage& usage) {
  if (finish_reason.empty()) {
    out += R"(,"finish_reason":null}])";
  } else {
    out.append(R"(,"finish_reason":")").append(finish_reason).append(R"("}])");
  }
  if (head.continuous_usage) {
    out += ',';
    append_usage(out, usage);
  } else if (head.include_usage) {
    out += R"(,"usage":null)";
  }
  out += '}';
}

void append_chat_logprobs(std::string& out, std::span<const ScoredToken> logprobs,
                          const tokenizer::Tokenizer& tokenizer) {
  if (logprobs.empty()) {
    out += "null";
    return;
  }
  out += R"({"content":)";
  append_list(out, logprobs, [&](const ScoredToken& each) {
    out += '{';
    append_scored_token(out, each.chosen, tokenizer);
    out += R"(,"top_logprobs":)";
    append_list(out, each.top, [&](const kernels::TokenLogprob& top) {
      out += '{';
      append_scored_token(out, top, tokenizer);
      out += '}';
    });
    out += '}';
  });
  out += R"(,"refusal":null})";
}

void append_text_logprobs(std::string& out, std::span<const ScoredToken> logprobs,
                          const tokenizer::Tokenizer& tokenizer, std::size_t& offset) {
  if (logprobs.empty()) {
    out += "null";
    return;
  }
  out += R"({"tokens":)";
  append_list(out, logprobs, [&](const ScoredToken& each) {
    append_json_string(out, spelled(each.chosen.token, tokenizer));
  });
  out += R"(,"token_logprobs":)";
  append_list(out, logprobs, [&](const ScoredToken& each) {
    if (std::isnan(each.chosen.logprob)) {
      out += "null";
    } else {
      fmt::format_to(std::back_inserter(out), "{}", finite(each.chosen.logprob));
    }
  });
  out += R"(,"top_logprobs":)";
  append_list(out, logprobs,
              [&](const ScoredToken& each) { append_top_of_text(out, each, tokenizer); });
  out += R"(,"text_offset":)";
  append_list(out, logprobs, [&](const ScoredToken& each) {
    fmt::format_to(std::back_inserter(out), "{}", offset);
    if (each.is_shown) offset += num_characters(tokenizer.bytes(each.chosen.token));
  });
  out += '}';
}

void append_prompt_logprobs(std::string& out, std::span<const ScoredToken> logprobs,
                            const tokenizer::Tokenizer& tokenizer) {
  if (logprobs.empty()) return;
  out += R"(,"prompt_logprobs":)";
  append_list(out, logprobs, [&](const ScoredToken& each) {
    if (std::isnan(each.chosen.logprob)) {
      out += "null";
      return;
    }
    out += '{';
    append_ranked_token(out, each.chosen, each.rank, tokenizer);
    for (std::size_t i = 0; i < each.top.size(); ++i) {
      if (each.top[i].token == each.chosen.token) continue;
      out += ',';
      append_ranked_token(out, each.top[i], static_cast<std::int32_t>(i) + 1, tokenizer);
    }
    out += '}';
  });
}

}  // namespace tandem::server
