#include "vocab_fixture.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "tandem/formats/gguf.h"

namespace tandem::testing {

namespace fs = std::filesystem;

namespace {

const std::string kSourceData = TANDEM_SOURCE_DIR "/tests/data";
constexpr const char* kPackedVocab = "ggml-vocab-gemma-4.gguf.xz";

std::shared_ptr<const tokenizer::Tokenizer> load_tokenizer(const std::string& path) {
  auto vocab = load_vocab(path);
  TANDEM_CHECK(vocab.ok(), vocab.status().message().c_str());
  auto made = tokenizer::Tokenizer::create(std::move(vocab).value());
  TANDEM_CHECK(made.ok(), made.status().message().c_str());
  return std::move(made).value();
}

/// Reads one optional id, -1 when absent.
TokenId special_id(const formats::GgufFile& file, const char* name) {
  const auto id = file.get_uint(fmt::format("tokenizer.ggml.{}_token_id", name));
  return id.ok() ? static_cast<TokenId>(*id) : -1;
}

}  // namespace

std::string test_data_dir() {
  const char* dir = std::getenv("TANDEM_TEST_DATA");
  return dir != nullptr && *dir != '\0' ? dir : kSourceData;
}

std::vector<std::string> golden_text_files(std::string_view prefix) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(test_data_dir() + "/goldens/text", error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(prefix) && name.ends_with(".jsonl")) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  TANDEM_CHECK(in.good(), path.c_str());
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<boost::json::value> read_jsonl(const std::string& path) {
  std::vector<boost::json::value> values;
  std::istringstream in(read_file(path));
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) values.push_back(boost::json::parse(line));
  }
  return values;
}

std::vector<TokenId> ids_at(const boost::json::object& entry, std::string_view key,
                            std::vector<TokenId> fallback) {
  const auto* found = entry.if_contains(key);
  if (found == nullptr) return fallback;
  std::vector<TokenId> ids;
  for (const auto& id : found->as_array()) ids.push_back(id.to_number<TokenId>());
  return ids;
}

std::string string_at(const boost::json::object& entry, std::string_view key,
                      std::string fallback) {
  const auto* found = entry.if_contains(key);
  return found == nullptr ? fallback : std::string(found->as_string());
}

core::Result<tokenizer::VocabData> load_vocab(const std::string& path) {
  TANDEM_ASSIGN(const formats::GgufFile file, formats::GgufFile::open(path));
  TANDEM_ASSIGN(const auto tokens, file.get_strings("tokenizer.ggml.tokens"));
  TANDEM_ASSIGN(const auto kinds, file.get_ints("tokenizer.ggml.token_type"));
  TANDEM_ASSIGN(const auto merges, file.get_strings("tokenizer.ggml.merges"));
  tokenizer::VocabData data;
  data.tokens.assign(tokens.begin(), tokens.end());
  for (const auto kind : kinds) data.kinds.push_back(static_cast<tokenizer::TokenKind>(kind));
  for (const std::string_view merge : merges) {
    const std::size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos) return core::data_loss("a merge without a space");
    data.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  data.bos = special_id(file, "bos");
  data.eos = special_id(file, "eos");
  data.eot = special_id(file, "eot");
  return data;
}

const std::string& real_vocab_path() {
  static const std::string path = [] {
    std::string packed = test_data_dir() + "/" + kPackedVocab;
    if (!fs::exists(packed)) packed = kSourceData + "/" + kPackedVocab;
    // Named by size, unpacked under another name and renamed, since test processes run side by
    // side.
    std::string unpacked =
        fmt::format("{}/ggml-vocab-{}.gguf", TANDEM_BINARY_DIR, fs::file_size(packed));
    if (!fs::exists(unpacked)) {
      const std::string temporary = fmt::format("{}.{}", unpacked, getpid());
      const std::string command = fmt::format("xz -dc '{}' > '{}'", packed, temporary);
      TANDEM_CHECK(std::system(command.c_str()) == 0, command.c_str());
      fs::rename(temporary, unpacked);
    }
    return unpacked;
  }();
  return path;
}

const tokenizer::Tokenizer& real_tokenizer() {
  static const auto tokenizer = load_tokenizer(real_vocab_path());
  return *tokenizer;
}

std::string demo_model_path() {
  return TANDEM_SOURCE_DIR "/models/demo/demo-it-Q4_K_M.gguf";
}

const tokenizer::Tokenizer& demo_tokenizer() {
  static const auto tokenizer = load_tokenizer(demo_model_path());
  return *tokenizer;
}

tokenizer::VocabData small_vocab(const std::vector<std::pair<std::string, std::string>>& merges) {
  using tokenizer::TokenKind;
  tokenizer::VocabData data;
  const auto add = [&data](std::string token, TokenKind kind) {
    data.tokens.push_back(std::move(token));
    data.kinds.push_back(kind);
  };
  for (const char* token :
       {"<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>", "<turn", "<|tool_response>"}) {
    add(token, TokenKind::kControl);
  }
  add("<|channel>", TokenKind::kUserDefined);
  for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), TokenKind::kByte);
  for (const char* token : {"a", "b", "c", "d", "e", "\xE2\x96\x81", "\n", "\xC3\xA9"}) {
    add(token, TokenKind::kNormal);
  }
  std::set<std::string> known(data.tokens.begin(), data.tokens.end());
  for (const auto& [left, right] : merges) {
    if (known.insert(left + right).second) add(left + right, TokenKind::kNormal);
  }
  data.merges = merges;
  data.bos = 2;
  data.eos = 1;
  return data;
}

}  // namespace tandem::testing
