#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tandem/server/api_error.h"
#include "tandem/server/choice_output.h"

namespace tandem::server {

/// What does not change in an answer.
struct AnswerHead {
  std::string id;
  std::int64_t created = 0;  ///< Unix time in seconds
  std::string model;
  std::string fingerprint;
  int num_choices = 1;
  bool is_stream = false;
  bool include_usage = false;     ///< streams: a usage chunk at the end, null before
  bool continuous_usage = false;  ///< streams: the usage so far in every chunk
  const tokenizer::Tokenizer* tokenizer = nullptr;  ///< spells tokens; outlives the writer
  std::function<std::string(std::string_view prefix)> new_id;  ///< of calls and items
  std::string request_members;  ///< responses: JSON members that repeat the request
};

/// Writes one answer in the form of its endpoint. Streams: each call appends its events, as
/// "data: ...\n\n". Whole answers: nothing is written before close(), which writes the body.
/// Calls come as open, then add and end of the choices in any order, then close. Thread: one.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual void open(std::string& out) = 0;
  /// `usage`: of the whole answer so far.
  virtual void add(std::string& out, int choice, Delta delta, const AnswerUsage& usage) = 0;
  virtual void end(std::string& out, int choice, std::string_view finish_reason,
                   const AnswerUsage& usage) = 0;
  virtual void close(std::string& out, const AnswerUsage& usage) = 0;
  /// Streams: the event that ends an answer early.
  virtual void fail(std::string& out, const ApiError& error);
};

std::unique_ptr<AnswerWriter> make_chat_writer(AnswerHead head);
std::unique_ptr<AnswerWriter> make_completion_writer(AnswerHead head);
std::unique_ptr<AnswerWriter> make_responses_writer(AnswerHead head);

}  // namespace tandem::server
