#include "base/error.h"

namespace onefold {

std::string quoted_lines(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size(); ++at) {
    const bool is_own = at + 1 == text.size() || text.substr(at + 1).starts_with("  ");
    if (text[at] == '\n' && !is_own)
      result += "\\n";
    else
      result += text[at];
  }
  return result;
}

}  // namespace onefold
