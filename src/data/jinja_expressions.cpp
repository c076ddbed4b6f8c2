#include <array>

#include "data/jinja_parser.h"

namespace onefold::jinja {

ExpressionPtr ExpressionParser::tuple(bool with_condition) {
  ExpressionPtr first = with_condition ? expression() : either();
  if (!is_symbol(",")) return first;
  ExpressionPtr list = make(Kind::list, peek().line);
  push(*list, std::move(first));
  while (skip_symbol(",")) {
    if (peek().type == Token::Type::end_block || peek().type == Token::Type::end_output) break;
    push(*list, with_condition ? expression() : either());
  }
  return list;
}

ExpressionPtr ExpressionParser::expression() {
  const Deeper deeper(*this);
  ExpressionPtr value = either();
  while (is_name("if")) {
    ExpressionPtr choice = make(Kind::conditional, take().line);
    push(*choice, std::move(value));
    push(*choice, either());
    if (skip_name("else")) push(*choice, expression());
    value = std::move(choice);
  }
  return value;
}

ExpressionPtr ExpressionParser::either() {
  ExpressionPtr left = both();
  while (is_name("or")) {
    const Token op = take();
    left = binary(Kind::either, op, std::move(left), both());
  }
  return left;
}

ExpressionPtr ExpressionParser::both() {
  ExpressionPtr left = negation();
  while (is_name("and")) {
    const Token op = take();
    left = binary(Kind::both, op, std::move(left), negation());
  }
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  if (!is_name("not")) return comparison();
  const Deeper deeper(*this);
  ExpressionPtr result = make(Kind::negation, take().line);
  push(*result, negation());
  return result;
}

ExpressionPtr ExpressionParser::comparison() {
  static constexpr std::array<std::string_view, 6> kOperators = {"==", "!=", "<", "<=", ">", ">="};
  ExpressionPtr first = sum();
  ExpressionPtr result;
  while (true) {
    std::string op;
    const bool symbol = peek().type == Token::Type::symbol &&
                        std::ranges::find(kOperators, peek().text) != kOperators.end();
    if (symbol || is_name("in")) {
      op = take().text;
    } else if (is_name("not") && is_name("in", 1)) {
      take(), take();
      op = "not in";
    } else {
      break;
    }
    if (!result) {
      result = make(Kind::comparison, peek().line);
      push(*result, std::move(first));
    }
    result->operators.push_back(op);
    push(*result, sum());
  }
  return result ? std::move(result) : std::move(first);
}

ExpressionPtr ExpressionParser::binary(Kind kind, const Token& op, ExpressionPtr left,
                                       ExpressionPtr right) const {
  ExpressionPtr result = make(kind, op.line, op.text);
  push(*result, std::move(left));
  push(*result, std::move(right));
  return result;
}

ExpressionPtr ExpressionParser::sum() {
  ExpressionPtr left = concatenation();
  while (is_symbol("+") || is_symbol("-")) {
    const Token op = take();
    left = binary(Kind::operation, op, std::move(left), concatenation());
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  ExpressionPtr left = product();
  while (is_symbol("~")) {
    const Token op = take();
    left = binary(Kind::operation, op, std::move(left), product());
  }
  return left;
}

ExpressionPtr ExpressionParser::product() {
  ExpressionPtr left = power();
  while (is_symbol("*") || is_symbol("/") || is_symbol("//") || is_symbol("%")) {
    const Token op = take();
    left = binary(Kind::operation, op, std::move(left), power());
  }
  return left;
}

ExpressionPtr ExpressionParser::power() {
  ExpressionPtr left = unary();
  while (is_symbol("**")) {
    const Token op = take();
    left = binary(Kind::operation, op, std::move(left), unary());
  }
  return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const Deeper deeper(*this);
  ExpressionPtr value;
  if (is_symbol("-") || is_symbol("+")) {
    const Token sign = take();
    value = make(sign.text == "-" ? Kind::minus : Kind::plus, sign.line);
    push(*value, unary(false));
  } else {
    value = postfix(primary());
  }
  return with_filters ? filters(std::move(value), false) : std::move(value);
}

ExpressionPtr ExpressionParser::primary() {
  const Token token = take();
  switch (token.type) {
    case Token::Type::name:
      return named(token);
    case Token::Type::text_literal: {
      ExpressionPtr text = make(Kind::constant, token.line);
      std::string whole = token.text;
      while (peek().type == Token::Type::text_literal) whole += take().text;
      text->value = std::move(whole);
      return text;
    }
    case Token::Type::number: {
      ExpressionPtr number = make(Kind::constant, token.line);
      number->value = token.number;
      return number;
    }
    case Token::Type::symbol:
      if (token.text == "(") return parenthesis(token.line);
      if (token.text == "[") return list(token.line);
      if (token.text == "{") return dictionary(token.line);
      break;
    default:
      break;
  }
  fail(fmt::format("a value is expected, not {}", shown(token)));
}

ExpressionPtr ExpressionParser::named(const Token& token) {
  ExpressionPtr value = make(Kind::constant, token.line);
  if (token.text == "true" || token.text == "True")
    value->value = true;
  else if (token.text == "false" || token.text == "False")
    value->value = false;
  else if (token.text != "none" && token.text != "None")
    value = make(Kind::name, token.line, token.text);
  return value;
}

ExpressionPtr ExpressionParser::parenthesis(int line) {
  const Deeper deeper(*this);
  if (skip_symbol(")")) return make(Kind::list, line);
  ExpressionPtr first = expression();
  if (is_symbol(",")) {
    ExpressionPtr items = make(Kind::list, line);
    push(*items, std::move(first));
    while (skip_symbol(",") && !is_symbol(")")) push(*items, expression());
    first = std::move(items);
  }
  need_symbol(")");
  return first;
}

ExpressionPtr ExpressionParser::list(int line) {
  ExpressionPtr items = make(Kind::list, line);
  while (!skip_symbol("]")) {
    push(*items, expression());
    if (!is_symbol("]")) need_symbol(",");
  }
  return items;
}

ExpressionPtr ExpressionParser::dictionary(int line) {
  ExpressionPtr items = make(Kind::dictionary, line);
  while (!skip_symbol("}")) {
    push(*items, expression());
    need_symbol(":");
    push(*items, expression());
    if (!is_symbol("}")) need_symbol(",");
  }
  return items;
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr value) {
  while (true) {
    const int line = peek().line;
    ExpressionPtr next;
    if (skip_symbol(".")) {
      if (peek().type == Token::Type::number) {
        next = make(Kind::item, line);
        push(*next, std::move(value));
        push(*next, make(Kind::constant, line));
        next->parts.back()->value = take().number;
      } else {
        next = make(Kind::attribute, line, need_name());
        push(*next, std::move(value));
      }
    } else if (skip_symbol("[")) {
      next = subscript(std::move(value), line);
    } else if (is_symbol("(")) {
      next = make(Kind::call, line);
      push(*next, std::move(value));
      arguments(*next);
    } else {
      return value;
    }
    value = std::move(next);
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr value, int line) {
  const Deeper deeper(*this);
  std::vector<ExpressionPtr> bounds(1);
  bool slice = false;
  while (!is_symbol("]")) {
    if (skip_symbol(":")) {
      slice = true;
      bounds.emplace_back();
    } else if (!bounds.back()) {
      bounds.back() = expression();
    } else {
      fail(fmt::format("\"]\" is expected, not {}", shown(peek())));
    }
  }
  take();
  ExpressionPtr result = make(slice ? Kind::slice : Kind::item, line);
  if (bounds.size() > 3 || (!slice && !bounds[0])) fail("a place in brackets is not complete");
  bounds.resize(slice ? 3 : 1);
  push(*result, std::move(value));
  for (ExpressionPtr& bound : bounds) push(*result, std::move(bound));
  return result;
}

void ExpressionParser::arguments(Expression& call) {
  need_symbol("(");
  while (!skip_symbol(")")) {
    if (is_symbol("*") || is_symbol("**")) fail("arguments with * are not interpreted");
    if (peek().type == Token::Type::name && is_symbol("=", 1)) {
      std::string name = take().text;
      take();
      ExpressionPtr value = expression();
      call.depth = std::max(call.depth, value->depth + 1);
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty()) fail("a plain argument follows a named one");
      push(call, expression());
    }
    if (!is_symbol(")")) need_symbol(",");
  }
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr value, bool begun) {
  while (true) {
    if (begun || skip_symbol("|")) {
      begun = false;
      ExpressionPtr filter = make(Kind::filter, peek().line, need_name());
      push(*filter, std::move(value));
      if (is_symbol("(")) arguments(*filter);
      value = std::move(filter);
    } else if (is_name("is")) {
      value = test(std::move(value));
    } else if (is_symbol("(")) {
      ExpressionPtr call = make(Kind::call, peek().line);
      push(*call, std::move(value));
      arguments(*call);
      value = std::move(call);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::test(ExpressionPtr value) {
  take();
  const bool negated = skip_name("not");
  ExpressionPtr result = make(Kind::test, peek().line, need_name());
  push(*result, std::move(value));
  const Token& next = peek();
  const bool word = next.type == Token::Type::name && next.text != "else" && next.text != "or" &&
                    next.text != "and" && next.text != "is" && next.text != "if" &&
                    next.text != "in" && next.text != "not";
  if (is_symbol("("))
    arguments(*result);
  else if (word || next.type == Token::Type::text_literal || next.type == Token::Type::number ||
           is_symbol("[") || is_symbol("{"))
    push(*result, postfix(primary()));
  if (!negated) return result;
  ExpressionPtr negation = make(Kind::negation, result->line);
  push(*negation, std::move(result));
  return negation;
}

}  // namespace onefold::jinja
