#include "tandem/net/exchange.h"

#include <array>
#include <boost/beast/http/status.hpp>
#include <charconv>
#include <ctime>
#include <utility>

namespace tandem::net {
namespace {

namespace beast = boost::beast;

void append_number(std::string& out, std::size_t value, int base) {
  std::array<char, 20> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, base).ptr;
  out.append(digits.data(), end);
}

void append_date(std::string& out) {
  std::tm utc = {};
  const std::time_t now = std::time(nullptr);
  gmtime_r(&now, &utc);
  std::array<char, 48> text;
  out.append(text.data(),
             std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &utc));
}

void append_field(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    out.push_back(byte < 0x20 || byte == 0x7f ? ' ' : c);
  }
  out.append("\r\n");
}

}  // namespace

void append_response_head(std::string& out, int status, const Headers& headers) {
  out.append("HTTP/1.1 ");
  append_number(out, static_cast<std::size_t>(status), 10);
  const auto reason =
      beast::http::obsolete_reason(beast::http::int_to_status(static_cast<unsigned>(status)));
  out.append(" ").append(reason.data(), reason.size()).append("\r\nDate: ");
  append_date(out);
  out.append("\r\n");
  for (const auto& [name, value] : headers) append_field(out, name, value);
}

void Hub::notify(std::shared_ptr<Exchange> exchange) {
  const std::lock_guard lock(mutex_);
  if (!wake_) return;
  news_.push_back(std::move(exchange));
  if (news_.size() == 1) wake_();
}

std::vector<std::shared_ptr<Exchange>> Hub::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(news_, {});
}

void Hub::close() {
  std::vector<std::shared_ptr<Exchange>> dropped;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  wake_ = nullptr;
  dropped.swap(news_);
}

void Hub::set_draining() {
  const std::lock_guard lock(mutex_);
  is_draining_ = true;
}

bool Hub::is_draining() const {
  const std::lock_guard lock(mutex_);
  return is_draining_;
}

bool Exchange::mark_news() {
  return !std::exchange(has_news_, true);
}

void Exchange::tell(bool has_news) {
  if (has_news) hub_->notify(shared_from_this());
}

void Exchange::append_head(int status, const Headers& headers, const std::size_t* content_length) {
  keep_alive_ = traits_.keep_alive && !hub_->is_draining();
  append_response_head(queued_, status, headers);
  if (content_length != nullptr) {
    queued_.append("Content-Length: ");
    append_number(queued_, *content_length, 10);
    queued_.append("\r\n");
  } else if (traits_.is_http_1_1) {
    is_chunked_ = !traits_.is_head;
    queued_.append("Transfer-Encoding: chunked\r\n");
  } else {
    keep_alive_ = false;  // the end of an HTTP/1.0 stream is the end of the connection
  }
  if (!keep_alive_) {
    queued_.append("Connection: close\r\n");
  } else if (!traits_.is_http_1_1) {
    queued_.append("Connection: keep-alive\r\n");
  }
  queued_.append("\r\n");
}

void Exchange::respond(int status, const Headers& headers, std::string_view body) {
  bool news = false;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kOpen || is_gone_) return;
    const std::size_t length = body.size();
    append_head(status, headers, &length);
    if (!traits_.is_head) queued_.append(body);
    state_ = State::kFinished;
    news = mark_news();
  }
  tell(news);
}

void Exchange::start_stream(int status, const Headers& headers) {
  bool news = false;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kOpen || is_gone_) return;
    append_head(status, headers, nullptr);
    state_ = State::kStreaming;
    news = mark_news();
  }
  tell(news);
}

bool Exchange::append_chunk(std::string_view chunk) {
  if (chunk.empty() || traits_.is_head) return true;
  const std::size_t waiting = queued_.size() + sending_bytes_;
  if (waiting > traits_.max_outbox_bytes || chunk.size() > traits_.max_outbox_bytes - waiting) {
    state_ = State::kAborted;
    return false;
  }
  if (is_chunked_) {
    append_number(queued_, chunk.size(), 16);
    queued_.append("\r\n").append(chunk).append("\r\n");
  } else {
    queued_.append(chunk);
  }
  return true;
}

bool Exchange::write(std::string_view chunk) {
  bool news = false;
  bool is_accepted = true;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kStreaming || is_gone_) return false;
    is_accepted = append_chunk(chunk);
    news = mark_news() || !is_accepted;  // earlier news may wait for a write that never ends
  }
  tell(news);
  return is_accepted;
}

bool Exchange::finish(std::string_view last_chunk) {
  bool news = false;
  bool is_accepted = true;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kStreaming || is_gone_) return false;
    is_accepted = append_chunk(last_chunk);
    if (is_accepted) {
      if (is_chunked_) queued_.append("0\r\n\r\n");
      state_ = State::kFinished;
    }
    news = mark_news() || !is_accepted;
  }
  tell(news);
  return is_accepted;
}

void Exchange::on_disconnect(std::function<void()> callback) {
  bool news = false;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kFinished && !is_gone_) return;
    on_disconnect_.swap(callback);
    news = is_gone_ && mark_news();
  }
  tell(news);
}

void Exchange::abandon(const std::function<std::string()>& error_body) {
  bool is_unanswered = false;
  bool news = false;
  {
    const std::lock_guard lock(mutex_);
    is_unanswered = state_ == State::kOpen;
    if (state_ == State::kStreaming) {
      state_ = State::kAborted;
      news = true;
    }
  }
  tell(news);
  if (is_unanswered) respond(500, {{"Content-Type", "application/json"}}, error_body());
}

Exchange::Next Exchange::take(std::string& out) {
  const std::lock_guard lock(mutex_);
  has_news_ = false;
  sending_bytes_ = 0;
  if (is_gone_) return Next::kNothing;
  if (queued_.empty()) return state_ == State::kFinished ? Next::kDone : Next::kNothing;
  out.swap(queued_);
  sending_bytes_ = out.size();
  return Next::kBytes;
}

bool Exchange::probe() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kFinished) return true;  // the answer itself tells
  if (!traits_.is_http_1_1) return false;
  if (state_ == State::kOpen) {  // clients skip interim responses: RFC 9110, 15.2
    queued_.append("HTTP/1.1 100 Continue\r\n\r\n");
  } else if (is_chunked_) {  // the size of the next chunk may begin with any zeros
    queued_.push_back('0');
  }
  return state_ == State::kOpen || is_chunked_;
}

bool Exchange::must_abort() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kAborted;
}

std::function<void()> Exchange::take_callback() {
  const std::lock_guard lock(mutex_);
  return std::exchange(on_disconnect_, nullptr);
}

void Exchange::disconnect() {
  {
    const std::lock_guard lock(mutex_);
    is_gone_ = true;
    queued_.clear();
    queued_.shrink_to_fit();
  }
  report_disconnect();
}

void Exchange::report_disconnect() {
  {
    const std::lock_guard lock(mutex_);
    if (!is_gone_) return;
    has_news_ = false;
  }
  if (const auto callback = take_callback()) callback();
}

void Exchange::complete() {
  take_callback();
}

bool Exchange::keep_alive() const {
  const std::lock_guard lock(mutex_);
  return keep_alive_;
}

}  // namespace tandem::net
