#include "tandem/net/http_client.h"

namespace tandem::net {

// Lines end with LF, CRLF or CR; a CR at the end of the input may be half of a CRLF, so that the
// LF after it is skipped when it comes (WHATWG HTML, 9.2.6).
void SseReader::feed(std::string_view bytes,
                     const std::function<void(std::string_view data)>& on_event) {
  for (const char c : bytes) {
    if (is_too_long_) return;
    if (std::exchange(skip_line_feed_, false) && c == '\n') continue;
    if (c != '\n' && c != '\r') {
      line_.push_back(c);
      is_too_long_ = line_.size() + data_.size() > kMaxEventBytes;
      continue;
    }
    skip_line_feed_ = c == '\r';
    end_line(on_event);
    line_.clear();
  }
}

void SseReader::end_line(const std::function<void(std::string_view data)>& on_event) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  std::string_view line = line_;
  if (std::exchange(is_first_line_, false) && line.starts_with(kByteOrderMark)) {
    line.remove_prefix(kByteOrderMark.size());
  }
  if (line.empty()) {
    if (has_data_) on_event(data_);
    has_data_ = false;
    data_.clear();
    return;
  }
  const std::size_t colon = line.find(':');
  if (line.substr(0, colon) != "data") return;  // a comment or a field nobody asks for
  std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (std::exchange(has_data_, true)) data_.push_back('\n');
  data_.append(value);
}

}  // namespace tandem::net
