#include "run/json_text.h"

#include <algorithm>

namespace onefold {
namespace {

constexpr size_t kColumns = 100;
constexpr size_t kIndent = 2;

std::string scalar(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// "key": for a member of an object, nothing for an item of a list.
std::string label(const Json& owner, const std::string& key) {
  return owner.is_object() ? scalar(key) + ": " : "";
}

std::string wrapped(const Json& owner, const std::string& content) {
  return owner.is_object() ? "{" + content + "}" : "[" + content + "]";
}

std::string one_line(const Json& value) {
  if (!value.is_structured()) return scalar(value);
  std::string content;
  for (const auto& [key, item] : value.items())
    content += (content.empty() ? "" : ", ") + label(value, key) + one_line(item);
  return wrapped(value, content);
}

// A list or object over several lines, whose closing bracket stands at `indent`.
std::string block(const Json& value, size_t indent, bool fill) {
  const std::string margin = "\n" + std::string(indent + kIndent, ' ');
  std::string content;
  size_t column = kColumns;  // a full line: the first item begins one
  for (const auto& [key, item] : value.items()) {
    if (!content.empty()) content += ',';
    std::string text = label(value, key) + one_line(item);
    if (fill && column + text.size() + 2 < kColumns) {
      content += ' ';
      column += text.size() + 2;
    } else {
      content += margin;
      column = indent + kIndent + text.size();
    }
    if (column >= kColumns && item.is_structured()) {
      const bool flat = std::none_of(item.begin(), item.end(),
                                     [](const Json& inner) { return inner.is_structured(); });
      text = label(value, key) + block(item, indent + kIndent, flat);
    }
    content += text;
  }
  return wrapped(value, content + "\n" + std::string(indent, ' '));
}

}  // namespace

std::string json_text(const Json& value) {
  return value.is_object() && !value.empty() ? block(value, 0, false) : one_line(value);
}

}  // namespace onefold
