// The parts of a Jinja template: tokens, expressions and statements. Private to the files that
// interpret it (jinja*.cpp).
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace onefold::jinja {

inline constexpr int kDeepest = 100;            // of expressions and statements in each other
inline constexpr int kDeepestExpression = 300;  // chains of operators count their links
inline constexpr size_t kMostTokens = 200'000;  // of a template

[[noreturn]] inline void fail_at(const std::string& source, int line, std::string_view message) {
  user_error("{}:{}: {}", source, line, message);
}

struct Token {
  enum class Type {
    text,
    begin_block,
    end_block,
    begin_output,
    end_output,
    name,
    text_literal,
    number,
    symbol,
    end
  };
  Type type = Type::end;
  std::string text;  // of a symbol, its characters
  int line = 0;
  Json number = nullptr;
};

// The whole template: text between tags, and the tokens of tags. Comments are gone, whitespace is
// controlled, {% raw %} is text.
std::vector<Token> tokenize_jinja(std::string_view text, const std::string& source);

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind {
    constant,     // value
    name,         // text
    list,         // parts; tuples too
    dictionary,   // parts: key, value, key, value, ...
    attribute,    // parts[0].text
    item,         // parts[0][parts[1]]
    slice,        // parts[0][parts[1]:parts[2]:parts[3]]; any of the three may be null
    call,         // parts[0](parts[1...], named...)
    filter,       // parts[0] | text(parts[1...], named...)
    test,         // parts[0] is text(parts[1...])
    negation,     // not parts[0]
    minus,        // -parts[0]
    plus,         // +parts[0]
    operation,    // parts[0] text parts[1]
    both,         // parts[0] and parts[1]
    either,       // parts[0] or parts[1]
    comparison,   // parts[0] operators[0] parts[1] operators[1] parts[2] ...
    conditional,  // parts[1] ? parts[0] : parts[2], which may be missing
  };
  Kind kind = Kind::constant;
  int line = 0;
  int depth = 0;  // of the parts below it
  std::string text;
  Json value = nullptr;
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> operators;
};

struct Node {
  enum class Kind {
    text,        // text
    output,      // expression
    block,       // children
    condition,   // expression, children[0] and perhaps children[1]
    loop,        // names in expression if filter: children[0], else children[1]
    assignment,  // names (or name.attribute) = expression
    capture,     // names[0] = what children render
    macro,       // text(names, with defaults): children[0]
    call,        // {% call %}: expression with children[0] as caller()
    filtered,    // {% filter %}: expression of what children[0] renders
    generation,  // children[0]
    leave,       // break
    next,        // continue
  };
  Kind kind = Kind::text;
  int line = 0;
  std::string text;
  std::vector<std::string> names;
  std::string attribute;  // of a namespace, in an assignment
  ExpressionPtr expression, filter;
  std::vector<ExpressionPtr> defaults;  // of a macro's last parameters
  std::vector<std::unique_ptr<Node>> children;
};

std::unique_ptr<Node> parse_jinja(std::string_view text, const std::string& source,
                                  bool& marks_generation);

}  // namespace onefold::jinja
