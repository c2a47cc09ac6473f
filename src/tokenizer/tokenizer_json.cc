#include "tandem/tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <utility>

#include "tandem/core/printable.h"
#include "tandem/tokenizer/piece_table.h"

namespace tandem::tokenizer {
namespace {

namespace json = boost::json;
using core::Result;
using core::Status;

constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kMaxTokens = std::size_t{1} << 22;

/// Added tokens that are matched in user text and always shown, as GGUF files mark them; all other
/// special ones control the model and are not shown.
constexpr std::string_view kUserDefined[] = {"<|channel>",   "<channel|>",       "<|tool_call>",
                                             "<tool_call|>", "<|tool_response>", "<tool_response|>",
                                             "<|\"|>"};

Status damaged(std::string_view what) {
  return core::data_loss(fmt::format("{}; download the file again", what));
}

/// Member `key` of an object; null when missing or null.
const json::value* member(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool is_string(const json::value* value, std::string_view text) {
  return value != nullptr && value->is_string() && value->get_string() == text;
}

/// {"type": "Replace", "pattern": {"String": " "}, "content": U+2581} and nothing else.
bool is_gemma_normalizer(const json::value* value) {
  if (value == nullptr || !value->is_object()) return false;
  const json::object& normalizer = value->get_object();
  const json::value* pattern = member(normalizer, "pattern");
  return is_string(member(normalizer, "type"), "Replace") &&
         is_string(member(normalizer, "content"), kSpacePiece) && pattern != nullptr &&
         pattern->is_object() && is_string(member(pattern->get_object(), "String"), " ");
}

Status check_kind(const json::object& root, const json::object& model) {
  if (!is_string(member(model, "type"), "BPE")) {
    return core::unimplemented("the tokenizer's model is not BPE; use Gemma 4's tokenizer.json");
  }
  if (!is_gemma_normalizer(member(root, "normalizer"))) {
    return core::unimplemented(
        "the normalizer is not Gemma 4's, which only writes a space as U+2581; use Gemma 4's "
        "tokenizer.json");
  }
  const json::value* fallback = member(model, "byte_fallback");
  if (fallback == nullptr || !fallback->is_bool() || !fallback->get_bool()) {
    return core::unimplemented("the tokenizer has no byte fallback; use Gemma 4's tokenizer.json");
  }
  return {};
}

/// The id, if it is one that a vocabulary of kMaxTokens can have.
std::optional<std::size_t> to_id(const json::value& value) {
  if (!value.is_int64() || value.get_int64() < 0) return std::nullopt;
  const auto id = static_cast<std::size_t>(value.get_int64());
  return id < kMaxTokens ? std::optional(id) : std::nullopt;
}

Status read_vocab(const json::object& vocab, VocabData& out) {
  const std::size_t count = vocab.size();
  if (count == 0 || count > kMaxTokens) {
    return damaged(
        fmt::format("\"model.vocab\" has {} tokens, expected 1 to {}", count, kMaxTokens));
  }
  out.tokens.resize(count);
  out.kinds.assign(count, TokenKind::kNormal);
  std::vector<bool> is_set(count, false);
  for (const auto& [piece, value] : vocab) {
    const auto id = to_id(value);
    if (!id || *id >= count || is_set[*id]) {
      return damaged(fmt::format(
          "\"model.vocab\" gives token \"{}\" the id {}, but ids must be 0 "
          "to {}, each once",
          core::printable(piece, 64), core::printable(json::serialize(value), 64), count - 1));
    }
    is_set[*id] = true;
    out.tokens[*id] = piece;
    if (parse_byte_piece(piece) >= 0) out.kinds[*id] = TokenKind::kByte;
  }
  return {};
}

/// One entry of "added_tokens": marks a token of the vocabulary, or extends it by the next id.
Status read_added(const json::value& value, VocabData& out) {
  const json::object* entry = value.if_object();
  const json::value* id_value = entry == nullptr ? nullptr : member(*entry, "id");
  const json::value* content = entry == nullptr ? nullptr : member(*entry, "content");
  const auto id = id_value == nullptr ? std::nullopt : to_id(*id_value);
  if (!id || content == nullptr || !content->is_string()) {
    return damaged("\"added_tokens\" has an entry without an \"id\" or a \"content\"");
  }
  const std::string_view text = content->get_string();
  if (*id == out.tokens.size()) {
    out.tokens.emplace_back(text);
    out.kinds.push_back(TokenKind::kNormal);
  } else if (*id > out.tokens.size() || out.tokens[*id] != text) {
    return damaged(
        fmt::format("\"added_tokens\" calls token {} \"{}\", which \"model.vocab\" "
                    "does not",
                    *id, core::printable(text, 64)));
  }
  const json::value* special = member(*entry, "special");
  const bool is_control =
      special != nullptr && special->is_bool() && special->get_bool() &&
      std::find(std::begin(kUserDefined), std::end(kUserDefined), text) == std::end(kUserDefined);
  out.kinds[*id] = is_control ? TokenKind::kControl : TokenKind::kUserDefined;
  return {};
}

/// A merge is a pair of strings, or one string.
std::optional<std::pair<std::string, std::string>> to_merge(const json::value& value) {
  if (const json::array* pair = value.if_array()) {
    if (pair->size() != 2 || !(*pair)[0].is_string() || !(*pair)[1].is_string()) return {};
    return std::pair(std::string((*pair)[0].get_string()), std::string((*pair)[1].get_string()));
  }
  const json::string* text = value.if_string();
  return text == nullptr ? std::nullopt : split_merge(*text);
}

Status read_merges(const json::array& merges, VocabData& out) {
  out.merges.reserve(merges.size());
  for (const json::value& value : merges) {
    auto merge = to_merge(value);
    if (!merge) {
      return damaged(
          fmt::format("\"model.merges\" entry {} is not a pair of pieces", out.merges.size()));
    }
    out.merges.push_back(std::move(*merge));
  }
  return {};
}

}  // namespace

Result<VocabData> parse_tokenizer_json(std::string_view text) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  // Nothing is freed one by one: the whole document goes at once.
  json::monotonic_resource memory(text.size() + 1024);
  json::error_code error;
  const json::value root = json::parse(text, error, &memory, options);
  if (error) return damaged("the text is " + core::why_not_json(text, error.message()));
  const json::value* model = root.is_object() ? member(root.get_object(), "model") : nullptr;
  if (model == nullptr || !model->is_object()) return damaged("there is no \"model\" object");
  TANDEM_TRY(check_kind(root.get_object(), model->get_object()));
  const json::value* vocab = member(model->get_object(), "vocab");
  const json::value* merges = member(model->get_object(), "merges");
  if (vocab == nullptr || !vocab->is_object()) return damaged("there is no \"model.vocab\" object");
  if (merges == nullptr || !merges->is_array()) {
    return damaged("there is no \"model.merges\" array");
  }
  VocabData out;
  TANDEM_TRY(read_vocab(vocab->get_object(), out));
  TANDEM_TRY(read_merges(merges->get_array(), out));
  const json::value* added = member(root.get_object(), "added_tokens");
  if (added != nullptr && !added->is_array()) return damaged("\"added_tokens\" is not an array");
  if (added != nullptr) {
    for (const json::value& entry : added->get_array()) TANDEM_TRY(read_added(entry, out));
  }
  return out;
}

std::string write_tokenizer_json(const VocabData& data) {
  json::array added;
  json::object vocab;
  vocab.reserve(data.tokens.size());
  for (std::size_t id = 0; id < data.tokens.size(); ++id) {
    vocab[data.tokens[id]] = id;
    const TokenKind kind = data.kinds[id];
    if (kind != TokenKind::kControl && kind != TokenKind::kUserDefined) continue;
    added.push_back({{"id", id},
                     {"content", data.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  json::array merges;
  merges.reserve(data.merges.size());
  for (const auto& [left, right] : data.merges) merges.push_back(json::array{left, right});
  const json::object replace = {
      {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpacePiece}};
  const json::object restore = {
      {"type", "Replace"}, {"pattern", {{"String", kSpacePiece}}}, {"content", " "}};
  const json::object root = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added)},
      {"normalizer", replace},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders", json::array{restore, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", "<unk>"},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"ignore_merges", false},
        {"vocab", std::move(vocab)},
        {"merges", std::move(merges)}}}};
  return json::serialize(root);
}

}  // namespace tandem::tokenizer
