// The methods of texts, lists and dictionaries that templates of conversations use.
#include <algorithm>
#include <array>
#include <cctype>
#include <functional>

#include "data/jinja_text.h"

namespace onefold::jinja {
namespace {

// "{} and {name}".format(...): fields without more than a name or a number.
std::string formatted(const std::string& text, const Arguments& arguments, const Place& at) {
  std::string result;
  size_t next = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool twice = i + 1 < text.size() && text[i] == text[i + 1];
    if (text[i] != '{' && text[i] != '}') {
      result += text[i];
      continue;
    }
    if (twice) {
      result += text[i++];
      continue;
    }
    const size_t end = text.find('}', i);
    if (text[i] == '}' || end == std::string::npos) at.fail("format(): a single brace");
    const std::string field = text.substr(i + 1, end - i - 1);
    const bool plain = std::ranges::all_of(
        field, [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)); });
    if (!plain) at.fail(fmt::format("format(): {{{}}} is not interpreted", field));
    const bool number = !field.empty() && field.size() < 4 &&
                        std::ranges::all_of(field, [](char c) { return c >= '0' && c <= '9'; });
    const size_t position = field.empty() ? next++ : number ? std::stoul(field) : SIZE_MAX;
    const Value* const value = arguments.find(position, field);
    if (!value) at.fail(fmt::format("format(): there is no argument for {{{}}}", field));
    result += printed(*value, at);
    at.require_room(result.size());
    i = end;
  }
  return result;
}

bool text_called(const std::string& method, const std::string& text, const Arguments& arguments,
                 const Place& at, Value& result) {
  const auto affix = [&](bool front) {
    const Value& wanted = needed(arguments, 0, "prefix", at);
    const Json all = wanted.is_string() ? Json::array({*wanted.data}) : entries_of(wanted, at);
    return std::ranges::any_of(all, [&](const Json& one) {
      if (!one.is_string()) at.fail("a string is expected");
      const std::string& part = one.get_ref<const std::string&>();
      return front ? text.starts_with(part) : text.ends_with(part);
    });
  };
  const auto all_of = [&](const std::function<bool(char)>& holds) {
    for (const char c : text)
      if (static_cast<unsigned char>(c) >= 0x80)
        at.fail(fmt::format("{}() of letters beyond ASCII is not interpreted", method));
    return !text.empty() && std::ranges::all_of(text, holds);
  };
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (method == "strip" || method == "lstrip" || method == "rstrip")
    result = Value::of(
        stripped(text, arguments.find(0, "chars"), method != "rstrip", method != "lstrip", at));
  else if (method == "split" || method == "rsplit")
    result = Value::of(split_text(text, arguments.find(0, "sep"),
                                  integer_argument(arguments, 1, "maxsplit", -1, at),
                                  method == "rsplit", at));
  else if (method == "splitlines")
    result = Value::of(lines_of(text));
  else if (method == "startswith" || method == "endswith")
    result = Value::of(affix(method == "startswith"));
  else if (method == "upper")
    result = Value::of(uppered(text, at));
  else if (method == "lower")
    result = Value::of(lowered(text));
  else if (method == "capitalize")
    result = Value::of(capitalized(text, at));
  else if (method == "title")
    result = Value::of(titled(text, false, at));
  else if (method == "replace")
    result = Value::of(replaced(text, needed_text(arguments, 0, "old", at),
                                needed_text(arguments, 1, "new", at),
                                integer_argument(arguments, 2, "count", -1, at), at));
  else if (method == "removeprefix" || method == "removesuffix") {
    const std::string& part = needed_text(arguments, 0, "part", at);
    const bool front = method == "removeprefix";
    const bool has = front ? text.starts_with(part) : text.ends_with(part);
    const size_t rest = text.size() - (has ? part.size() : 0);
    result = Value::of(text.substr(has && front ? part.size() : 0, rest));
  } else if (method == "find" || method == "rfind" || method == "index") {
    const std::string& part = needed_text(arguments, 0, "sub", at);
    const size_t found = method == "rfind" ? text.rfind(part) : text.find(part);
    if (found == std::string::npos && method == "index") at.fail("index(): it is not there");
    result = Value::of(
        found == std::string::npos
            ? int64_t{-1}
            : static_cast<int64_t>(Characters(std::string_view(text).substr(0, found)).size()));
  } else if (method == "count") {
    const std::string& part = needed_text(arguments, 0, "sub", at);
    if (part.empty()) at.fail("count() of an empty string is not interpreted");
    int64_t count = 0;
    for (size_t i = text.find(part); i != std::string::npos; i = text.find(part, i + part.size()))
      ++count;
    result = Value::of(count);
  } else if (method == "join")
    result = Value::of(joined(entries_of(needed(arguments, 0, "list", at), at), text, at));
  else if (method == "format")
    result = Value::of(formatted(text, arguments, at));
  else if (method == "isdigit" || method == "isnumeric" || method == "isdecimal")
    result = Value::of(all_of(digit));
  else if (method == "isalpha")
    result = Value::of(all_of(letter));
  else if (method == "isalnum")
    result = Value::of(all_of([&](char c) { return letter(c) || digit(c); }));
  else if (method == "isspace") {
    size_t i = 0, length = 0;
    while (i < text.size() && is_space_at(text, i, length)) i += length;
    result = Value::of(!text.empty() && i >= text.size());
  } else if (method == "isupper" || method == "islower")
    result = Value::of(tested(method == "isupper" ? "upper" : "lower", Value::of(text), {}, at));
  else
    return false;
  return true;
}

}  // namespace

bool called(const std::string& method, const Value& object, const Arguments& arguments,
            const Place& at, Value& result) {
  if (!object.is_data()) return false;
  const Json& json = *object.data;
  if (json.is_string()) return text_called(method, object.text(), arguments, at, result);
  static constexpr std::array<std::string_view, 10> kChanges = {
      "append", "extend", "insert",     "pop",     "remove",
      "clear",  "update", "setdefault", "popitem", "reverse"};
  if ((json.is_array() || json.is_object()) &&
      std::ranges::find(kChanges, method) != kChanges.end() && !json.contains(method))
    at.fail(fmt::format("{}() would change a value; templates may not", method));
  if (json.is_array()) {
    if (method != "index" && method != "count") return false;
    const Json& wanted = data_of(needed(arguments, 0, "value", at), at);
    const auto same = [&](const Json& one) { return equal(one, wanted); };
    const auto found = std::ranges::find_if(json, same);
    if (method == "index" && found == json.end()) at.fail("index(): it is not there");
    result =
        Value::of(method == "index" ? found - json.begin() : std::ranges::count_if(json, same));
    return true;
  }
  if (!json.is_object()) return false;
  if (method == "get") {
    const Value& key = needed(arguments, 0, "key", at);
    const auto found = key.is_string() ? json.find(key.text()) : json.end();
    const Value* const otherwise = arguments.find(1, "default");
    if (found != json.end())
      result = Value::part(object, *found);
    else
      result = otherwise ? *otherwise : Value::of(nullptr);
  } else if (method == "items") {
    result = Value::of(pairs_of(json));
  } else if (method == "keys" || method == "values") {
    Json list = Json::array();
    for (const auto& item : json.items())
      list.push_back(method == "keys" ? Json(item.key()) : item.value());
    result = Value::of(std::move(list));
  } else if (method == "copy") {
    result = object;
  } else {
    return false;
  }
  return true;
}

}  // namespace onefold::jinja
