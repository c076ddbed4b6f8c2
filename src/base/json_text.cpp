#include "base/json_text.h"

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

// Whether each member fits on a line of its own.
bool members_fit(const Json& value, size_t indent) {
  for (const auto& [key, item] : value.items())
    if (indent + label(value, key).size() + one_line(item).size() >= kColumns) return false;
  return true;
}

// A list or object over several lines, whose closing bracket stands at `indent`; as many members
// on a line as fit if `fill`.
std::string block(const Json& value, size_t indent, bool fill) {
  const size_t inner = indent + kIndent;
  std::string content;
  size_t column = kColumns;  // as if a full line had gone before
  for (const auto& [key, item] : value.items()) {
    std::string text = label(value, key) + one_line(item);
    if (item.is_structured() && inner + text.size() >= kColumns)
      text = label(value, key) + block(item, inner, members_fit(item, inner + kIndent));
    if (!content.empty()) content += ',';
    const bool same_line = fill && column + text.size() + 2 < kColumns;
    content += same_line ? " " : "\n" + std::string(inner, ' ');
    column = (same_line ? column + 2 : inner) + text.size();
    content += text;
  }
  return wrapped(value, content + "\n" + std::string(indent, ' '));
}

}  // namespace

std::string json_text(const Json& value) {
  return value.is_object() && !value.empty() ? block(value, 0, false) : one_line(value);
}

}  // namespace onefold
