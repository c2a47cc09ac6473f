#include "tandem/model/vocab_gguf.h"

#include <fmt/format.h>

#include <utility>

#include "tandem/model/key_reader.h"
#include "tandem/tokenizer/piece_table.h"

namespace tandem::model {
namespace {

using tokenizer::TokenKind;
using tokenizer::VocabData;

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr IntRange kKinds = {1, 6};

core::Status read_special(const KeyReader& keys, VocabData& vocab) {
  const IntRange ids = {0, static_cast<std::int64_t>(vocab.tokens.size()) - 1};
  const std::pair<std::string_view, TokenId*> specials[] = {
      {"bos_token_id", &vocab.bos},         {"eos_token_id", &vocab.eos},
      {"eot_token_id", &vocab.eot},         {"unknown_token_id", &vocab.unknown},
      {"padding_token_id", &vocab.padding},
  };
  for (const auto& [key, id] : specials) {
    TANDEM_ASSIGN(*id, keys.optional_int(key, ids, -1));
  }
  return {};
}

}  // namespace

core::Result<VocabData> read_vocab(const formats::GgufFile& file) {
  const KeyReader keys(file, "tokenizer.ggml.");
  TANDEM_ASSIGN(const auto family, file.get_string("tokenizer.ggml.model"));
  if (family != "gemma4") {
    return core::unimplemented(
        fmt::format("{}: tokenizer \"{}\" is not supported, Tandem reads "
                    "gemma4",
                    file.path(), family));
  }
  TANDEM_ASSIGN(const auto tokens, file.get_strings(kTokens));
  if (tokens.empty()) return keys.error(fmt::format("metadata key \"{}\" is empty", kTokens));
  const core::TensorView* table = file.find("token_embd.weight");
  if (table != nullptr && table->rows() != static_cast<std::int64_t>(tokens.size())) {
    return keys.error(
        fmt::format("the tokenizer has {} tokens, but tensor \"token_embd.weight\" {} rows; "
                    "the file is damaged, get it again",
                    tokens.size(), table->rows()));
  }
  VocabData vocab;
  vocab.tokens.assign(tokens.begin(), tokens.end());
  TANDEM_ASSIGN(const auto kinds, keys.per_layer("token_type", tokens.size(), kKinds));
  for (int kind : kinds) vocab.kinds.push_back(static_cast<TokenKind>(kind));
  TANDEM_ASSIGN(const auto merges, file.get_strings("tokenizer.ggml.merges"));
  vocab.merges.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    auto pair = tokenizer::split_merge(merges[rank]);
    if (!pair) {
      return keys.error(
          fmt::format("metadata key \"tokenizer.ggml.merges\" entry {} is not a pair of pieces; "
                      "the file is damaged, get it again",
                      rank));
    }
    vocab.merges.push_back(std::move(*pair));
  }
  TANDEM_TRY(read_special(keys, vocab));
  return vocab;
}

core::Result<std::string> read_chat_template(const formats::GgufFile& file) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  if (!file.has(kKey)) {
    return core::not_found(
        fmt::format("{}: metadata key \"{}\" is missing; only plain completions can be "
                    "served from this file",
                    file.path(), kKey));
  }
  TANDEM_ASSIGN(const std::string_view text, file.get_string(kKey));
  return std::string(text);
}

}  // namespace tandem::model
