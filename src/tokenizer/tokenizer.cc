#include "tandem/tokenizer/tokenizer.h"

#include <algorithm>

#include "tandem/tokenizer/bpe.h"
#include "tandem/tokenizer/piece_table.h"
#include "tandem/tokenizer/special_matcher.h"

namespace tandem::tokenizer {

struct Tokenizer::Impl {
  Impl(PieceTable piece_table, Bpe bpe_tables)
      : pieces(std::move(piece_table)), bpe(std::move(bpe_tables)), specials(pieces) {}
  Impl(const Impl&) = delete;  // `specials` points into `pieces`

  PieceTable pieces;
  Bpe bpe;
  SpecialMatcher specials;
  TokenId bos = -1;
  std::vector<TokenId> end_of_generation;  // ascending
};

namespace {

/// Ids of generation_config and of the file itself, ascending (spec/tokenizer-chat.md section 3).
std::vector<TokenId> end_ids(const PieceTable& pieces, const VocabData& data) {
  std::vector<TokenId> ids = data.end_tokens;
  for (const std::string_view name : {"<eos>", "<turn|>", "<|tool_response>"}) {
    ids.push_back(pieces.find(name));
  }
  ids.push_back(data.eos);
  ids.push_back(data.eot);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (ids.front() < 0) ids.erase(ids.begin());
  return ids;
}

core::Status check_ids(const VocabData& data) {
  const std::pair<const char*, TokenId> named[] = {{"bos", data.bos},
                                                   {"eos", data.eos},
                                                   {"eot", data.eot},
                                                   {"unknown", data.unknown},
                                                   {"padding", data.padding}};
  for (const auto& [name, id] : named) {
    if (id < -1 || id >= static_cast<std::int64_t>(data.tokens.size())) {
      return core::data_loss("the " + std::string(name) + " token id " + std::to_string(id) +
                             " is outside the vocabulary of " + std::to_string(data.tokens.size()) +
                             " tokens");
    }
  }
  for (const TokenId id : data.end_tokens) {
    if (id >= 0 && id < static_cast<std::int64_t>(data.tokens.size())) continue;
    return core::data_loss("the end token id " + std::to_string(id) +
                           " is outside the vocabulary of " + std::to_string(data.tokens.size()) +
                           " tokens");
  }
  return {};
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

core::Result<std::shared_ptr<const Tokenizer>> Tokenizer::create(VocabData data) {
  TANDEM_TRY(check_ids(data));
  TANDEM_ASSIGN(PieceTable pieces, PieceTable::create(data));
  data.tokens = {};
  TANDEM_ASSIGN(Bpe bpe, Bpe::create(pieces, data.merges));
  auto impl = std::make_unique<Impl>(std::move(pieces), std::move(bpe));
  impl->bos = data.bos >= 0 ? data.bos : impl->pieces.find("<bos>");
  impl->end_of_generation = end_ids(impl->pieces, data);
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

std::vector<TokenId> Tokenizer::encode(std::span<const TextPiece> pieces) const {
  std::vector<TokenId> ids;
  std::string segment;  // text since the last special token, across pieces
  const auto flush = [&] {
    impl_->bpe.encode(segment, ids);
    segment.clear();
  };
  for (std::size_t first = 0; first < pieces.size();) {
    // Neighbours of one kind are one text, so that where a template is cut does not matter.
    std::size_t end = first + 1;
    while (end < pieces.size() && pieces[end].match_special == pieces[first].match_special) ++end;
    std::string joined;
    for (const TextPiece& piece : pieces.subspan(first, end - first)) joined += piece.text;

    std::size_t done = 0;
    while (pieces[first].match_special) {
      const auto match = impl_->specials.find(joined, done);
      if (!match) break;
      segment.append(joined, done, match->position - done);
      flush();
      ids.push_back(match->id);
      done = match->position + match->length;
    }
    segment.append(joined, done);
    first = end;
  }
  flush();
  return ids;
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool match_special) const {
  const TextPiece piece{std::string(text), match_special};
  return encode({&piece, 1});
}

int Tokenizer::vocab_size() const {
  return impl_->pieces.size();
}
TokenKind Tokenizer::kind(TokenId id) const {
  return impl_->pieces.kind(id);
}
std::string_view Tokenizer::piece(TokenId id) const {
  return impl_->pieces.piece(id);
}
std::string_view Tokenizer::bytes(TokenId id) const {
  return impl_->pieces.bytes(id);
}
TokenId Tokenizer::find(std::string_view piece) const {
  return impl_->pieces.find(piece);
}
TokenId Tokenizer::bos() const {
  return impl_->bos;
}

bool Tokenizer::is_end_of_generation(TokenId id) const {
  const auto& ids = impl_->end_of_generation;
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

std::vector<TokenId> Tokenizer::end_of_generation() const {
  return impl_->end_of_generation;
}

}  // namespace tandem::tokenizer
