#include <fmt/core.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "tandem/app/commands.h"
#include "tandem/app/loaded_model.h"
#include "tandem/app/stop_signals.h"
#include "tandem/core/log.h"
#include "tandem/core/print.h"

namespace tandem::app {
namespace {

using Clock = std::chrono::steady_clock;

/// Prints a request's text as it comes, on the engine's thread, and tells the main thread the end.
class Printer {
 public:
  void on_event(const engine::Event& event) {
    if (!event.text.empty()) {
      std::fwrite(event.text.data(), 1, event.text.size(), stdout);
      std::fflush(stdout);
    }
    const std::lock_guard lock(mutex_);
    if (!first_token_at_ && !event.tokens.empty()) {
      first_token_at_ = Clock::now();
      tokens_of_first_event_ = event.usage.completion_tokens;
    }
    if (event.finish) {
      end_at_ = Clock::now();
      last_ = event;
      ended_.notify_one();
    }
  }

  engine::Event wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return last_.has_value(); });
    return *last_;
  }

  /// Speeds; after wait().
  std::string describe(Clock::time_point sent_at) const {
    const auto seconds = [](Clock::duration time) {
      return std::chrono::duration<double>(time).count();
    };
    const engine::Usage& usage = last_->usage;
    const double prefill_s = seconds(first_token_at_.value_or(end_at_) - sent_at);
    const double decode_s = seconds(end_at_ - first_token_at_.value_or(end_at_));
    const int decoded = usage.completion_tokens - tokens_of_first_event_;
    std::string text = fmt::format("prompt {} tokens", usage.prompt_tokens);
    if (prefill_s > 0.0) text += fmt::format(", {:.1f} tok/s", usage.prompt_tokens / prefill_s);
    text += fmt::format("; output {} tokens", usage.completion_tokens);
    if (decode_s > 0.0 && decoded > 0) text += fmt::format(", {:.1f} tok/s", decoded / decode_s);
    return text;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<Clock::time_point> first_token_at_;
  Clock::time_point end_at_;
  int tokens_of_first_event_ = 0;
  std::optional<engine::Event> last_;
};

core::Result<std::vector<TokenId>> encode_prompt(const LoadedModel& model,
                                                 const std::string& prompt) {
  chat::Conversation conversation;
  chat::Message message;
  message.role = "user";
  message.content.push_back({chat::ContentPart::Kind::kText, prompt});
  conversation.messages.push_back(std::move(message));
  TANDEM_ASSIGN(const auto pieces, chat::render(conversation, model.template_variant));
  return model.tokenizer->encode(pieces);
}

/// Mean length and the rate of each drafted position, as everywhere (docs/architecture.md).
std::string describe_acceptance(const engine::EngineStats& stats) {
  if (stats.draft_rounds == 0) return "no drafts";
  double accepted = 0.0;
  std::string positions;
  for (std::size_t i = 0; i < stats.drafted_at.size() && stats.drafted_at[i] > 0; ++i) {
    accepted += static_cast<double>(stats.accepted_at[i]);
    positions += fmt::format(" {:.3f}", static_cast<double>(stats.accepted_at[i]) /
                                            static_cast<double>(stats.drafted_at[i]));
  }
  return fmt::format("acceptance: mean length {:.2f}, by position{}",
                     1.0 + accepted / static_cast<double>(stats.verify_steps), positions);
}

}  // namespace

int run_main(const RunOptions& options) {
  core::set_log_level(core::LogLevel::kWarning);
  explain_lost_files();
  const auto model = load_model(options.model);
  if (!model.ok()) return fail(model.status());
  auto prompt = encode_prompt(*model, options.prompt);
  if (!prompt.ok()) return fail(prompt.status());

  engine::Request request;
  request.id = 1;
  request.prompt = std::move(prompt).value();
  request.max_tokens = options.max_tokens;
  request.sampling = model->sampling;
  if (options.temperature >= 0.0) {
    request.sampling.temperature = static_cast<float>(options.temperature);
  }
  Printer printer;
  const auto sent_at = Clock::now();
  const core::Status accepted = model->engine->submit(
      std::move(request), [&printer](const engine::Event& event) { printer.on_event(event); });
  if (!accepted.ok()) return fail(accepted);
  const engine::Event last = printer.wait();
  core::print(stdout, "\n");
  if (last.finish == engine::FinishReason::kError) return fail(last.error);
  core::print(stdout, fmt::format("\n{}\n{}\n", printer.describe(sent_at),
                                  describe_acceptance(model->engine->stats())));
  return 0;
}

}  // namespace tandem::app
