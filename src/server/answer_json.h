#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tandem/server/answer_writer.h"

namespace tandem::server {

// Parts of answers that several endpoints write, each appended to `out` as JSON.

/// {"id":..,"object":..,"created":..,"model":..,"system_fingerprint":..,"choices":[
void append_head(std::string& out, const AnswerHead& head, std::string_view object);

/// "usage":{..} of chats and texts.
void append_usage(std::string& out, const AnswerUsage& usage);

/// ,"finish_reason":..}] and the usage of a chunk of a stream, with the chunk's closing brace.
void append_chunk_end(std::string& out, const AnswerHead& head, std::string_view finish_reason,
                      const AnswerUsage& usage);

/// {"content":[{"token","logprob","bytes","top_logprobs"}..],"refusal":null}, or null for none.
void append_chat_logprobs(std::string& out, std::span<const ScoredToken> logprobs,
                          const tokenizer::Tokenizer& tokenizer);

/// {"tokens":[..],"token_logprobs":[..],"top_logprobs":[..],"text_offset":[..]}, or null for none.
/// `offset`: characters before the first token; moved on by those that the text shows. A token's
/// top_logprobs are those of the likeliest tokens and its own.
void append_text_logprobs(std::string& out, std::span<const ScoredToken> logprobs,
                          const tokenizer::Tokenizer& tokenizer, std::size_t& offset);

/// ,"prompt_logprobs":[null,{"ID":{"logprob":..,"rank":..,"decoded_token":..},..},..] as vLLM
/// writes it: of each token itself, then of the likeliest ones. Nothing for none.
void append_prompt_logprobs(std::string& out, std::span<const ScoredToken> logprobs,
                            const tokenizer::Tokenizer& tokenizer);

}  // namespace tandem::server
