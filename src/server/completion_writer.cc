#include <fmt/format.h>

#include <iterator>
#include <utility>
#include <vector>

#include "tandem/server/answer_json.h"
#include "tandem/server/answer_writer.h"
#include "tandem/server/json_text.h"

namespace tandem::server {
namespace {

constexpr std::string_view kEnd = "\n\n";

/// A text is content alone.
std::string_view text_of(const Delta& delta) {
  return delta.parts.empty() ? std::string_view() : delta.parts.front().text;
}

class CompletionStream final : public AnswerWriter {
 public:
  explicit CompletionStream(AnswerHead head)
      : head_(std::move(head)),
        chunk_head_("data: "),
        offsets_(static_cast<std::size_t>(head_.num_choices)) {
    append_head(chunk_head_, head_, "text_completion");
  }

  void open(std::string&) override {}
  void add(std::string& out, int choice, Delta delta, const AnswerUsage& usage) override {
    append_chunk(out, choice, delta, "", usage);
  }
  void end(std::string& out, int choice, std::string_view finish_reason,
           const AnswerUsage& usage) override {
    append_chunk(out, choice, {}, finish_reason, usage);
  }
  void close(std::string& out, const AnswerUsage& usage) override {
    if (head_.include_usage || head_.continuous_usage) {
      out.append(chunk_head_).append("],");
      append_usage(out, usage);
      out.append("}").append(kEnd);
    }
    out.append("data: [DONE]").append(kEnd);
  }

 private:
  void append_chunk(std::string& out, int choice, const Delta& delta,
                    std::string_view finish_reason, const AnswerUsage& usage) {
    out += chunk_head_;
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"text":)", choice);
    append_json_string(out, text_of(delta));
    out += R"(,"logprobs":)";
    append_text_logprobs(out, delta.logprobs, *head_.tokenizer,
                         offsets_[static_cast<std::size_t>(choice)]);
    append_chunk_end(out, head_, finish_reason, usage);
    out += kEnd;
  }

  const AnswerHead head_;
  std::string chunk_head_;            // up to the choices
  std::vector<std::size_t> offsets_;  // by choice: characters of the tokens so far
};

class CompletionWhole final : public AnswerWriter {
 public:
  explicit CompletionWhole(AnswerHead head)
      : head_(std::move(head)), choices_(static_cast<std::size_t>(head_.num_choices)) {}

  void open(std::string&) override {}
  void add(std::string&, int choice, Delta delta, const AnswerUsage&) override {
    Choice& target = choices_[static_cast<std::size_t>(choice)];
    target.text += text_of(delta);
    target.logprobs.insert(target.logprobs.end(), std::make_move_iterator(delta.logprobs.begin()),
                           std::make_move_iterator(delta.logprobs.end()));
    if (!delta.prompt_logprobs.empty()) target.prompt_logprobs = std::move(delta.prompt_logprobs);
  }
  void end(std::string&, int choice, std::string_view finish_reason, const AnswerUsage&) override {
    choices_[static_cast<std::size_t>(choice)].finish_reason = finish_reason;
  }
  void close(std::string& out, const AnswerUsage& usage) override {
    append_head(out, head_, "text_completion");
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      if (i > 0) out += ',';
      fmt::format_to(std::back_inserter(out), R"({{"index":{},"text":)", i);
      append_json_string(out, choices_[i].text);
      out += R"(,"logprobs":)";
      std::size_t offset = 0;
      append_text_logprobs(out, choices_[i].logprobs, *head_.tokenizer, offset);
      append_prompt_logprobs(out, choices_[i].prompt_logprobs, *head_.tokenizer);
      fmt::format_to(std::back_inserter(out), R"(,"finish_reason":"{}"}})",
                     choices_[i].finish_reason);
    }
    out += "],";
    append_usage(out, usage);
    out += '}';
  }

 private:
  struct Choice {
    std::string text;
    std::vector<ScoredToken> logprobs, prompt_logprobs;
    std::string finish_reason;
  };

  const AnswerHead head_;
  std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_completion_writer(AnswerHead head) {
  if (head.is_stream) return std::make_unique<CompletionStream>(std::move(head));
  return std::make_unique<CompletionWhole>(std::move(head));
}

}  // namespace tandem::server
