#include "tandem/bench/prometheus_text.h"

#include <charconv>
#include <cmath>

namespace tandem::bench {
namespace {

constexpr std::size_t kMaxIndex = 63;

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

void skip_blanks(std::string_view* text) {
  while (!text->empty() && is_blank(text->front())) text->remove_prefix(1);
}

std::optional<double> to_number(std::string_view text) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// A quoted label value with its escapes undone; removes it and its quotes from `text`.
std::optional<std::string> take_quoted(std::string_view* text) {
  if (text->empty() || text->front() != '"') return std::nullopt;
  std::string out;
  for (std::size_t i = 1; i < text->size(); ++i) {
    const char c = (*text)[i];
    if (c == '"') {
      text->remove_prefix(i + 1);
      return out;
    }
    if (c == '\\' && i + 1 < text->size()) {
      const char escaped = (*text)[++i];
      out.push_back(escaped == 'n' ? '\n' : escaped);
    } else {
      out.push_back(c);
    }
  }
  return std::nullopt;
}

/// `{name="value",...}`; removes it from `text`. False where it is malformed.
bool take_labels(std::string_view* text, std::map<std::string, std::string>* labels) {
  text->remove_prefix(1);
  for (;;) {
    skip_blanks(text);
    if (text->empty()) return false;
    if (text->front() == '}') {
      text->remove_prefix(1);
      return true;
    }
    const std::size_t equals = text->find('=');
    if (equals == std::string_view::npos) return false;
    std::string name(text->substr(0, equals));
    while (!name.empty() && is_blank(name.back())) name.pop_back();
    text->remove_prefix(equals + 1);
    skip_blanks(text);
    auto value = take_quoted(text);
    if (!value) return false;
    labels->insert_or_assign(std::move(name), std::move(*value));
    skip_blanks(text);
    if (!text->empty() && text->front() == ',') text->remove_prefix(1);
  }
}

std::optional<PrometheusText::Sample> parse_line(std::string_view line) {
  skip_blanks(&line);
  if (line.empty() || line.front() == '#') return std::nullopt;
  PrometheusText::Sample sample;
  const std::size_t name_end = line.find_first_of("{ \t");
  if (name_end == std::string_view::npos || name_end == 0) return std::nullopt;
  sample.name = line.substr(0, name_end);
  line.remove_prefix(name_end);
  skip_blanks(&line);
  if (!line.empty() && line.front() == '{' && !take_labels(&line, &sample.labels)) {
    return std::nullopt;
  }
  skip_blanks(&line);
  const auto value = to_number(line.substr(0, line.find_first_of(" \t\r")));  // a time may follow
  if (!value) return std::nullopt;
  sample.value = *value;
  return sample;
}

}  // namespace

PrometheusText PrometheusText::parse(std::string_view page) {
  PrometheusText out;
  while (!page.empty()) {
    const std::size_t end = page.find('\n');
    if (auto sample = parse_line(page.substr(0, end))) out.samples_.push_back(std::move(*sample));
    if (end == std::string_view::npos) break;
    page.remove_prefix(end + 1);
  }
  return out;
}

std::optional<double> PrometheusText::sum(std::string_view name) const {
  std::optional<double> total;
  for (const Sample& sample : samples_) {
    if (sample.name == name && std::isfinite(sample.value)) {
      total = total.value_or(0.0) + sample.value;
    }
  }
  return total;
}

std::vector<double> PrometheusText::sum_by_index(std::string_view name,
                                                 std::string_view label) const {
  std::vector<double> out;
  for (const Sample& sample : samples_) {
    if (sample.name != name || !std::isfinite(sample.value)) continue;
    const auto it = sample.labels.find(std::string(label));
    if (it == sample.labels.end()) continue;
    std::size_t index = 0;
    const std::string& text = it->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
    if (error != std::errc() || end != text.data() + text.size() || index > kMaxIndex) continue;
    if (index >= out.size()) out.resize(index + 1, 0.0);
    out[index] += sample.value;
  }
  return out;
}

}  // namespace tandem::bench
