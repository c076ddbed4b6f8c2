// The parser of templates: its tokens, and expressions. Statements are jinja_parser.cpp's. Private
// to the files that parse (jinja_parser.cpp, jinja_expressions.cpp).
#pragma once

#include <algorithm>

#include "data/jinja_syntax.h"

namespace onefold::jinja {

class TokenReader {
 public:
  TokenReader(std::vector<Token> tokens, const std::string& source)
      : tokens_(std::move(tokens)), source_(source) {}

 protected:
  // Counts how deep calls are in each other.
  class Deeper {
   public:
    explicit Deeper(TokenReader& reader) : reader_(reader) {
      if (++reader_.depth_ > kDeepest) reader_.fail("parts are too deep in each other");
    }
    ~Deeper() { --reader_.depth_; }

   private:
    TokenReader& reader_;
  };

  const Token& peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  Token take() {
    Token token = peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  [[noreturn]] void fail(std::string_view message) const { fail_at(source_, peek().line, message); }
  static std::string shown(const Token& token) {
    switch (token.type) {
      case Token::Type::name:
      case Token::Type::symbol:
      case Token::Type::number:
        return fmt::format("\"{}\"", token.text);
      case Token::Type::text_literal:
        return "a string";
      case Token::Type::end:
        return "the template's end";
      default:
        return "the tag's end";
    }
  }
  bool is_symbol(std::string_view text, size_t ahead = 0) const {
    return peek(ahead).type == Token::Type::symbol && peek(ahead).text == text;
  }
  bool is_name(std::string_view text, size_t ahead = 0) const {
    return peek(ahead).type == Token::Type::name && peek(ahead).text == text;
  }
  bool skip_symbol(std::string_view text) {
    if (!is_symbol(text)) return false;
    take();
    return true;
  }
  bool skip_name(std::string_view text) {
    if (!is_name(text)) return false;
    take();
    return true;
  }
  void need_symbol(std::string_view text) {
    if (!skip_symbol(text)) fail(fmt::format("\"{}\" is expected, not {}", text, shown(peek())));
  }
  std::string need_name() {
    if (peek().type != Token::Type::name)
      fail(fmt::format("a name is expected, not {}", shown(peek())));
    return take().text;
  }
  void end_block() {
    if (peek().type != Token::Type::end_block)
      fail(fmt::format("the tag should end at {}", shown(peek())));
    take();
  }

 private:
  const std::vector<Token> tokens_;
  const std::string& source_;
  size_t at_ = 0;
  int depth_ = 0;
};

// A function for each level of how tightly operators bind, from the loosest on.
class ExpressionParser : protected TokenReader {
 public:
  using TokenReader::TokenReader;

 protected:
  using Kind = Expression::Kind;

  static ExpressionPtr make(Kind kind, int line, std::string text = "") {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->line = line;
    made->text = std::move(text);
    return made;
  }

  // An expression, or several with commas between them: a list.
  ExpressionPtr tuple(bool with_condition = true);
  ExpressionPtr expression();
  // What follows a value: | filter, is test. `begun`: the first filter's | has been taken.
  ExpressionPtr filters(ExpressionPtr value, bool begun);

 private:
  // Chains are as deep as they are long: what walks a tree calls itself that often.
  void push(Expression& whole, ExpressionPtr part) const {
    if (part) whole.depth = std::max(whole.depth, part->depth + 1);
    if (whole.depth > kDeepestExpression) fail("an expression is too long");
    whole.parts.push_back(std::move(part));
  }

  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr binary(Kind kind, const Token& op, ExpressionPtr left, ExpressionPtr right) const;
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters = true);
  ExpressionPtr primary();
  ExpressionPtr named(const Token& token);
  ExpressionPtr parenthesis(int line);
  ExpressionPtr list(int line);
  ExpressionPtr dictionary(int line);
  ExpressionPtr postfix(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr value, int line);
  void arguments(Expression& call);
  ExpressionPtr test(ExpressionPtr value);
};

}  // namespace onefold::jinja
