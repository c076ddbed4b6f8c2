#include "data/jinja.h"

#include <algorithm>
#include <array>
#include <ctime>

#include "base/error.h"
#include "data/jinja_syntax.h"
#include "data/jinja_values.h"

namespace onefold {
namespace jinja {
namespace {

constexpr int64_t kMostSteps = 1'000'000;
constexpr int kDeepestRun = 600;           // of expressions, statements and macros in each other
constexpr int kDeepestValue = 64;          // of lists in lists
constexpr int64_t kBytesInStep = 64;       // of values that are made: they count as steps
constexpr int64_t kBytesOfCharacter = 16;  // in a list

// Names of one stretch of a template: the whole, an iteration, a macro's body.
struct Scope {
  Scope* outer = nullptr;
  std::map<std::string, Value> names;
};

enum class Flow { on, leave, next };

// How much memory a value takes, roughly; an error if it is too deep.
int64_t weight(const Json& json, int depth, const Place& at) {
  if (depth > kDeepestValue) at.fail("values are too deep in each other");
  int64_t bytes = 16;
  if (json.is_string()) bytes += static_cast<int64_t>(json.get_ref<const std::string&>().size());
  if (json.is_array())
    for (const Json& one : json) bytes += weight(one, depth + 1, at);
  if (json.is_object())
    for (const auto& item : json.items())
      bytes += static_cast<int64_t>(item.key().size()) + weight(item.value(), depth + 1, at);
  return bytes;
}

std::string current_time(const std::string& format, const Place& at) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  std::string text(256, '\0');
  if (format.size() > 100) at.fail("strftime_now(): the format is too long");
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &parts));
  return text;
}

class Renderer {
 public:
  Renderer(const std::string& source, Json variables) : source_(source) {
    const Value all = Value::of(std::move(variables));
    for (const auto& item : all.data->items())
      root_.names[item.key()] = Value::part(all, item.value());
    for (const char* name : {"range", "namespace", "dict", "raise_exception", "strftime_now"}) {
      Value function;
      function.kind = Value::Kind::function;
      function.name = name;
      root_.names.try_emplace(name, std::move(function));
    }
  }

  JinjaTemplate::Rendered render(const Node& root) {
    JinjaTemplate::Rendered rendered;
    out_ = main_ = &rendered.text;
    generated_ = &rendered.generated;
    run(root);
    return rendered;
  }

 private:
  Place at(int line) const { return {&source_, line}; }

  // One step, and one level deeper while it lasts.
  class Step {
   public:
    Step(Renderer& renderer, int line) : renderer_(renderer) {
      renderer.spend(1, line);
      if (++renderer.depth_ > kDeepestRun)
        renderer.at(line).fail("the template calls itself too deeply");
    }
    ~Step() { --renderer_.depth_; }

   private:
    Renderer& renderer_;
  };
  void spend(int64_t steps, int line) {
    if ((steps_ += steps) > kMostSteps)
      at(line).fail(fmt::format("the template takes more than {} steps", kMostSteps));
  }
  // A value that was made counts by its size.
  Value made(Value value, int line) {
    if (value.is_data() && (value.data->is_structured() || value.data->is_string()))
      spend(weight(*value.data, 0, at(line)) / kBytesInStep, line);
    return value;
  }

  void write(std::string_view text, int line) {
    at(line).require_room(out_->size() + text.size());
    out_->append(text);
  }
  // What a node writes, as a text.
  std::string captured(const Node& node) {
    std::string text;
    std::string* const outer = std::exchange(out_, &text);
    run(node);
    out_ = outer;
    return text;
  }

  Flow run_all(const Node& node) {
    for (const auto& child : node.children)
      if (const Flow flow = run(*child); flow != Flow::on) return flow;
    return Flow::on;
  }

  Flow run(const Node& node) {
    const Step step(*this, node.line);
    switch (node.kind) {
      case Node::Kind::text:
        write(node.text, node.line);
        return Flow::on;
      case Node::Kind::output:
        write(printed(evaluate(*node.expression), at(node.line)), node.line);
        return Flow::on;
      case Node::Kind::block:
        return run_all(node);
      case Node::Kind::condition:
        if (is_true(evaluate(*node.expression))) return run(*node.children[0]);
        return node.children.size() > 1 ? run(*node.children[1]) : Flow::on;
      case Node::Kind::loop:
        run_loop(node);
        return Flow::on;
      case Node::Kind::assignment:
        assign(node);
        return Flow::on;
      case Node::Kind::capture:
        scope_->names[node.names[0]] = made(Value::of(captured_in_scope(node)), node.line);
        return Flow::on;
      case Node::Kind::macro: {
        Value macro;
        macro.kind = Value::Kind::macro;
        macro.macro = std::make_shared<const Macro>(Macro{&node, {}});
        scope_->names[node.text] = std::move(macro);
        return Flow::on;
      }
      case Node::Kind::call:
        run_call(node);
        return Flow::on;
      case Node::Kind::filtered: {
        const Value text = Value::of(captured_in_scope(node));
        write(printed(filter_chain(*node.expression, text), at(node.line)), node.line);
        return Flow::on;
      }
      case Node::Kind::generation: {
        const size_t begin = out_->size();
        const Flow flow = run(*node.children[0]);
        if (out_ == main_) generated_->push_back({begin, out_->size()});
        return flow;
      }
      case Node::Kind::leave:
        return Flow::leave;
      case Node::Kind::next:
        return Flow::next;
    }
    internal_error("no statement {}", static_cast<int>(node.kind));
  }

  // Runs something with names of its own.
  template <typename Body>
  auto scoped(Body body) {
    Scope inner{scope_, {}};
    Scope* const outer = std::exchange(scope_, &inner);
    struct Restore {
      Scope*& scope;
      Scope* outer;
      ~Restore() { scope = outer; }
    } restore{scope_, outer};
    return body();
  }
  std::string captured_in_scope(const Node& node) {
    return scoped([&] { return captured(*node.children[0]); });
  }

  void bind(const std::vector<std::string>& names, const Value& value, int line) {
    if (names.size() == 1) {
      scope_->names[names[0]] = value;
      return;
    }
    const Json entries = entries_of(value, at(line));
    if (entries.size() != names.size())
      at(line).fail(fmt::format("{} values for {} names", entries.size(), names.size()));
    for (size_t i = 0; i < names.size(); ++i) scope_->names[names[i]] = Value::of(entries[i]);
  }

  void assign(const Node& node) {
    const Value value = evaluate(*node.expression);
    if (node.attribute.empty()) return bind(node.names, value, node.line);
    const Value target = lookup(node.names[0]);
    if (target.kind != Value::Kind::space || node.names.size() != 1)
      at(node.line).fail(fmt::format("\"{}\" is no namespace, so its \"{}\" cannot be set",
                                     node.names[0], node.attribute));
    if (value.kind == Value::Kind::space) at(node.line).fail("a namespace cannot hold another");
    (*target.space)[node.attribute] = value;
  }

  void run_loop(const Node& node) {
    const Value value = evaluate(*node.expression);
    Value items = value;
    if (!value.is_data() || !value.data->is_array())
      items = made(Value::of(entries_of(value, at(node.line))), node.line);
    if (node.filter) {
      Json kept = Json::array();
      for (const Json& one : *items.data) {
        const bool keeps = scoped([&] {
          bind(node.names, Value::part(items, one), node.line);
          return is_true(evaluate(*node.filter));
        });
        if (keeps) kept.push_back(one);
      }
      items = made(Value::of(std::move(kept)), node.line);
    }
    auto loop = std::make_shared<Loop>();
    loop->length = static_cast<int64_t>(items.data->size());
    loop->items = items.data;
    for (; loop->index0 < loop->length; ++loop->index0) {
      const Flow flow = scoped([&] {
        Value self;
        self.kind = Value::Kind::loop;
        self.loop = loop;
        scope_->names["loop"] = self;
        bind(node.names, Value::part(items, (*items.data)[static_cast<size_t>(loop->index0)]),
             node.line);
        return run(*node.children[0]);
      });
      if (flow == Flow::leave) break;
    }
    if (loop->length == 0 && node.children.size() > 1)
      scoped([&] { return run(*node.children[1]); });
  }

  void run_call(const Node& node) {
    const Expression& call = *node.expression;
    const Value callee = evaluate(*call.parts[0]);
    if (callee.kind != Value::Kind::macro) at(node.line).fail("{% call %} needs a macro");
    Value caller = Value::of(captured_in_scope(node));
    write(call_macro(*callee.macro, arguments_of(call, 1), &caller, node.line), node.line);
  }

  std::string call_macro(const Macro& macro, const Arguments& given, const Value* caller,
                         int line) {
    const Node& node = *macro.node;
    if (given.plain.size() > node.names.size())
      at(line).fail(fmt::format("the macro {} takes {} arguments", node.text, node.names.size()));
    // A macro sees the template's names, and not those of whoever calls it.
    Scope* const caller_scope = std::exchange(scope_, &root_);
    struct Restore {
      Scope*& scope;
      Scope* outer;
      ~Restore() { scope = outer; }
    } restore{scope_, caller_scope};
    return scoped([&] {
      const size_t required = node.names.size() - node.defaults.size();
      for (size_t i = 0; i < node.names.size(); ++i) {
        const Value* const found = given.find(i, node.names[i]);
        if (found)
          scope_->names[node.names[i]] = *found;
        else if (i >= required)
          scope_->names[node.names[i]] = evaluate(*node.defaults[i - required]);
        else
          scope_->names[node.names[i]] = Value::undefined(node.names[i]);
      }
      for (const auto& [name, value] : given.named)
        if (std::ranges::find(node.names, name) == node.names.end())
          at(line).fail(fmt::format("the macro {} has no parameter {}", node.text, name));
      if (caller) scope_->names["caller"] = *caller;
      return captured(*node.children[0]);
    });
  }

  Value lookup(const std::string& name) const {
    for (const Scope* scope = scope_; scope; scope = scope->outer) {
      const auto found = scope->names.find(name);
      if (found != scope->names.end()) return found->second;
    }
    return Value::undefined(name);
  }

  Arguments arguments_of(const Expression& expression, size_t first) {
    Arguments arguments;
    for (size_t i = first; i < expression.parts.size(); ++i)
      arguments.plain.push_back(evaluate(*expression.parts[i]));
    for (const auto& [name, value] : expression.named) arguments.named[name] = evaluate(*value);
    return arguments;
  }

  // A list of a text's characters counts as other values that are made.
  void spend_on_characters(const Value& text, int line) {
    if (text.is_string())
      spend(static_cast<int64_t>(text.text().size()) * kBytesOfCharacter / kBytesInStep, line);
  }

  Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments,
                     int line) {
    spend(1, line);
    if (goes_through(name)) spend_on_characters(value, line);
    const Apply filter = [&](const std::string& other, const Value& one, const Arguments& more) {
      return apply_filter(other, one, more, line);
    };
    const Apply test = [&](const std::string& other, const Value& one, const Arguments& more) {
      spend(1, line);
      return Value::of(tested(other, one, more, at(line)));
    };
    return made(filtered(name, value, arguments, filter, test, at(line)), line);
  }
  // The filters of {% filter a | b %}, whose innermost value is the text.
  Value filter_chain(const Expression& expression, const Value& text) {
    if (expression.kind != Expression::Kind::filter) return text;
    const Step step(*this, expression.line);
    return apply_filter(expression.text, filter_chain(*expression.parts[0], text),
                        arguments_of(expression, 1), expression.line);
  }

  Value evaluate(const Expression& expression) {
    const Step step(*this, expression.line);
    using Kind = Expression::Kind;
    const Place place = at(expression.line);
    const auto part = [&](size_t i) { return evaluate(*expression.parts[i]); };
    switch (expression.kind) {
      case Kind::constant:
        return Value::of(expression.value);
      case Kind::name:
        return lookup(expression.text);
      case Kind::list: {
        Json list = Json::array();
        for (const ExpressionPtr& one : expression.parts)
          list.push_back(data_of(evaluate(*one), place));
        return made(Value::of(std::move(list)), expression.line);
      }
      case Kind::dictionary:
        return dictionary(expression);
      case Kind::attribute:
        return member(part(0), expression.text, place);
      case Kind::item:
        return entry(part(0), part(1), place);
      case Kind::slice: {
        std::array<Value, 3> bounds;
        std::array<const Value*, 3> given{};
        for (size_t i = 0; i < bounds.size(); ++i)
          if (expression.parts[i + 1]) {
            bounds[i] = part(i + 1);
            given[i] = &bounds[i];
          }
        return made(sliced(part(0), given[0], given[1], given[2], place), expression.line);
      }
      case Kind::call:
        return made(call(expression), expression.line);
      case Kind::filter:
        return apply_filter(expression.text, part(0), arguments_of(expression, 1), expression.line);
      case Kind::test:
        return Value::of(tested(expression.text, part(0), arguments_of(expression, 1), place));
      case Kind::negation:
        return Value::of(!is_true(part(0)));
      case Kind::minus:
      case Kind::plus: {
        const Value value = part(0);
        if (!value.is_data() || !value.data->is_number())
          place.fail(fmt::format("{} has no sign", kind_of(value)));
        return expression.kind == Kind::plus ? value
                                             : operated("-", Value::of(int64_t{0}), value, place);
      }
      case Kind::operation: {
        const Value left = part(0);
        return made(operated(expression.text, left, part(1), place), expression.line);
      }
      case Kind::both: {
        Value left = part(0);
        return is_true(left) ? part(1) : left;
      }
      case Kind::either: {
        Value left = part(0);
        return is_true(left) ? left : part(1);
      }
      case Kind::comparison:
        return compare(expression);
      case Kind::conditional:
        if (is_true(part(1))) return part(0);
        return expression.parts.size() > 2 ? part(2) : Value::undefined("the other case");
    }
    internal_error("no expression {}", static_cast<int>(expression.kind));
  }

  Value dictionary(const Expression& expression) {
    Json object = Json::object();
    for (size_t i = 0; i < expression.parts.size(); i += 2) {
      const Value key = evaluate(*expression.parts[i]);
      if (!key.is_string()) at(expression.line).fail("a key must be a string");
      object[key.text()] = data_of(evaluate(*expression.parts[i + 1]), at(expression.line));
    }
    return made(Value::of(std::move(object)), expression.line);
  }

  Value compare(const Expression& expression) {
    Value left = evaluate(*expression.parts[0]);
    const Place place = at(expression.line);
    for (size_t i = 0; i < expression.operators.size(); ++i) {
      const Value right = evaluate(*expression.parts[i + 1]);
      const std::string& op = expression.operators[i];
      bool holds = false;
      if (op == "in" || op == "not in") {
        holds = contains(right, left, place) == (op == "in");
      } else if (!left.is_data() || !right.is_data()) {
        const bool same = left.is_undefined() && right.is_undefined();
        if (op != "==" && op != "!=")
          place.fail(fmt::format("{} {} {} has no answer", kind_of(left), op, kind_of(right)));
        holds = same == (op == "==");
      } else if (op == "==" || op == "!=") {
        holds = equal(*left.data, *right.data) == (op == "==");
      } else {
        const int order = ordered(*left.data, *right.data, place);
        holds = op == "<"    ? order < 0
                : op == "<=" ? order <= 0
                : op == ">"  ? order > 0
                             : order >= 0;
      }
      if (!holds) return Value::of(false);
      left = right;
    }
    return Value::of(true);
  }

  Value call(const Expression& expression) {
    const Expression& target = *expression.parts[0];
    const Place place = at(expression.line);
    const Arguments arguments = arguments_of(expression, 1);
    if (target.kind == Expression::Kind::attribute) {
      const Value object = evaluate(*target.parts[0]);
      if (object.is_undefined())
        place.fail(
            fmt::format("\"{}\" is undefined, and its {}() is called", object.name, target.text));
      if (object.kind == Value::Kind::loop && target.text == "cycle" && !arguments.plain.empty())
        return arguments.plain[static_cast<size_t>(object.loop->index0) % arguments.plain.size()];
      if (target.text == "join")
        for (const Value& list : arguments.plain) spend_on_characters(list, expression.line);
      Value result;
      if (called(target.text, object, arguments, place, result)) return result;
      const Value callee = member(object, target.text, place);
      if (callee.kind == Value::Kind::macro) return call_value(callee, arguments, expression.line);
      place.fail(
          fmt::format("{} has no method {}() that is interpreted", kind_of(object), target.text));
    }
    const Value callee = evaluate(target);
    // {% call %} has rendered it already.
    if (target.kind == Expression::Kind::name && target.text == "caller" && callee.is_data())
      return callee;
    return call_value(callee, arguments, expression.line);
  }

  Value call_value(const Value& callee, const Arguments& arguments, int line) {
    const Place place = at(line);
    if (callee.kind == Value::Kind::macro)
      return Value::of(call_macro(*callee.macro, arguments, nullptr, line));
    if (callee.kind != Value::Kind::function || callee.name.starts_with("dict."))
      place.fail(fmt::format("{} cannot be called", kind_of(callee)));
    if (callee.name == "range") return range(arguments, place);
    if (callee.name == "raise_exception") {
      const Value* const message = arguments.find(0, "message");
      place.fail(fmt::format("the template refuses the conversation: {}",
                             message ? printed(*message, place) : ""));
    }
    if (callee.name == "strftime_now") {
      const Value* const format = arguments.find(0, "format");
      if (!format || !format->is_string()) place.fail("strftime_now() needs a format");
      return Value::of(current_time(format->text(), place));
    }
    Value result;
    if (callee.name == "namespace") {
      result.kind = Value::Kind::space;
      result.space = std::make_shared<Namespace>(arguments.named);
      for (const auto& [name, value] : arguments.named)
        if (value.kind == Value::Kind::space) place.fail("a namespace cannot hold another");
      if (!arguments.plain.empty()) place.fail("namespace() is interpreted with named values");
      return result;
    }
    Json object = Json::object();
    for (const auto& [name, value] : arguments.named) object[name] = data_of(value, place);
    if (!arguments.plain.empty()) place.fail("dict() is interpreted with named values");
    return Value::of(std::move(object));
  }

  static Value range(const Arguments& arguments, const Place& place) {
    const size_t count = arguments.plain.size();
    if (count < 1 || count > 3) place.fail("range() takes one to three numbers");
    const int64_t first = count > 1 ? integer_of(arguments.plain[0], place) : 0;
    const int64_t last = integer_of(arguments.plain[count > 1 ? 1 : 0], place);
    const int64_t step = count > 2 ? integer_of(arguments.plain[2], place) : 1;
    if (step == 0) place.fail("a step of 0 goes nowhere");
    Json list = Json::array();
    for (int64_t i = first; step > 0 ? i < last : i > last;) {
      if (static_cast<int64_t>(list.size()) >= kLongestRange)
        place.fail(fmt::format("range() has more than {} numbers", kLongestRange));
      list.push_back(i);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    return Value::of(std::move(list));
  }

  const std::string& source_;
  Scope root_;
  Scope* scope_ = &root_;
  std::string* out_ = nullptr;
  std::string* main_ = nullptr;
  std::vector<JinjaTemplate::Span>* generated_ = nullptr;
  int64_t steps_ = 0;
  int depth_ = 0;
};

using Names = std::set<std::string, std::less<>>;

void collect_read(const Expression& expression, Names& names) {
  names.insert(expression.text);
  if (expression.value.is_string()) names.insert(expression.value.get<std::string>());
  for (const ExpressionPtr& part : expression.parts)
    if (part) collect_read(*part, names);
  for (const auto& [name, value] : expression.named) collect_read(*value, names);
}

void collect_read(const Node& node, Names& names) {
  for (const ExpressionPtr* expression : {&node.expression, &node.filter})
    if (*expression) collect_read(**expression, names);
  for (const ExpressionPtr& expression : node.defaults) collect_read(*expression, names);
  for (const auto& child : node.children) collect_read(*child, names);
}

}  // namespace
}  // namespace jinja

JinjaTemplate::JinjaTemplate(std::string_view text, std::string source)
    : source_(std::move(source)), root_(jinja::parse_jinja(text, source_, marks_generation_)) {
  jinja::collect_read(*root_, read_);
}
JinjaTemplate::~JinjaTemplate() = default;

JinjaTemplate::Rendered JinjaTemplate::render(Json variables) const {
  return jinja::Renderer(source_, std::move(variables)).render(*root_);
}

}  // namespace onefold
