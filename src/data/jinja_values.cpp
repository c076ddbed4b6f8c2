#include "data/jinja_values.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "data/byte_level.h"
#include "data/characters.h"

namespace onefold::jinja {
namespace {

bool is_big(const Json& json) { return json.is_binary(); }

std::string number_text(const Json& number) {
  if (is_big(number)) return big_integer_digits(number);
  if (!number.is_number_float()) return number.dump();
  const double value = number.get<double>();
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// Of the character there; a byte that belongs to none is one.
size_t character_bytes(std::string_view text, size_t at) {
  return std::max<size_t>(1, utf8_sequence(text.substr(at)));
}

// The character there and its bytes; of a byte that belongs to none, its own number.
uint32_t character_at(std::string_view text, size_t at, size_t& length) {
  length = character_bytes(text, at);
  return length > 1 ? code_point_of(text.substr(at, length)) : static_cast<unsigned char>(text[at]);
}

// \u00e9, or two of them for what is beyond 16 bits.
void append_escaped(uint32_t point, std::string& out) {
  if (point < 0x10000)
    out += fmt::format("\\u{:04x}", point);
  else
    out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((point - 0x10000) >> 10),
                       0xDC00 + ((point - 0x10000) & 0x3FF));
}

void append_quoted(std::string_view text, bool ascii, std::string& out) {
  out += '"';
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    static constexpr std::string_view kFrom = "\"\\\n\r\t\b\f", kTo = "\"\\nrtbf";
    if (const size_t found = kFrom.find(c); found != kFrom.npos) {
      out += '\\', out += kTo[found];
    } else if (static_cast<unsigned char>(c) < 0x20 || (ascii && c == 0x7F)) {
      append_escaped(static_cast<uint32_t>(c), out);
    } else if (ascii && static_cast<unsigned char>(c) >= 0x80) {
      size_t length = 0;
      append_escaped(character_at(text, i, length), out);
      i += length - 1;
    } else {
      out += c;
    }
  }
  out += '"';
}

class Dumper {
 public:
  Dumper(const DumpStyle& style, const Place& at) : style_(style), at_(at) {}

  void append(const Json& json, int level) {
    at_.require_room(out.size());  // an indent makes much of little
    if (json.is_array()) {
      out += '[';
      for (size_t i = 0; i < json.size(); ++i) {
        if (i > 0) out += style_.comma;
        line(level + 1);
        append(json[i], level + 1);
      }
      close(json, level, ']');
    } else if (json.is_object()) {
      out += '{';
      std::vector<const Json::object_t::value_type*> items;
      for (const auto& item : json.get_ref<const Json::object_t&>()) items.push_back(&item);
      if (style_.sorted)
        std::ranges::sort(items, {},
                          [](const auto* item) { return std::string_view(item->first); });
      for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out += style_.comma;
        line(level + 1);
        append_quoted(items[i]->first, style_.ascii, out);
        out += style_.colon;
        append(items[i]->second, level + 1);
      }
      close(json, level, '}');
    } else if (json.is_string()) {
      append_quoted(json.get_ref<const std::string&>(), style_.ascii, out);
    } else if (json.is_number() || is_big(json)) {
      const std::string text = number_text(json);
      out += text == "nan"    ? "NaN"
             : text == "inf"  ? "Infinity"
             : text == "-inf" ? "-Infinity"
                              : text;
    } else {
      out += json.dump();
    }
  }

  std::string out;

 private:
  void line(int depth) {
    if (style_.indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(style_.indent * depth), ' ');
  }
  void close(const Json& json, int level, char end) {
    if (!json.empty()) line(level);
    out += end;
  }

  const DumpStyle& style_;
  const Place& at_;
};

// As Python's repr() has a string: what cannot be printed by its number.
void append_represented(std::string_view text, std::string& out) {
  const bool double_quotes = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = double_quotes ? '"' : '\'';
  out += quote;
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    const uint32_t point = character_at(text, at, length);
    const std::string_view one = text.substr(at, length);
    const char c = one[0];
    at += length;
    if (c == quote || c == '\\')
      out += '\\', out += c;
    else if (c == '\n' || c == '\r' || c == '\t')
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    else if (is_printable_character(point) && (point < 0x80 || length > 1))
      out += one;
    else if (point < 0x100)
      out += fmt::format("\\x{:02x}", point);
    else
      out += point < 0x10000 ? fmt::format("\\u{:04x}", point) : fmt::format("\\U{:08x}", point);
  }
  out += quote;
}

void append_represented(const Json& json, std::string& out) {
  if (json.is_string()) {
    append_represented(std::string_view(json.get_ref<const std::string&>()), out);
  } else if (json.is_array()) {
    out += '[';
    for (size_t i = 0; i < json.size(); ++i) {
      if (i > 0) out += ", ";
      append_represented(json[i], out);
    }
    out += ']';
  } else if (json.is_object()) {
    out += '{';
    bool first = true;
    for (const auto& item : json.items()) {
      if (!std::exchange(first, false)) out += ", ";
      append_represented(std::string_view(item.key()), out);
      out += ": ";
      append_represented(item.value(), out);
    }
    out += '}';
  } else if (json.is_boolean()) {
    out += json.get<bool>() ? "True" : "False";
  } else if (json.is_null()) {
    out += "None";
  } else if (json.is_discarded()) {
    out += "Undefined";
  } else {
    out += number_text(json);
  }
}

bool is_number(const Json& json) { return json.is_number() || json.is_boolean(); }
double number(const Json& json) {
  return json.is_boolean() ? (json.get<bool>() ? 1.0 : 0.0) : json.get<double>();
}

int64_t whole_number(const Json& json) {
  return json.is_boolean() ? int64_t{json.get<bool>()} : json.get<int64_t>();
}

// Python's integers have no end; ours do, and say so.
Value whole_operated(char op, int64_t a, int64_t b, const Place& at) {
  int64_t result = 0;
  bool overflows = false;
  if (op == '+') overflows = __builtin_add_overflow(a, b, &result);
  if (op == '-') overflows = __builtin_sub_overflow(a, b, &result);
  if (op == '*') overflows = __builtin_mul_overflow(a, b, &result);
  if (op == 'd' || op == '%') {
    if (b == 0) at.fail("a division by zero");
    if (b == -1) {  // the one quotient that does not fit
      overflows = __builtin_sub_overflow(int64_t{0}, a, &result);
      if (op == '%') return Value::of(int64_t{0});
    } else {
      const int64_t rest = a % b, adjust = rest != 0 && (rest < 0) != (b < 0) ? 1 : 0;
      result = op == 'd' ? a / b - adjust : rest + adjust * b;
    }
  }
  if (overflows) at.fail("a number becomes too large");
  return Value::of(result);
}

Value repeated(const Json& text, const Json& count, const Place& at) {
  const std::string& one = text.get_ref<const std::string&>();
  const auto times = static_cast<size_t>(std::max<int64_t>(0, count.get<int64_t>()));
  if (!one.empty() && times > kMostBytes / one.size()) at.fail("a text becomes too long");
  std::string all;
  for (size_t i = 0; i < (one.empty() ? 0 : times); ++i) all += one;
  return Value::of(std::move(all));
}

}  // namespace

bool is_true(const Value& value) {
  if (value.is_undefined()) return false;
  if (!value.is_data()) return true;
  const Json& json = *value.data;
  if (json.is_null()) return false;
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number()) return json.get<double>() != 0;
  if (json.is_string()) return !value.text().empty();
  return !json.empty();
}

std::string kind_of(const Value& value) {
  switch (value.kind) {
    case Value::Kind::undefined:
      return fmt::format("undefined ({})", value.name);
    case Value::Kind::space:
      return "a namespace";
    case Value::Kind::macro:
      return "a macro";
    case Value::Kind::function:
      return "a function";
    case Value::Kind::loop:
      return "a loop";
    case Value::Kind::data:
      break;
  }
  if (value.data->is_null()) return "none";
  return std::string(json_kind(*value.data));
}

const Json& data_of(const Value& value, const Place& at) {
  if (!value.is_data()) at.fail(fmt::format("{} cannot be computed with", kind_of(value)));
  return *value.data;
}

std::string represented(const Json& json) {
  std::string text;
  append_represented(json, text);
  return text;
}

std::string dumped(const Json& json, const DumpStyle& style, const Place& at) {
  Dumper dumper(style, at);
  dumper.append(json, 0);
  return std::move(dumper.out);
}

std::string printed(const Value& value, const Place& at) {
  if (value.is_undefined()) return "";
  if (!value.is_data()) at.fail(fmt::format("{} cannot be written", kind_of(value)));
  return value.is_string() ? value.text() : represented(*value.data);
}

bool equal(const Json& a, const Json& b) {
  if (is_number(a) && is_number(b)) {
    const auto huge = [](const Json& json) {  // beyond what is signed
      return json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX};
    };
    if (huge(a) != huge(b)) return false;
    const bool whole = !a.is_number_float() && !b.is_number_float();
    return whole ? whole_number(a) == whole_number(b) : number(a) == number(b);
  }
  if (a.type() != b.type() || a.size() != b.size()) return false;
  if (a.is_array()) return std::equal(a.begin(), a.end(), b.begin(), equal);
  if (!a.is_object()) return a == b;
  return std::ranges::all_of(a.items(), [&](const auto& item) {
    const auto found = b.find(item.key());
    return found != b.end() && equal(item.value(), *found);
  });
}

int ordered(const Json& a, const Json& b, const Place& at) {
  if (is_number(a) && is_number(b)) {
    const double left = number(a), right = number(b);
    return left < right ? -1 : left > right ? 1 : 0;
  }
  if (a.is_string() && b.is_string())
    return a.get_ref<const std::string&>().compare(b.get_ref<const std::string&>());
  if (a.is_array() && b.is_array()) {
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      if (!equal(a[i], b[i])) return ordered(a[i], b[i], at);
    return a.size() < b.size() ? -1 : a.size() > b.size() ? 1 : 0;
  }
  at.fail(fmt::format("{} and {} have no order", json_kind(a), json_kind(b)));
}

bool contains(const Value& whole, const Value& part, const Place& at) {
  if (whole.is_undefined()) return false;  // which Jinja goes through as if it were empty
  const Json& json = data_of(whole, at);
  const Json& wanted = part.is_undefined() ? Json() : data_of(part, at);
  if (json.is_array())
    return std::ranges::any_of(json, [&](const Json& one) { return equal(one, wanted); });
  if (json.is_object())
    return wanted.is_string() && json.contains(wanted.get_ref<const std::string&>());
  if (json.is_string() && wanted.is_string())
    return whole.text().find(wanted.get_ref<const std::string&>()) != std::string::npos;
  at.fail(fmt::format("{} cannot be looked for in {}", kind_of(part), kind_of(whole)));
}

Value operated(const std::string& op, const Value& left, const Value& right, const Place& at) {
  if (op == "~") {
    std::string text = printed(left, at), more = printed(right, at);
    at.require_room(text.size() + more.size());
    return Value::of(std::move(text) + more);
  }
  for (const Value* value : {&left, &right})
    if (value->is_undefined()) at.fail(fmt::format("\"{}\" is undefined", value->name));
  const Json& a = data_of(left, at);
  const Json& b = data_of(right, at);
  if (op == "+" && a.is_string() && b.is_string()) {
    at.require_room(left.text().size() + right.text().size());
    return Value::of(left.text() + right.text());
  }
  if (op == "+" && a.is_array() && b.is_array()) {
    Json all = a;
    all.insert(all.end(), b.begin(), b.end());
    if (all.size() > kMostTokens) at.fail("a list becomes too long");
    return Value::of(std::move(all));
  }
  if (op == "*" && a.is_string() && b.is_number_integer()) return repeated(a, b, at);
  if (op == "*" && b.is_string() && a.is_number_integer()) return repeated(b, a, at);
  if (!is_number(a) || !is_number(b))
    at.fail(fmt::format("{} {} {} cannot be computed", kind_of(left), op, kind_of(right)));
  if (op == "/") {
    if (number(b) == 0) at.fail("a division by zero");
    return Value::of(number(a) / number(b));
  }
  if (op == "**") {
    const double power = std::pow(number(a), number(b));
    const bool whole = !a.is_number_float() && !b.is_number_float() && number(b) >= 0;
    if (whole && std::fabs(power) < 0x1p53) return Value::of(static_cast<int64_t>(power));
    if (whole) at.fail("a number becomes too large");
    return Value::of(power);
  }
  if (!a.is_number_float() && !b.is_number_float())
    return whole_operated(op == "//" ? 'd' : op[0], whole_number(a), whole_number(b), at);
  const double x = number(a), y = number(b);
  if (op == "+") return Value::of(x + y);
  if (op == "-") return Value::of(x - y);
  if (op == "*") return Value::of(x * y);
  if (y == 0) at.fail("a division by zero");
  if (op == "//") return Value::of(std::floor(x / y));
  return Value::of(x - y * std::floor(x / y));
}

Json entries_of(const Value& value, const Place& at) {
  if (value.is_undefined()) return Json::array();
  const Json& json = data_of(value, at);
  if (json.is_array()) return json;
  Json entries = Json::array();
  if (json.is_object()) {
    for (const auto& item : json.items()) entries.push_back(item.key());
  } else if (json.is_string()) {
    if (value.text().size() > kMostListed) at.fail("a text is too long for a list of characters");
    const std::string_view text = value.text();
    for (size_t at = 0, length = 0; at < text.size(); at += length) {
      length = character_bytes(text, at);
      entries.push_back(std::string(text.substr(at, length)));
    }
  } else {
    at.fail(fmt::format("{} has no entries to go through", kind_of(value)));
  }
  return entries;
}

int64_t integer_of(const Value& value, const Place& at) {
  const Json& json = data_of(value, at);
  if (!json.is_number_integer() && !json.is_boolean())
    at.fail(fmt::format("a whole number is expected, not {}", kind_of(value)));
  return whole_number(json);
}

namespace {

constexpr size_t kMarkedCharacters = 64;

}  // namespace

Characters::Characters(std::string_view text) : text_(text) {
  const bool ascii =
      std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (ascii) {
    size_ = text.size();
    return;
  }
  for (size_t at = 0; at < text.size(); at += character_bytes(text, at))
    if (size_++ % kMarkedCharacters == 0) marks_.push_back(at);
}

size_t Characters::place(size_t i) const {
  if (i >= size_) return text_.size();
  if (marks_.empty()) return i;
  size_t at = marks_[i / kMarkedCharacters];
  for (size_t left = i % kMarkedCharacters; left > 0; --left) at += character_bytes(text_, at);
  return at;
}

std::string_view Characters::operator[](size_t i) const {
  const size_t at = place(i);
  return text_.substr(at, character_bytes(text_, at));
}

// As Python counts: from the end if below 0, and cut to what there is.
Value sliced(const Value& value, const Value* first, const Value* last, const Value* step,
             const Place& at) {
  if (value.is_undefined()) at.fail(fmt::format("\"{}\" is undefined", value.name));
  const Json& json = data_of(value, at);
  const bool text = json.is_string();
  if (!text && !json.is_array()) at.fail(fmt::format("{} has no parts", kind_of(value)));
  const Characters all(text ? std::string_view(value.text()) : std::string_view());
  const auto length = static_cast<int64_t>(text ? all.size() : json.size());
  const auto given = [](const Value* bound) {
    return bound && !(bound->is_data() && bound->data->is_null());
  };
  const int64_t stride = given(step) ? integer_of(*step, at) : 1;
  if (stride == 0) at.fail("a step of 0 goes nowhere");
  const int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? length : length - 1;
  const auto bound = [&](const Value* wanted, int64_t otherwise) {
    if (!given(wanted)) return otherwise;
    const int64_t place = integer_of(*wanted, at);
    return std::clamp(place < 0 && place >= -length ? place + length
                      : place < 0                   ? low
                                                    : place,
                      low, high);
  };
  const int64_t from = bound(first, stride > 0 ? low : high);
  const int64_t to = bound(last, stride > 0 ? high : low);
  if (text && stride == 1) {
    const size_t begin = all.place(static_cast<size_t>(from));
    const size_t end = all.place(static_cast<size_t>(std::max(from, to)));
    return Value::of(value.text().substr(begin, end - begin));
  }
  std::string characters;
  Json list = Json::array();
  // The distance is computed first: a step may be any number.
  const int64_t span = stride > 0 ? to - from : from - to;
  const uint64_t by =
      stride > 0 ? static_cast<uint64_t>(stride) : 0 - static_cast<uint64_t>(stride);
  for (uint64_t done = 0; span > 0 && done < static_cast<uint64_t>(span); done += by) {
    const auto offset = static_cast<int64_t>(done);
    const auto i = static_cast<size_t>(stride > 0 ? from + offset : from - offset);
    if (text)
      characters += all[i];
    else
      list.push_back(json[i]);
    if (by >= static_cast<uint64_t>(span)) break;
  }
  return text ? Value::of(std::move(characters)) : Value::of(std::move(list));
}

namespace {

// What Python's dictionaries have: value.items is the method, even if there is an entry "items".
bool is_method_of_dictionaries(std::string_view name) {
  static constexpr std::array<std::string_view, 11> kMethods = {
      "clear", "copy",    "fromkeys",   "get",    "items", "keys",
      "pop",   "popitem", "setdefault", "update", "values"};
  return std::ranges::find(kMethods, name) != kMethods.end();
}

Value method(const std::string& name) {
  Value value;
  value.kind = Value::Kind::function;
  value.name = "dict." + name;
  return value;
}

}  // namespace

Value member(const Value& value, const std::string& name, const Place& at) {
  if (value.is_undefined())
    at.fail(fmt::format("\"{}\" is undefined, and its \"{}\" is asked for", value.name, name));
  if (value.kind == Value::Kind::space) {
    const auto found = value.space->find(name);
    return found == value.space->end() ? Value::undefined(name) : found->second;
  }
  if (value.is_data() && value.data->is_object()) {
    if (is_method_of_dictionaries(name)) return method(name);
    const auto found = value.data->find(name);
    if (found != value.data->end()) return Value::part(value, *found);
  }
  if (value.kind != Value::Kind::loop) return Value::undefined(name);
  const Loop& loop = *value.loop;
  const auto at_place = [&](int64_t place) {
    if (place < 0 || place >= loop.length) return Value::undefined(name);
    return Value::of((*loop.items)[static_cast<size_t>(place)]);
  };
  if (name == "index") return Value::of(loop.index0 + 1);
  if (name == "index0") return Value::of(loop.index0);
  if (name == "revindex") return Value::of(loop.length - loop.index0);
  if (name == "revindex0") return Value::of(loop.length - loop.index0 - 1);
  if (name == "first") return Value::of(loop.index0 == 0);
  if (name == "last") return Value::of(loop.index0 + 1 == loop.length);
  if (name == "length") return Value::of(loop.length);
  if (name == "previtem") return at_place(loop.index0 - 1);
  if (name == "nextitem") return at_place(loop.index0 + 1);
  at.fail(fmt::format("loop.{} is not interpreted", name));
}

Value entry(const Value& value, const Value& key, const Place& at) {
  if (key.is_string() && value.is_data() && value.data->is_object())
    if (const auto found = value.data->find(key.text()); found != value.data->end())
      return Value::part(value, *found);
  if (key.is_string() && !(value.is_data() && !value.data->is_object()))
    return member(value, key.text(), at);
  if (value.is_undefined()) at.fail(fmt::format("\"{}\" is undefined", value.name));
  const Json& json = data_of(value, at);
  const bool place = key.is_data() && (key.data->is_number_integer() || key.data->is_boolean());
  if (!place || !(json.is_array() || json.is_string()))
    return Value::undefined(key.is_string() ? key.text() : "entry");
  const Characters all(json.is_string() ? std::string_view(value.text()) : std::string_view());
  const auto length = static_cast<int64_t>(json.is_string() ? all.size() : json.size());
  int64_t at_index = integer_of(key, at);
  if (at_index < 0 && at_index >= -length) at_index += length;
  if (at_index < 0 || at_index >= length) return Value::undefined(fmt::format("[{}]", at_index));
  const auto i = static_cast<size_t>(at_index);
  if (json.is_array()) return Value::part(value, json[i]);
  return Value::of(std::string(all[i]));
}

}  // namespace onefold::jinja
