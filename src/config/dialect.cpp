#include "config/dialect.h"

namespace onefold {
namespace {

// Past the string that begins at `at`; the text's length if it has no end.
size_t string_end(const std::string& text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return at + 1;
}

// Past the comment that begins at `at`; `at` itself if none does.
size_t comment_end(const std::string& text, size_t at) {
  const bool line = text[at] == '#' || text.compare(at, 2, "//") == 0;
  if (!line && text.compare(at, 2, "/*") != 0) return at;
  const size_t end = line ? text.find('\n', at) : text.find("*/", at + 2);
  if (end == std::string::npos) return text.size();
  return line ? end : end + 2;
}

void blank(std::string& text, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i)
    if (text[i] != '\n') text[i] = ' ';
}

}  // namespace

std::string without_dialect(std::string text) {
  size_t comma =
      std::string::npos;  // one after a value, which only blanks and comments have followed
  char last = '[';        // the character before, without blanks and comments
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    const size_t after_comment = comment_end(text, at);
    if (after_comment != at) {
      if (c == '#') blank(text, at, after_comment);
      at = after_comment;
      continue;
    }
    if ((c == '}' || c == ']') && comma != std::string::npos) text[comma] = ' ';
    if (c != ' ' && c != '\t' && c != '\r' && c != '\n') {
      const bool after_value = last != '[' && last != '{' && last != ',' && last != ':';
      comma = c == ',' && after_value ? at : std::string::npos;
      last = c;
    }
    at = c == '"' ? string_end(text, at) : at + 1;
  }
  return text;
}

}  // namespace onefold
