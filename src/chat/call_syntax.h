#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::chat {

/// Stands for the quote token <|"|> in the text of a call; no byte of UTF-8.
inline constexpr char kQuoteMark = '\xFF';

/// White space around the parts of a call and around thoughts: ASCII, as JSON's and two more.
inline constexpr std::string_view kAsciiSpace = " \t\n\r\v\f";
std::string_view strip_ascii(std::string_view text);

/// Whether a call of a function with this name can be read back.
bool is_call_name(std::string_view name);

/// Reads what a model writes between <|tool_call> and <tool_call|> as it comes:
/// `call:NAME{key:value,...}`, with quote tokens as kQuoteMark. The arguments become compact JSON
/// text. Keys may be bare, quoted or JSON strings and keep order and repetition; numbers keep their
/// spelling; true, false and null may be written as in Python; any other bare value is a string.
/// Nesting is bounded at 64. How the text is cut changes nothing. Thread: one.
class CallReader {
 public:
  /// Reads on and appends to `arguments` what became certain of them. Nothing more comes once the
  /// text is no call.
  void push(std::string_view text, std::string& arguments);

  /// Empty until the name is known, which is before any argument.
  const std::string& name() const { return name_; }
  /// Whether the text so far is a call.
  bool is_whole() const { return state_ == State::kDone; }

 private:
  enum class State : std::uint8_t {
    kHead,    // before the first brace
    kKey,     // before a key
    kColon,   // after a key
    kValue,   // before a value
    kAfter,   // after a value
    kBare,    // in a key or value without quotes
    kQuoted,  // in a string between quote marks
    kString,  // in a JSON string
    kEscape,  // after its backslash
    kHex,     // after its backslash and u
    kDone,
    kBroken,
  };

  // Each reads some of the text, which is not empty, and returns how many bytes.
  std::size_t read(std::string_view text);
  std::size_t read_head(std::string_view text);
  std::size_t read_bare(std::string_view text);
  std::size_t read_quoted(std::string_view text);
  std::size_t read_string(std::string_view text);
  std::size_t read_between(std::string_view text);

  // Each reads one character; false where it may not stand there.
  bool read_colon(char c);
  bool read_after(char c);
  bool read_escape(char c);
  bool read_hex(char c);

  bool begin_string(char c, bool is_key);
  void end_string();
  bool begin_bare(char c, bool is_key);
  bool open(char bracket);
  bool close(char bracket);
  void take_unit(char32_t unit);
  void end_surrogate();

  State state_ = State::kHead;
  std::string name_;
  std::string held_;        // a head or bare text whose end is not known
  std::string open_;        // brackets, outermost first
  bool may_close_ = false;  // nothing stands in the innermost bracket yet
  bool is_key_ = false;     // what is being read
  int hex_digits_ = 0;
  char32_t unit_ = 0;           // of the escape being read
  char32_t surrogate_ = 0;      // high, whose pair may follow
  std::string* out_ = nullptr;  // where push() writes
};

/// The text with quote marks spelled out as the token.
std::string spell_quotes(std::string_view text);

}  // namespace tandem::chat
