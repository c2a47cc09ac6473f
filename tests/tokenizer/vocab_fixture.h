#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/core/status.h"
#include "tandem/tokenizer/tokenizer.h"

namespace tandem::testing {

/// $TANDEM_TEST_DATA, or tests/data of the source tree.
std::string test_data_dir();

/// Paths of the golden text files named `prefix`*.jsonl, sorted.
std::vector<std::string> golden_text_files(std::string_view prefix);

/// The values of a JSON Lines file; ends the test program when it cannot be read.
std::vector<boost::json::value> read_jsonl(const std::string& path);
std::string read_file(const std::string& path);

/// A member that is a list of ids, or `fallback` when it is absent.
std::vector<TokenId> ids_at(const boost::json::object& entry, std::string_view key,
                            std::vector<TokenId> fallback = {});
/// A member that is a string, or `fallback` when it is absent.
std::string string_at(const boost::json::object& entry, std::string_view key,
                      std::string fallback = {});

/// The vocabulary of a GGUF file.
core::Result<tokenizer::VocabData> load_vocab(const std::string& path);

/// Path of the real vocabulary, unpacked into the build folder on first use.
const std::string& real_vocab_path();
/// The real vocabulary and the demo model's, made once a process.
const tokenizer::Tokenizer& real_tokenizer();
const tokenizer::Tokenizer& demo_tokenizer();
std::string demo_model_path();

/// A small vocabulary: control tokens, one user-defined token, all bytes, the letters a to e,
/// space, newline, 'é', and the merges given (their wholes are added).
tokenizer::VocabData small_vocab(
    const std::vector<std::pair<std::string, std::string>>& merges = {});

}  // namespace tandem::testing
