#include "tandem/app/option_text.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cmath>

#include "tandem/core/units.h"

namespace tandem::app {
namespace {

struct Unit {
  std::string_view name;  // lower case
  double bytes;
};

constexpr std::array<Unit, 14> kUnits = {{{"", 1.0},
                                          {"b", 1.0},
                                          {"k", 0x1p10},
                                          {"kib", 0x1p10},
                                          {"kb", 1e3},
                                          {"m", 0x1p20},
                                          {"mib", 0x1p20},
                                          {"mb", 1e6},
                                          {"g", 0x1p30},
                                          {"gib", 0x1p30},
                                          {"gb", 1e9},
                                          {"t", 0x1p40},
                                          {"tib", 0x1p40},
                                          {"tb", 1e12}}};

std::string to_lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

}  // namespace

std::optional<std::uint64_t> parse_size(std::string_view text) {
  double number = 0.0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number) || number < 0.0) return std::nullopt;
  std::string_view rest(end, static_cast<std::size_t>(last - end));
  if (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  const std::string name = to_lower(rest);
  for (const Unit& unit : kUnits) {
    if (unit.name != name) continue;
    const double bytes = number * unit.bytes;
    if (bytes >= 0x1p63) return std::nullopt;
    return static_cast<std::uint64_t>(bytes);
  }
  return std::nullopt;
}

std::optional<std::uint64_t> parse_kv_memory(std::string_view text) {
  if (text == "auto") return 0;
  const auto size = parse_size(text);
  return size == 0 ? std::nullopt : size;
}

std::optional<int> parse_draft_length(std::string_view text) {
  if (text == "auto") return -1;
  int length = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (!is_number || length < 0 || length > kMaxDraft) return std::nullopt;
  return length;
}

std::optional<kernels::KvType> parse_kv_type(std::string_view text) {
  if (text == "f16") return kernels::KvType::kF16;
  if (text == "int8") return kernels::KvType::kInt8;
  return std::nullopt;
}

std::optional<std::vector<float>> parse_acceptance(std::string_view text) {
  std::vector<float> rates;
  const char* at = text.data();
  const char* const last = at + text.size();
  while (true) {
    float rate = 0;
    const auto [end, error] = std::from_chars(at, last, rate, std::chars_format::fixed);
    const float most = rates.empty() ? 1.0F : rates.back();
    if (error != std::errc() || !(rate >= 0.0F) || rate > most) return std::nullopt;
    rates.push_back(rate);
    if (rates.size() > kMaxDraft) return std::nullopt;
    if (end == last) return rates;
    if (*end != ',') return std::nullopt;
    at = end + 1;
  }
}

std::string format_size(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value >= 0x1p30) return fmt::format("{:.2f} GiB", value / 0x1p30);
  if (value >= 0x1p20) return fmt::format("{:.1f} MiB", value / 0x1p20);
  if (value >= 0x1p10) return fmt::format("{:.1f} KiB", value / 0x1p10);
  return fmt::format("{} B", bytes);
}

}  // namespace tandem::app
