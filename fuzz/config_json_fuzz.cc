// Any bytes as config.json, and what follows a NUL byte as generation_config.json: refused with a
// sentence, or a config whose numbers fit together.

#include <cstdint>
#include <string_view>

#include "tandem/model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string_view generation;
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    generation = text.substr(nul + 1);
    text = text.substr(0, nul);
  }
  const auto config = tandem::model::read_config("directory", text, generation);
  if (!config.ok()) {
    if (config.status().message().empty()) __builtin_trap();
    return 0;
  }
  for (const auto& layer : config->layers) {
    if (layer.heads % layer.kv_heads != 0 || layer.head_size % 2 != 0) __builtin_trap();
  }
  (void)tandem::model::check_pair(*config, *config).ok();
  return 0;
}
