#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "data/byte_level.h"
#include "data/characters.h"
#include "data/jinja_syntax.h"

namespace onefold::jinja {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// One line break for all kinds, and none at the end, as Jinja reads a template.
std::string with_plain_lines(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      plain += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else {
      plain += text[i];
    }
  }
  if (plain.ends_with('\n')) plain.pop_back();
  return plain;
}

class Lexer {
 public:
  Lexer(std::string_view text, const std::string& source)
      : text_(with_plain_lines(text)), source_(source) {}

  std::vector<Token> read() {
    require_utf8();
    bool line_starting = true;
    while (at_ < text_.size()) {
      const size_t tag = find_tag(at_);
      read_text(tag, line_starting);
      if (tag == std::string::npos) break;
      at_ = tag;
      if (text_[tag + 1] == '#')
        skip_comment();
      else if (text_[tag + 1] == '{')
        read_tag(Token::Type::begin_output, Token::Type::end_output, "}}");
      else if (!read_raw())
        read_tag(Token::Type::begin_block, Token::Type::end_block, "%}");
      line_starting = at_ > 0 && text_[at_ - 1] == '\n';
    }
    add(Token::Type::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(std::string_view message) const { fail_at(source_, line_, message); }

  size_t find_tag(size_t from) const {
    for (size_t at = text_.find('{', from); at != std::string::npos; at = text_.find('{', at + 1))
      if (at + 1 < text_.size() &&
          (text_[at + 1] == '{' || text_[at + 1] == '%' || text_[at + 1] == '#'))
        return at;
    return std::string::npos;
  }

  void add(Token::Type type, std::string text) {
    if (tokens_.size() >= kMostTokens) fail("the template is too long");
    tokens_.push_back({type, std::move(text), line_, nullptr});
  }

  // The text up to a tag, without the whitespace that the tag takes away.
  void read_text(size_t tag, bool line_starting) {
    std::string_view text = std::string_view(text_).substr(at_, std::min(tag, text_.size()) - at_);
    const int line = line_;
    const int lines = static_cast<int>(std::count(text.begin(), text.end(), '\n'));
    if (tag != std::string::npos) {
      const char sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
      if (sign == '-') {
        while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
      } else if (sign != '+' && text_[tag + 1] != '{') {
        const size_t begin = text.rfind('\n') + 1;  // 0 if there is none
        const std::string_view last = text.substr(begin);
        if ((begin > 0 || line_starting) && std::ranges::all_of(last, is_space))
          text = text.substr(0, begin);
      }
    }
    if (!text.empty()) add(Token::Type::text, std::string(text));
    line_ = line + lines;
  }

  // Past the end of a tag, and what it takes away after itself.
  void end_tag(bool dash, bool plus, bool output) {
    if (dash) {
      while (at_ < text_.size() && is_space(text_[at_])) line_ += text_[at_++] == '\n';
    } else if (!plus && !output && at_ < text_.size() && text_[at_] == '\n') {
      ++at_;
      ++line_;
    }
  }

  void skip_comment() {
    const size_t end = text_.find("#}", at_ + 2);
    if (end == std::string::npos) fail("a comment {# does not end");
    const char sign = end > at_ + 2 ? text_[end - 1] : ' ';
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(at_),
                                         text_.begin() + static_cast<ptrdiff_t>(end), '\n'));
    at_ = end + 2;
    end_tag(sign == '-', sign == '+', false);
  }

  // A tag at a place that holds one word: its end, with the signs around; nothing if it is another.
  struct WordTag {
    size_t end;
    bool dash_before, dash_after, plus_after;
  };
  std::optional<WordTag> word_tag(size_t at, std::string_view word) const {
    size_t i = at + 2;
    const auto skip = [&] {
      while (i < text_.size() && is_space(text_[i])) ++i;
    };
    WordTag tag{};
    if (i < text_.size() && (text_[i] == '-' || text_[i] == '+'))
      tag.dash_before = text_[i++] == '-';
    skip();
    if (text_.compare(i, word.size(), word) != 0) return std::nullopt;
    i += word.size();
    skip();
    if (i < text_.size() && (text_[i] == '-' || text_[i] == '+')) {
      tag.dash_after = text_[i] == '-';
      tag.plus_after = text_[i++] == '+';
    }
    if (text_.compare(i, 2, "%}") != 0) return std::nullopt;
    tag.end = i + 2;
    return tag;
  }

  bool read_raw() {
    const std::optional<WordTag> begin = word_tag(at_, "raw");
    if (!begin) return false;
    at_ = begin->end;
    end_tag(begin->dash_after, begin->plus_after, false);
    for (size_t at = text_.find("{%", at_); at != std::string::npos;
         at = text_.find("{%", at + 1)) {
      const std::optional<WordTag> end = word_tag(at, "endraw");
      if (!end) continue;
      const bool line_starting = at_ > 0 && text_[at_ - 1] == '\n';
      read_text(at, line_starting);
      at_ = end->end;
      end_tag(end->dash_after, end->plus_after, false);
      return true;
    }
    fail("{% raw %} has no {% endraw %}");
  }

  void read_tag(Token::Type begin, Token::Type end, std::string_view closing) {
    add(begin, "");
    at_ += 2;
    if (at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+')) ++at_;
    std::vector<char> open;
    while (true) {
      while (at_ < text_.size() && is_space(text_[at_])) line_ += text_[at_++] == '\n';
      if (at_ >= text_.size()) fail(fmt::format("a tag does not end: {} is missing", closing));
      const char c = text_[at_];
      const bool signed_end = (c == '-' || c == '+') && text_.compare(at_ + 1, 2, closing) == 0 &&
                              !(c == '+' && end == Token::Type::end_output);
      if (open.empty() && (signed_end || text_.compare(at_, 2, closing) == 0)) {
        add(end, "");
        at_ += signed_end ? 3 : 2;
        end_tag(signed_end && c == '-', signed_end && c == '+', end == Token::Type::end_output);
        return;
      }
      read_token(open);
    }
  }

  void read_token(std::vector<char>& open) {
    const char c = text_[at_];
    if (is_letter(c) || static_cast<unsigned char>(c) >= 0x80) {
      const size_t begin = at_;
      while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]) ||
                                    static_cast<unsigned char>(text_[at_]) >= 0x80))
        ++at_;
      return add(Token::Type::name, text_.substr(begin, at_ - begin));
    }
    if (is_digit(c)) return read_number();
    if (c == '"' || c == '\'') return read_string(c);
    static constexpr std::array<std::string_view, 29> kSymbols = {
        "//", "**", "==", "!=", "<=", ">=", "(", ")", "[", "]", "{", "}", ",", ":", ".",
        "|",  "+",  "-",  "*",  "/",  "%",  "~", "<", ">", "=", ";", "!", "&", "@"};
    for (const std::string_view symbol : kSymbols) {
      if (text_.compare(at_, symbol.size(), symbol) != 0) continue;
      add(Token::Type::symbol, std::string(symbol));
      if (c == '(' || c == '[' || c == '{') open.push_back(c);
      if ((c == ')' || c == ']' || c == '}')) {
        const char partner = c == ')' ? '(' : c == ']' ? '[' : '{';
        if (open.empty() || open.back() != partner) fail(fmt::format("\"{}\" is not open", c));
        open.pop_back();
      }
      at_ += symbol.size();
      return;
    }
    fail(fmt::format("the character \"{}\" has no meaning in a tag", c));
  }

  void read_number() {
    std::string digits;
    bool real = false;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      const bool exponent = c == 'e' || c == 'E';
      const bool sign = (c == '+' || c == '-') && !digits.empty() &&
                        (digits.back() == 'e' || digits.back() == 'E');
      const bool point = c == '.' && !real && at_ + 1 < text_.size() && is_digit(text_[at_ + 1]);
      if (!is_digit(c) && c != '_' && !exponent && !sign && !point) break;
      real |= exponent || point;
      if (c != '_') digits += c;
      ++at_;
    }
    add(Token::Type::number, digits);
    const char* const end = digits.data() + digits.size();
    int64_t whole = 0;
    double value = 0;
    if (!real && std::from_chars(digits.data(), end, whole).ptr == end &&
        std::from_chars(digits.data(), end, whole).ec == std::errc())
      tokens_.back().number = whole;
    else if (real && std::from_chars(digits.data(), end, value).ptr == end)
      tokens_.back().number = value;
    else
      fail(fmt::format("{} is no number that can be computed with", digits));
  }

  // Texts are cut at characters: from here on all of them are whole.
  void require_utf8() {
    for (size_t at = 0; at < text_.size();) {
      const size_t bytes = utf8_sequence(std::string_view(text_).substr(at));
      if (bytes == 0)
        fail(fmt::format("the byte {:#04x} is no part of a character: a template is UTF-8",
                         static_cast<unsigned char>(text_[at])));
      line_ += text_[at] == '\n';
      at += bytes;
    }
    line_ = 1;
  }

  void read_string(char quote) {
    std::string value;
    const int line = line_;
    for (++at_; at_ < text_.size() && text_[at_] != quote;) {
      line_ += text_[at_] == '\n';
      if (text_[at_] == '\\')
        read_escape(value);
      else
        value += text_[at_++];
    }
    if (at_ >= text_.size()) fail("a string does not end");
    ++at_;
    const int end = std::exchange(line_, line);
    add(Token::Type::text_literal, std::move(value));
    line_ = end;
  }

  void read_escape(std::string& value) {
    const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    static constexpr std::string_view kFrom = "ntrabfv\\'\"", kTo = "\n\t\r\a\b\f\v\\'\"";
    at_ += 2;
    if (const size_t found = kFrom.find(c); c != '\0' && found != kFrom.npos) {
      value += kTo[found];
      return;
    }
    if (c == '\n') return;
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0 && c >= '0' && c <= '7') return read_octal(c, value);
    if (digits == 0) {  // not an escape: both characters
      value += '\\';
      if (c != '\0') value += c;
      return;
    }
    uint32_t code = 0;
    const char* const first = text_.data() + std::min(at_, text_.size());
    const char* const last = text_.data() + std::min(at_ + digits, text_.size());
    if (std::from_chars(first, last, code, 16).ptr != first + digits || code > 0x10FFFF ||
        (code >= 0xD800 && code < 0xE000))
      fail("a string has an escape that is no character");
    at_ += digits;
    append_utf8(code, value);
  }
  void read_octal(char c, std::string& value) {
    uint32_t code = static_cast<uint32_t>(c - '0');
    for (int i = 0; i < 2 && at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '7'; ++i)
      code = code * 8 + static_cast<uint32_t>(text_[at_++] - '0');
    append_utf8(code, value);
  }

  const std::string text_;
  const std::string& source_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize_jinja(std::string_view text, const std::string& source) {
  return Lexer(text, source).read();
}

}  // namespace onefold::jinja
