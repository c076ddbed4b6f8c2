// The filters and tests that templates of conversations use.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/text.h"
#include "data/jinja_text.h"

namespace onefold::jinja {
namespace {

// "a.b" of an entry; undefined where it is missing.
Value attribute_of(const Value& value, const Value& path, const Place& at) {
  if (!path.is_string()) return entry(value, path, at);
  Value result = value;
  for (const std::string& name : split(path.text(), '.'))
    if (!result.is_undefined()) result = entry(result, Value::of(name), at);
  return result;
}

// What would change the result must not pass.
void refuse_arguments(const std::string& name, const Arguments& arguments, const Place& at) {
  if (!arguments.plain.empty() || !arguments.named.empty())
    at.fail(fmt::format("{} with arguments is not interpreted", name));
}

// As Jinja compares where it is not told otherwise.
Json without_case(const Json& one) {
  return one.is_string() ? Json(lowered(one.get_ref<const std::string&>())) : one;
}

Arguments without_first(const Arguments& arguments, size_t count) {
  Arguments rest;
  rest.plain.assign(
      arguments.plain.begin() + static_cast<ptrdiff_t>(std::min(count, arguments.plain.size())),
      arguments.plain.end());
  return rest;
}

Value mapped(const Json& list, const Arguments& arguments, const Apply& filter, const Place& at) {
  Json result = Json::array();
  const auto attribute = arguments.named.find("attribute");
  for (const Json& one : list) {
    const Value value = Value::of(one);
    if (attribute != arguments.named.end()) {
      Value found = attribute_of(value, attribute->second, at);
      const auto otherwise = arguments.named.find("default");
      if (found.is_undefined() && otherwise != arguments.named.end()) found = otherwise->second;
      result.push_back(found.is_undefined() ? Json(Json::value_t::discarded) : data_of(found, at));
    } else {
      const std::string& name = needed_text(arguments, 0, "filter", at);
      result.push_back(data_of(filter(name, value, without_first(arguments, 1)), at));
    }
  }
  return Value::of(std::move(result));
}

// select, reject, selectattr and rejectattr.
Value chosen(const std::string& name, const Json& list, const Arguments& arguments,
             const Apply& test, const Place& at) {
  const bool wanted = name.starts_with("select"), by_attribute = name.ends_with("attr");
  Json result = Json::array();
  for (const Json& one : list) {
    Value value = Value::of(one);
    if (by_attribute) value = attribute_of(value, needed(arguments, 0, "attribute", at), at);
    const size_t first = by_attribute ? 1 : 0;
    const bool holds = arguments.plain.size() > first
                           ? is_true(test(needed_text(arguments, first, "test", at), value,
                                          without_first(arguments, first + 1)))
                           : is_true(value);
    if (holds == wanted) result.push_back(one);
  }
  return Value::of(std::move(result));
}

// Stable, and without regard to the case of ASCII letters unless told otherwise, as Jinja sorts.
Value sorted(const Json& list, const Arguments& arguments, const Place& at) {
  const bool reversed = truth_argument(arguments, 0, "reverse");
  const bool exact = truth_argument(arguments, 1, "case_sensitive");
  const Value* const attribute = arguments.find(2, "attribute");
  std::vector<std::pair<Json, const Json*>> keyed;
  for (const Json& one : list) {
    Json key = one;
    if (attribute) {
      const Value found = attribute_of(Value::of(one), *attribute, at);
      key = found.is_undefined() ? Json() : data_of(found, at);
    }
    if (key.is_string() && !exact) key = lowered(key.get_ref<const std::string&>());
    keyed.emplace_back(std::move(key), &one);
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reversed ? ordered(b.first, a.first, at) < 0 : ordered(a.first, b.first, at) < 0;
  });
  Json result = Json::array();
  for (const auto& [key, one] : keyed) result.push_back(*one);
  return Value::of(std::move(result));
}

Value as_integer(const Value& value, const Arguments& arguments, const Place& at) {
  const Value* const otherwise = arguments.find(0, "default");
  const Value fallback = otherwise ? *otherwise : Value::of(int64_t{0});
  if (integer_argument(arguments, 1, "base", 10, at) != 10)
    at.fail("int with a base is not interpreted");
  if (!value.is_data()) return fallback;
  const Json& json = *value.data;
  if (json.is_number_integer()) return value;
  if (json.is_boolean()) return Value::of(int64_t{json.get<bool>()});
  double number = 0;
  if (json.is_number_float()) {
    number = json.get<double>();
  } else if (json.is_string()) {
    const std::string text = stripped(value.text(), nullptr, true, true, at);
    const char* const end = text.data() + text.size();
    if (std::from_chars(text.data(), end, number).ptr != end || text.empty()) return fallback;
  } else {
    return fallback;
  }
  return std::fabs(number) < 0x1p62 ? Value::of(static_cast<int64_t>(number)) : fallback;
}

Value as_float(const Value& value, const Arguments& arguments, const Place& at) {
  const Value* const otherwise = arguments.find(0, "default");
  const Value fallback = otherwise ? *otherwise : Value::of(0.0);
  if (!value.is_data()) return fallback;
  if (value.data->is_number()) return Value::of(value.data->get<double>());
  if (!value.is_string()) return fallback;
  const std::string text = stripped(value.text(), nullptr, true, true, at);
  double number = 0;
  const char* const end = text.data() + text.size();
  return std::from_chars(text.data(), end, number).ptr == end && !text.empty() ? Value::of(number)
                                                                               : fallback;
}

// Every line but the first moved to the right, and the first if asked for.
std::string indented(const std::string& text, const Arguments& arguments, const Place& at) {
  const Value* const width = arguments.find(0, "width");
  std::string margin(4, ' ');
  if (width && width->is_string())
    margin = width->text();
  else if (width)
    margin.assign(static_cast<size_t>(std::clamp<int64_t>(integer_of(*width, at), 0, 1000)), ' ');
  const bool first = truth_argument(arguments, 1, "first");
  const bool blank = truth_argument(arguments, 2, "blank");
  std::string result;
  size_t begin = 0;
  for (bool leading = true; begin <= text.size(); leading = false) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    const bool empty =
        std::ranges::all_of(line, [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); });
    if (!leading) result += '\n';
    if (leading ? first : blank || !empty) result += margin;
    result += line;
    at.require_room(result.size());
    begin = end + 1;
  }
  return result;
}

Value text_filtered(const std::string& name, const std::string& text, const Arguments& arguments,
                    const Place& at, bool& known) {
  known = true;
  if (name == "trim") return Value::of(stripped(text, arguments.find(0, "chars"), true, true, at));
  if (name == "upper") return Value::of(uppered(text, at));
  if (name == "lower") return Value::of(lowered(text));
  if (name == "capitalize") return Value::of(capitalized(text, at));
  if (name == "title") return Value::of(titled(text, true, at));
  if (name == "indent") return Value::of(indented(text, arguments, at));
  if (name == "replace")
    return Value::of(replaced(text, needed_text(arguments, 0, "old", at),
                              needed_text(arguments, 1, "new", at),
                              integer_argument(arguments, 2, "count", -1, at), at));
  known = false;
  return {};
}

Value list_filtered(const std::string& name, const Value& value, const Arguments& arguments,
                    const Apply& filter, const Apply& test, const Place& at, bool& known) {
  known = true;
  // Jinja looks into what is true only: none has nothing to select.
  const bool picks = name == "map" || name.starts_with("select") || name.starts_with("reject");
  const Json list = picks && !is_true(value) ? Json::array() : entries_of(value, at);
  if (name == "list") return Value::of(list);
  if (name == "first" || name == "last") {
    if (list.empty()) return Value::undefined(name);
    return Value::of(name == "first" ? list.front() : list.back());
  }
  if (name == "join") {
    const Value* const separator = arguments.find(0, "d");
    const std::string between = separator ? printed(*separator, at) : "";
    const Value* const attribute = arguments.find(1, "attribute");
    if (!attribute) return Value::of(joined(list, between, at));
    Json parts = Json::array();
    for (const Json& one : list)
      parts.push_back(data_of(attribute_of(Value::of(one), *attribute, at), at));
    return Value::of(joined(parts, between, at));
  }
  if (name == "map") return mapped(list, arguments, filter, at);
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr")
    return chosen(name, list, arguments, test, at);
  if (name == "sort") return sorted(list, arguments, at);
  if (name == "unique") {
    refuse_arguments(name, arguments, at);
    // Strings that differ in case alone are one to Jinja.
    Json kept = Json::array(), keys = Json::array();
    for (const Json& one : list) {
      const Json key = without_case(one);
      if (std::ranges::any_of(keys, [&](const Json& other) { return equal(key, other); })) continue;
      keys.push_back(key);
      kept.push_back(one);
    }
    return Value::of(std::move(kept));
  }
  if (name == "reverse") {
    Json back = Json::array();
    for (size_t i = list.size(); i-- > 0;) back.push_back(list[i]);
    return value.is_string() ? Value::of(joined(back, "", at)) : Value::of(std::move(back));
  }
  if (name == "sum") {
    refuse_arguments(name, arguments, at);
    Value total = Value::of(int64_t{0});
    for (const Json& one : list) total = operated("+", total, Value::of(one), at);
    return total;
  }
  if (name == "min" || name == "max") {
    if (list.empty()) return Value::undefined(name);
    refuse_arguments(name, arguments, at);
    Json best = list[0];
    for (const Json& one : list) {
      const int order = ordered(without_case(one), without_case(best), at);
      if (name == "min" ? order < 0 : order > 0) best = one;
    }
    return Value::of(std::move(best));
  }
  known = false;
  return {};
}

// The arguments of transformers' own tojson, in its order.
DumpStyle dump_style(const Arguments& arguments, const Place& at) {
  const auto given = [&](size_t position, const char* name) {
    const Value* const found = arguments.find(position, name);
    return found && found->is_data() && found->data->is_null() ? nullptr : found;
  };
  DumpStyle style;
  style.ascii = truth_argument(arguments, 0, "ensure_ascii");
  if (given(1, "indent")) {
    const int64_t indent = integer_argument(arguments, 1, "indent", 0, at);
    style.indent = static_cast<int>(std::clamp<int64_t>(indent, 0, 100));
    style.comma = ",";
  }
  if (const Value* const separators = given(2, "separators")) {
    const Json& pair = data_of(*separators, at);
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
      at.fail("the separators of tojson must be two strings");
    style.comma = pair[0].get<std::string>();
    style.colon = pair[1].get<std::string>();
  }
  style.sorted = truth_argument(arguments, 3, "sort_keys");
  return style;
}

}  // namespace

bool goes_through(std::string_view filter) {
  static constexpr std::array<std::string_view, 15> kOfLists = {
      "list", "first",      "last",   "join", "map", "select", "reject", "selectattr",
      "sort", "rejectattr", "unique", "sum",  "min", "max",    "reverse"};
  return std::ranges::find(kOfLists, filter) != kOfLists.end();
}

Value filtered(const std::string& name, const Value& value, const Arguments& arguments,
               const Apply& filter, const Apply& test, const Place& at) {
  if (name == "default" || name == "d") {
    const bool empty = truth_argument(arguments, 1, "boolean") && !is_true(value);
    if (!value.is_undefined() && !empty) return value;
    const Value* const otherwise = arguments.find(0, "default_value");
    return otherwise ? *otherwise : Value::of("");
  }
  if (name == "safe" || name == "string") return Value::of(printed(value, at));
  if (name == "tojson") {
    if (value.is_data() && value.data->is_array() &&
        std::ranges::any_of(*value.data, [](const Json& one) { return one.is_discarded(); }))
      at.fail("an entry of the list is undefined, which has no JSON");
    if (value.is_undefined())
      at.fail(fmt::format("\"{}\" is undefined, which has no JSON", value.name));
    return Value::of(dumped(data_of(value, at), dump_style(arguments, at), at));
  }
  if (name == "length" || name == "count") {
    if (value.is_undefined()) return Value::of(int64_t{0});
    const Json& json = data_of(value, at);
    if (json.is_string()) return Value::of(static_cast<int64_t>(Characters(value.text()).size()));
    if (!json.is_array() && !json.is_object())
      at.fail(fmt::format("{} has no length", kind_of(value)));
    return Value::of(static_cast<int64_t>(json.size()));
  }
  if (name == "items" || name == "dictsort") {
    if (value.is_undefined()) return Value::of(Json::array());
    const Json& json = data_of(value, at);
    if (!json.is_object()) at.fail(fmt::format("{} has no items", kind_of(value)));
    Value pairs = Value::of(pairs_of(json));
    refuse_arguments(name, arguments, at);
    if (name == "items") return pairs;
    Arguments by_key;
    by_key.named["attribute"] = Value::of(int64_t{0});
    return sorted(*pairs.data, by_key, at);
  }
  if (name == "int") return as_integer(value, arguments, at);
  if (name == "float") return as_float(value, arguments, at);
  if (name == "abs") {
    const Json& json = data_of(value, at);
    if (json.is_number_float()) return Value::of(std::fabs(json.get<double>()));
    return integer_of(value, at) < 0 ? operated("-", Value::of(int64_t{0}), value, at) : value;
  }
  if (name == "round") {
    const int64_t digits = integer_argument(arguments, 0, "precision", 0, at);
    if (digits != 0 || arguments.find(1, "method")) at.fail("round is interpreted without digits");
    return Value::of(std::nearbyint(data_of(value, at).is_number()
                                        ? value.data->get<double>()
                                        : double(integer_of(value, at))));
  }
  bool known = false;
  Value result = text_filtered(
      name, value.is_data() || value.is_undefined() ? printed(value, at) : std::string(), arguments,
      at, known);
  if (known) return result;
  if (!goes_through(name)) at.fail(fmt::format("the filter \"{}\" is not interpreted", name));
  result = list_filtered(name, value, arguments, filter, test, at, known);
  return result;
}

bool tested(const std::string& name, const Value& value, const Arguments& arguments,
            const Place& at) {
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  const Json* const json = value.is_data() ? value.data.get() : nullptr;
  if (name == "none") return json && json->is_null();
  if (name == "string") return json && json->is_string();
  if (name == "number")
    return json && (json->is_number() || json->is_boolean() || json->is_binary());
  if (name == "integer") return json && (json->is_number_integer() || json->is_binary());
  if (name == "float") return json && json->is_number_float();
  if (name == "boolean") return json && json->is_boolean();
  if (name == "true") return json && json->is_boolean() && json->get<bool>();
  if (name == "false") return json && json->is_boolean() && !json->get<bool>();
  if (name == "mapping") return json && json->is_object();
  if (name == "sequence" || name == "iterable")
    return value.is_undefined() ||
           (json && (json->is_array() || json->is_object() || json->is_string()));
  if (name == "callable")
    return value.kind == Value::Kind::macro || value.kind == Value::Kind::function;
  if (name == "lower" || name == "upper") {
    const std::string text = printed(value, at);
    const bool any = text.find_first_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") !=
                     std::string::npos;
    return any && text == (name == "lower" ? lowered(text) : uppered(text, at));
  }
  if (name == "even") return integer_of(value, at) % 2 == 0;
  if (name == "odd") return integer_of(value, at) % 2 != 0;
  static constexpr std::array<std::string_view, 16> kCompare = {
      "eq", "equalto", "==", "ne", "!=",          "lt", "<",  "lessthan",
      "le", "<=",      "gt", ">",  "greaterthan", "ge", ">=", "sameas"};
  if (name == "in") return contains(needed(arguments, 0, "seq", at), value, at);
  if (name == "divisibleby") {
    const int64_t by = integer_of(needed(arguments, 0, "num", at), at);
    if (by == 0) at.fail("a division by zero");
    return by == -1 || integer_of(value, at) % by == 0;
  }
  if (std::ranges::find(kCompare, name) == kCompare.end())
    at.fail(fmt::format("the test \"is {}\" is not interpreted", name));
  const Value& other = needed(arguments, 0, "other", at);
  if (value.is_undefined() || other.is_undefined()) {
    const bool both = value.is_undefined() && other.is_undefined();
    return name.starts_with("n") || name == "!=" ? !both : both;
  }
  const Json& a = data_of(value, at);
  const Json& b = data_of(other, at);
  if (name == "eq" || name == "equalto" || name == "==") return equal(a, b);
  if (name == "sameas") return a.type() == b.type() && equal(a, b);
  if (name == "ne" || name == "!=") return !equal(a, b);
  const int order = ordered(a, b, at);
  if (name.starts_with("l") || name.starts_with("<"))
    return order < 0 || (order == 0 && (name == "le" || name == "<="));
  return order > 0 || (order == 0 && (name == "ge" || name == ">="));
}

}  // namespace onefold::jinja
