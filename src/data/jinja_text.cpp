#include "data/jinja_text.h"

#include <algorithm>
#include <array>

#include "data/byte_level.h"
#include "data/characters.h"

namespace onefold::jinja {
namespace {

constexpr std::string_view kSpaces = " \t\n\r\v\f";

}  // namespace

bool is_space_at(std::string_view text, size_t at, size_t& length) {
  length = std::max<size_t>(1, utf8_sequence(text.substr(at)));
  if (length == 1)
    return kSpaces.find(text[at]) != kSpaces.npos || (text[at] >= 28 && text[at] < 32);
  static constexpr std::array<std::string_view, 19> kWide = {
      "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003",
      "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
      "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  return std::ranges::find(kWide, text.substr(at, length)) != kWide.end();
}

std::string stripped(std::string_view text, const Value* characters, bool left, bool right,
                     const Place& at) {
  const Characters all(text);
  size_t first = 0, last = all.size();
  std::vector<std::string> set;
  const bool given = characters && !(characters->is_data() && characters->data->is_null());
  if (given) {
    if (!characters->is_string()) at.fail("what is stripped must be a string");
    for (const Json& one : entries_of(*characters, at)) set.push_back(one.get<std::string>());
  }
  const auto matches = [&](size_t i) {
    size_t length = 0;
    if (!given) return is_space_at(text, all.place(i), length);
    return std::ranges::find(set, all[i]) != set.end();
  };
  while (left && first < last && matches(first)) ++first;
  while (right && first < last && matches(last - 1)) --last;
  const size_t begin = all.place(first);
  return std::string(text.substr(begin, all.place(last) - begin));
}

// ASCII letters one to one, others by Unicode's simple rules for lower case alone.
std::string lowered(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t length = std::max<size_t>(1, utf8_sequence(text.substr(at)));
    if (length == 1)
      result += static_cast<char>(text[at] >= 'A' && text[at] <= 'Z' ? text[at] + 32 : text[at]);
    else
      append_lower(code_point_of(text.substr(at, length)), result);
    at += length;
  }
  return result;
}

std::string uppered(std::string_view text, const Place& at) {
  std::string result;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80)
      at.fail("upper case of letters beyond ASCII is not interpreted");
    result += static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  }
  return result;
}

std::string capitalized(std::string_view text, const Place& at) {
  if (text.empty()) return "";
  const size_t first = std::max<size_t>(1, utf8_sequence(text));
  return uppered(text.substr(0, first), at) + lowered(text.substr(first));
}

std::string titled(std::string_view text, bool filter, const Place& at) {
  std::string result;
  bool begins = true;
  for (const char c : lowered(text)) {
    const bool letter = (c >= 'a' && c <= 'z') || static_cast<unsigned char>(c) >= 0x80;
    result += begins && letter ? uppered(std::string_view(&c, 1), at) : std::string(1, c);
    const bool gap = kSpaces.find(c) != kSpaces.npos || std::string_view("-({[<").find(c) < 5;
    begins = filter ? gap : !letter;
  }
  return result;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     int64_t count, const Place& at) {
  std::string result;
  if (from.empty()) at.fail("replacing an empty string is not interpreted");
  size_t begin = 0;
  for (size_t found = text.find(from); found != text.npos && count != 0;
       found = text.find(from, begin), --count) {
    result += text.substr(begin, found - begin);
    at.require_room(result.size() + to.size() + text.size());
    result += to;
    begin = found + from.size();
  }
  return result + std::string(text.substr(begin));
}

Json split_text(std::string_view text, const Value* separator, int64_t most, bool from_right,
                const Place& at) {
  std::vector<std::string> parts;
  const bool given = separator && !(separator->is_data() && separator->data->is_null());
  if (given) {
    if (!separator->is_string() || separator->text().empty())
      at.fail("what is split at must be a string that is not empty");
    const std::string& mark = separator->text();
    while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
      const size_t found = from_right ? text.rfind(mark) : text.find(mark);
      if (found == text.npos) break;
      const std::string_view before = text.substr(0, found),
                             after = text.substr(found + mark.size());
      parts.emplace_back(from_right ? after : before);
      text = from_right ? before : after;
    }
    parts.emplace_back(text);
  } else {
    if (from_right) at.fail("rsplit() without a separator is not interpreted");
    size_t i = 0, length = 0;
    while (true) {
      while (i < text.size() && is_space_at(text, i, length)) i += length;
      if (i >= text.size()) break;
      if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
        parts.push_back(stripped(text.substr(i), nullptr, false, true, at));
        break;
      }
      const size_t begin = i;
      while (i < text.size() && !is_space_at(text, i, length)) i += length;
      parts.emplace_back(text.substr(begin, i - begin));
    }
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

// By Python's splitlines(), for which more than line feeds end a line.
Json lines_of(std::string_view text) {
  static constexpr std::array<std::string_view, 11> kEnds = {
      "\r\n", "\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\u0085", "\u2028", "\u2029"};
  Json lines = Json::array();
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const auto* const end = std::ranges::find_if(
        kEnds, [&](std::string_view one) { return text.substr(at).starts_with(one); });
    if (end == kEnds.end()) {
      ++at;
      continue;
    }
    lines.push_back(std::string(text.substr(begin, at - begin)));
    begin = at += end->size();
  }
  if (begin < text.size()) lines.push_back(std::string(text.substr(begin)));
  return lines;
}

std::string joined(const Json& list, std::string_view separator, const Place& at) {
  std::string text;
  bool first = true;
  for (const Json& one : list) {
    if (!std::exchange(first, false)) text += separator;
    if (one.is_string())
      text += one.get<std::string>();
    else if (!one.is_discarded())  // which is printed as nothing
      text += represented(one);
    at.require_room(text.size());
  }
  return text;
}

Json pairs_of(const Json& object) {
  Json pairs = Json::array();
  for (const auto& item : object.items()) pairs.push_back({item.key(), item.value()});
  return pairs;
}

const Value& needed(const Arguments& arguments, size_t position, const std::string& name,
                    const Place& at) {
  const Value* const found = arguments.find(position, name);
  if (!found) at.fail(fmt::format("the argument \"{}\" is missing", name));
  return *found;
}
const std::string& needed_text(const Arguments& arguments, size_t position, const std::string& name,
                               const Place& at) {
  const Value& value = needed(arguments, position, name, at);
  if (!value.is_string()) at.fail(fmt::format("the argument \"{}\" must be a string", name));
  return value.text();
}
int64_t integer_argument(const Arguments& arguments, size_t position, const std::string& name,
                         int64_t otherwise, const Place& at) {
  const Value* const found = arguments.find(position, name);
  return found ? integer_of(*found, at) : otherwise;
}
bool truth_argument(const Arguments& arguments, size_t position, const std::string& name) {
  const Value* const found = arguments.find(position, name);
  return found && is_true(*found);
}

}  // namespace onefold::jinja
