// What compiling a schema and making the mask of the next token take, in CPU time of the thread.
//
//   mask_bench VOCABULARY.gguf SCHEMAS.jsonl
//
// A line of the second file has `name`, `schema` and texts in `valid`, as
// tests/data/goldens/text/json-schema.jsonl does. Each schema's grammar is new; then a mask is made
// at every token of the valid texts and of random texts, which come to stranger places.

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <ctime>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tandem/formats/gguf.h"
#include "tandem/grammar/compiler.h"
#include "tandem/grammar/matcher.h"
#include "tandem/model/vocab_gguf.h"
#include "tandem/tokenizer/tokenizer.h"

namespace {

using namespace tandem;

double cpu_microseconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

struct Slowest {
  double microseconds = 0;
  std::string where;
};

class Bench {
 public:
  explicit Bench(const tokenizer::Tokenizer& tokenizer)
      : tokenizer_(tokenizer), compiler_(tokenizer) {}

  void run(const boost::json::object& entry) {
    grammar::Source source;
    source.kind = grammar::Source::Kind::kJsonSchema;
    source.text = boost::json::serialize(entry.at("schema"));
    name_ = entry.at("name").as_string();
    const double start = cpu_microseconds();
    const auto grammar = compiler_.compile(source);
    if (!grammar.ok()) return;
    compile_times_.push_back(cpu_microseconds() - start);
    for (const auto& text : entry.at("valid").as_array()) {
      walk_text(*grammar, tokenizer_.encode(std::string_view(text.as_string()), false));
    }
    for (int i = 0; i < 5; ++i) walk_at_random(*grammar);
  }

  void print() {
    print_line("compile", compile_times_);
    print_line("mask", mask_times_);
    fmt::print("slowest mask: {:.0f} us in {}\n", slowest_.microseconds, slowest_.where);
  }

 private:
  bool make_mask(grammar::Matcher& matcher) {
    const double start = cpu_microseconds();
    const bool is_made = matcher.fill_mask(mask_, walker_).ok();
    const double took = cpu_microseconds() - start;
    mask_times_.push_back(took);
    if (took > slowest_.microseconds) slowest_ = {took, name_};
    return is_made;
  }

  void walk_text(const std::shared_ptr<const grammar::Grammar>& grammar,
                 const std::vector<TokenId>& tokens) {
    mask_.resize(grammar->mask_words());
    grammar::Matcher matcher(grammar);
    for (const TokenId token : tokens) {
      if (!make_mask(matcher) || !matcher.accept(token)) return;
    }
  }

  void walk_at_random(const std::shared_ptr<const grammar::Grammar>& grammar) {
    mask_.resize(grammar->mask_words());
    grammar::Matcher matcher(grammar);
    for (int i = 0; i < 100 && !matcher.is_finished(); ++i) {
      if (!make_mask(matcher)) return;
      const auto vocab_size = static_cast<unsigned>(tokenizer_.vocab_size());
      auto token = static_cast<TokenId>(random_() % vocab_size);
      while ((mask_[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1U) == 0) {
        token = static_cast<TokenId>((static_cast<unsigned>(token) + 1) % vocab_size);
      }
      if (!matcher.accept(token)) return;
    }
  }

  static void print_line(const char* what, std::vector<double>& times) {
    std::sort(times.begin(), times.end());
    const auto at = [&](double share) {
      return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
    };
    fmt::print("{:8} {:6} times, us: p50 {:.1f}, p99 {:.1f}, p99.9 {:.1f}, max {:.1f}\n", what,
               times.size(), at(0.5), at(0.99), at(0.999), times.back());
  }

  const tokenizer::Tokenizer& tokenizer_;
  grammar::Compiler compiler_;
  grammar::TrieWalker walker_;
  std::vector<std::uint32_t> mask_;
  std::mt19937 random_{5};
  std::string name_;
  std::vector<double> compile_times_, mask_times_;
  Slowest slowest_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: mask_bench VOCABULARY.gguf SCHEMAS.jsonl\n");
    return 2;
  }
  const auto file = formats::GgufFile::open(argv[1]);
  if (!file.ok()) {
    fmt::print(stderr, "{}\n", file.status().message());
    return 1;
  }
  auto vocab = model::read_vocab(*file);
  if (!vocab.ok()) {
    fmt::print(stderr, "{}\n", vocab.status().message());
    return 1;
  }
  const auto tokenizer = tokenizer::Tokenizer::create(std::move(vocab).value()).value();
  Bench bench(*tokenizer);
  std::ifstream lines(argv[2]);
  for (std::string line; std::getline(lines, line);) {
    bench.run(boost::json::parse(line).as_object());
  }
  bench.print();
  return 0;
}
