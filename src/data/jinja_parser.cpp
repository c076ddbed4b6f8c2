#include "data/jinja_parser.h"

#include <algorithm>
#include <initializer_list>
#include <optional>

namespace onefold::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  std::unique_ptr<Node> parse() {
    std::unique_ptr<Node> root = block({});
    if (peek().type != Token::Type::end) fail("a tag ends what was not begun");
    return root;
  }
  bool marks_generation() const { return marks_generation_; }

 private:
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

  int loops_ = 0;
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
