#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>

#include "data/jinja_syntax.h"

namespace onefold::jinja {
namespace {

using Kind = Expression::Kind;

ExpressionPtr make(Kind kind, int line, std::string text = "") {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = line;
  made->text = std::move(text);
  return made;
}

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& source)
      : tokens_(std::move(tokens)), source_(source) {}

  std::unique_ptr<Node> parse() {
    std::unique_ptr<Node> root = block({});
    if (peek().type != Token::Type::end) fail("a tag ends what was not begun");
    return root;
  }
  bool marks_generation() const { return marks_generation_; }

 private:
  // Counts how deep calls are in each other.
  class Deeper {
   public:
    explicit Deeper(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kDeepest) parser_.fail("parts are too deep in each other");
    }
    ~Deeper() { --parser_.depth_; }

   private:
    Parser& parser_;
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

  // Chains are as deep as they are long: what walks a tree calls itself that often.
  void push(Expression& whole, ExpressionPtr part) const {
    if (part) whole.depth = std::max(whole.depth, part->depth + 1);
    if (whole.depth > kDeepestExpression) fail("an expression is too long");
    whole.parts.push_back(std::move(part));
  }

  std::unique_ptr<Node> node(Node::Kind kind) const {
    auto made = std::make_unique<Node>();
    made->kind = kind;
    made->line = peek().line;
    return made;
  }

  // Statements until a tag with one of these words, whose word is still to be taken.
  std::unique_ptr<Node> block(std::initializer_list<std::string_view> ends) {
    const Deeper deeper(*this);
    auto result = node(Node::Kind::block);
    while (peek().type != Token::Type::end) {
      if (peek().type == Token::Type::text) {
        auto text = node(Node::Kind::text);
        text->text = take().text;
        result->children.push_back(std::move(text));
      } else if (peek().type == Token::Type::begin_output) {
        take();
        auto output = node(Node::Kind::output);
        output->expression = tuple();
        if (peek().type != Token::Type::end_output)
          fail(fmt::format("the expression should end at {}", shown(peek())));
        take();
        result->children.push_back(std::move(output));
      } else {
        if (peek().type != Token::Type::begin_block) fail("a tag is expected");
        if (peek(1).type == Token::Type::name &&
            std::find(ends.begin(), ends.end(), peek(1).text) != ends.end()) {
          take();
          return result;
        }
        if (ends.size() == 0 && peek(1).type == Token::Type::name &&
            peek(1).text.starts_with("end"))
          fail(fmt::format("{{% {} %}} ends what was not begun", peek(1).text));
        result->children.push_back(statement());
      }
    }
    if (ends.size() > 0) fail(fmt::format("{{% {} %}} is missing", *(ends.end() - 1)));
    return result;
  }

  std::unique_ptr<Node> statement() {
    take();  // begin_block
    const std::string word = need_name();
    if (word == "if") return condition("endif");
    if (word == "for") return loop();
    if (word == "set") return assignment();
    if (word == "macro") return macro();
    if (word == "generation") return generation();
    if (word == "call") return call_block();
    if (word == "filter") return filter_block();
    if (word == "break" || word == "continue") {
      if (loops_ == 0) fail(fmt::format("{{% {} %}} is in no loop", word));
      auto leave = node(word == "break" ? Node::Kind::leave : Node::Kind::next);
      end_block();
      return leave;
    }
    fail(fmt::format("the statement {{% {} %}} is not interpreted", word));
  }

  std::unique_ptr<Node> condition(const char* end) {
    auto result = node(Node::Kind::condition);
    result->expression = tuple();
    end_block();
    result->children.push_back(block({"elif", "else", end}));
    if (skip_name("elif")) {
      auto otherwise = node(Node::Kind::block);
      const Deeper deeper(*this);
      otherwise->children.push_back(condition(end));
      result->children.push_back(std::move(otherwise));
      return result;
    }
    if (skip_name("else")) {
      end_block();
      result->children.push_back(block({end}));
    }
    take();
    end_block();
    return result;
  }

  std::unique_ptr<Node> loop() {
    auto result = node(Node::Kind::loop);
    result->names = targets();
    if (!skip_name("in")) fail("\"in\" is expected");
    result->expression = tuple(false);
    if (skip_name("if")) result->filter = expression();
    if (is_name("recursive")) fail("{% for ... recursive %} is not interpreted");
    end_block();
    ++loops_;
    result->children.push_back(block({"else", "endfor"}));
    --loops_;
    if (skip_name("else")) {
      end_block();
      result->children.push_back(block({"endfor"}));
    }
    take();
    end_block();
    return result;
  }

  // a, b; also in parentheses.
  std::vector<std::string> targets() {
    std::vector<std::string> names;
    const bool closed = skip_symbol("(");
    do {
      if (closed && is_symbol(")")) break;
      names.push_back(need_name());
    } while (skip_symbol(","));
    if (closed) need_symbol(")");
    return names;
  }

  std::unique_ptr<Node> assignment() {
    auto result = node(Node::Kind::assignment);
    result->names = targets();
    if (skip_symbol(".")) result->attribute = need_name();
    if (skip_symbol("=")) {
      result->expression = tuple();
      end_block();
      return result;
    }
    result->kind = Node::Kind::capture;
    if (result->names.size() != 1 || !result->attribute.empty())
      fail("{% set %} without a value captures into one name");
    if (is_symbol("|")) fail("{% set name | filter %} is not interpreted");
    end_block();
    result->children.push_back(block({"endset"}));
    take();
    end_block();
    return result;
  }

  void parameters(Node& macro) {
    need_symbol("(");
    while (!skip_symbol(")")) {
      macro.names.push_back(need_name());
      if (skip_symbol("="))
        macro.defaults.push_back(expression());
      else if (!macro.defaults.empty())
        fail("a parameter without a default follows one that has one");
      if (!is_symbol(")")) need_symbol(",");
    }
  }

  std::unique_ptr<Node> macro() {
    auto result = node(Node::Kind::macro);
    result->text = need_name();
    parameters(*result);
    end_block();
    const int loops = std::exchange(loops_, 0);
    result->children.push_back(block({"endmacro"}));
    loops_ = loops;
    take();
    if (peek().type == Token::Type::name) take();
    end_block();
    return result;
  }

  std::unique_ptr<Node> call_block() {
    if (is_symbol("(")) fail("{% call(...) %} with parameters is not interpreted");
    auto result = node(Node::Kind::call);
    result->expression = expression();
    if (result->expression->kind != Kind::call) fail("{% call %} needs a call");
    end_block();
    result->children.push_back(block({"endcall"}));
    take();
    end_block();
    return result;
  }

  std::unique_ptr<Node> filter_block() {
    auto result = node(Node::Kind::filtered);
    result->expression = filters(make(Kind::constant, peek().line), true);
    end_block();
    result->children.push_back(block({"endfilter"}));
    take();
    end_block();
    return result;
  }

  std::unique_ptr<Node> generation() {
    marks_generation_ = true;
    auto result = node(Node::Kind::generation);
    end_block();
    result->children.push_back(block({"endgeneration"}));
    take();
    end_block();
    return result;
  }

  // An expression, or several with commas between them: a list.
  ExpressionPtr tuple(bool with_condition = true) {
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

  ExpressionPtr expression() {
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

  ExpressionPtr either() {
    ExpressionPtr left = both();
    while (is_name("or")) {
      const Token op = take();
      left = binary(Kind::either, op, std::move(left), both());
    }
    return left;
  }
  ExpressionPtr both() {
    ExpressionPtr left = negation();
    while (is_name("and")) {
      const Token op = take();
      left = binary(Kind::both, op, std::move(left), negation());
    }
    return left;
  }
  ExpressionPtr negation() {
    if (!is_name("not")) return comparison();
    const Deeper deeper(*this);
    ExpressionPtr result = make(Kind::negation, take().line);
    push(*result, negation());
    return result;
  }

  ExpressionPtr comparison() {
    static constexpr std::array<std::string_view, 6> kOperators = {"==", "!=", "<",
                                                                   "<=", ">",  ">="};
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

  ExpressionPtr binary(Kind kind, const Token& op, ExpressionPtr left, ExpressionPtr right) const {
    ExpressionPtr result = make(kind, op.line, op.text);
    push(*result, std::move(left));
    push(*result, std::move(right));
    return result;
  }
  ExpressionPtr sum() {
    ExpressionPtr left = concatenation();
    while (is_symbol("+") || is_symbol("-")) {
      const Token op = take();
      left = binary(Kind::operation, op, std::move(left), concatenation());
    }
    return left;
  }
  ExpressionPtr concatenation() {
    ExpressionPtr left = product();
    while (is_symbol("~")) {
      const Token op = take();
      left = binary(Kind::operation, op, std::move(left), product());
    }
    return left;
  }
  ExpressionPtr product() {
    ExpressionPtr left = power();
    while (is_symbol("*") || is_symbol("/") || is_symbol("//") || is_symbol("%")) {
      const Token op = take();
      left = binary(Kind::operation, op, std::move(left), power());
    }
    return left;
  }
  ExpressionPtr power() {
    ExpressionPtr left = unary();
    while (is_symbol("**")) {
      const Token op = take();
      left = binary(Kind::operation, op, std::move(left), unary());
    }
    return left;
  }
  ExpressionPtr unary(bool with_filters = true) {
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

  ExpressionPtr primary() {
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

  ExpressionPtr named(const Token& token) {
    ExpressionPtr value = make(Kind::constant, token.line);
    if (token.text == "true" || token.text == "True")
      value->value = true;
    else if (token.text == "false" || token.text == "False")
      value->value = false;
    else if (token.text != "none" && token.text != "None")
      value = make(Kind::name, token.line, token.text);
    return value;
  }
  ExpressionPtr parenthesis(int line) {
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
  ExpressionPtr list(int line) {
    ExpressionPtr items = make(Kind::list, line);
    while (!skip_symbol("]")) {
      push(*items, expression());
      if (!is_symbol("]")) need_symbol(",");
    }
    return items;
  }
  ExpressionPtr dictionary(int line) {
    ExpressionPtr items = make(Kind::dictionary, line);
    while (!skip_symbol("}")) {
      push(*items, expression());
      need_symbol(":");
      push(*items, expression());
      if (!is_symbol("}")) need_symbol(",");
    }
    return items;
  }

  ExpressionPtr postfix(ExpressionPtr value) {
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

  ExpressionPtr subscript(ExpressionPtr value, int line) {
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

  void arguments(Expression& call) {
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

  ExpressionPtr filters(ExpressionPtr value, bool begun) {
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

  ExpressionPtr test(ExpressionPtr value) {
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

  const std::vector<Token> tokens_;
  const std::string& source_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
  bool marks_generation_ = false;
};

}  // namespace

std::unique_ptr<Node> parse_jinja(std::string_view text, const std::string& source,
                                  bool& marks_generation) {
  Parser parser(tokenize_jinja(text, source), source);
  std::unique_ptr<Node> root = parser.parse();
  marks_generation = parser.marks_generation();
  return root;
}

}  // namespace onefold::jinja
