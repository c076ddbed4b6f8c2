#include "docs/page.h"

#include <fmt/format.h>

#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>

namespace onefold::docs {
namespace {

constexpr std::string_view kFence = "```", kMark = "<!-- test: ", kMarkEnd = " -->", kPrompt = "$ ";

[[noreturn]] void fail(int line, const std::string& message) {
  throw std::runtime_error(fmt::format("line {}: {}", line, message));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The rest of the text after a word, if it begins with that.
bool take(std::string& text, const std::string& word) {
  if (!text.starts_with(word)) return false;
  text.erase(0, word.size());
  return true;
}

// Puts a mark on the block that follows.
void read_mark(std::string mark, int line, Part& next) {
  if (take(mark, "skip ")) {
    next.reason = mark;
  } else if (take(mark, "file ")) {
    next.file = mark;
  } else if (take(mark, "output of ")) {
    next.command = mark;
  } else if (take(mark, "with ")) {
    next.substitutions.push_back(mark);
  } else if (mark == "numbers vary") {
    next.numbers_vary = true;
  } else if (take(mark, "exits ")) {
    next.exit_code = std::stoi(mark);
  } else {
    fail(line, "no such mark: " + mark);
  }
}

bool is_marked(const Part& part) {
  return !part.reason.empty() || !part.file.empty() || !part.command.empty() ||
         !part.substitutions.empty() || part.numbers_vary || part.exit_code != 0;
}

// Whether the block is something to run; sets what.
bool classify(Part& part) {
  static const std::set<std::string> kLeftAlone = {"text", "cpp", "cmake", "bash"};
  const bool prompts = !part.lines.empty() && part.lines[0].starts_with(kPrompt);
  if (!part.reason.empty()) {
    part.kind = Part::Kind::skipped;
  } else if (!part.command.empty() || prompts) {
    part.kind = Part::Kind::console;
  } else if (part.language == "sh") {
    part.kind = Part::Kind::script;
  } else if (part.language == "json" || !part.file.empty()) {
    part.kind = Part::Kind::file;
  } else if (kLeftAlone.contains(part.language)) {
    if (is_marked(part)) fail(part.line, "a mark on a block that is not run");
    return false;
  } else {
    fail(part.line, "is it commands (sh), commands with output ($ ...), or text?");
  }
  return true;
}

struct Mask {
  std::regex pattern;
  const char* replacement;
};

const std::vector<Mask>& machine_masks() {
  static const std::vector<Mask> masks = [] {
    const std::string size = "[0-9.]+ [KMGT]?i?B";
    const std::vector<std::pair<std::string, const char*>> list = {
        {size + " +ETA [0-9.a-z]+", "# ETA #"},
        {"(loss|val|norm) [0-9.]+", "$1 #"},
        {"[0-9.]+[KMG]? tok/s", "# tok/s"},
        {"[0-9]+% of GEMM", "#% of GEMM"},
        {"(resident|measured|planned peak|workspace) " + size, "$1 #"},
        {size + " (planned|of memory)", "# $1"},
        {"[0-9]+ threads?", "# threads"},
        {"\\b[0-9]+(\\.[0-9]+)?(h[0-9]+m|m[0-9]+s|ms|s)\\b", "#s"},
        {"[0-9.]+ (ms|s|GB/s|MB/s|GFLOP/s)\\b", "# $1"}};
    std::vector<Mask> compiled;
    for (const auto& [pattern, replacement] : list)
      compiled.push_back({std::regex(pattern), replacement});
    return compiled;
  }();
  return masks;
}

std::string masked(std::string line, bool numbers_vary) {
  static const std::regex number("-?[0-9]+(\\.[0-9]+)?(e[-+]?[0-9]+)?( [KMGT]?i?B\\b|[KMGT]\\b)?"),
      blanks("[ \t]+");
  for (const Mask& mask : machine_masks())
    line = std::regex_replace(line, mask.pattern, mask.replacement);
  if (numbers_vary) line = std::regex_replace(line, number, "#");
  line = std::regex_replace(line, blanks, " ");
  while (line.ends_with(' ')) line.pop_back();
  return line;
}

bool matches(const std::string& shown, const std::string& printed) {
  if (!shown.ends_with("...")) return shown == printed;
  std::string beginning = shown.substr(0, shown.size() - 3);
  while (beginning.ends_with(' ')) beginning.pop_back();
  return printed.starts_with(beginning);
}

void drop_blank_ends(std::vector<std::string>& lines) {
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  while (!lines.empty() && lines.front().empty()) lines.erase(lines.begin());
}

}  // namespace

std::vector<Part> read_page(const std::string& text) {
  std::vector<Part> parts;
  Part next;
  bool inside = false;
  int number = 0;
  for (const std::string& line : lines_of(text)) {
    ++number;
    if (inside && line != kFence) {
      next.lines.push_back(line);
    } else if (inside) {
      inside = false;
      if (classify(next)) parts.push_back(next);
      next = {};
    } else if (line.starts_with(kFence)) {
      inside = true;
      next.line = number;
      next.language = line.substr(kFence.size());
    } else if (line.starts_with(kMark)) {
      if (!line.ends_with(kMarkEnd)) fail(number, "a mark must end on its line");
      std::string mark = line.substr(kMark.size(), line.size() - kMark.size() - kMarkEnd.size());
      if (take(mark, "run ")) {
        Part hidden;
        hidden.kind = Part::Kind::hidden;
        hidden.line = number;
        hidden.command = mark;
        parts.push_back(hidden);
      } else {
        read_mark(mark, number, next);
      }
    } else if (!line.empty() && is_marked(next)) {
      fail(number, "a mark must stand right before its block");
    }
  }
  if (inside || is_marked(next)) fail(number, "the page ends in a block, or after a mark");
  return parts;
}

std::vector<Shown> commands_of(const Part& part) {
  std::vector<Shown> list;
  int number = part.line;
  if (!part.command.empty()) list.push_back({number, part.command, {}});
  bool continued = false;
  for (const std::string& line : part.lines) {
    ++number;
    const bool prompts = part.kind == Part::Kind::console && line.starts_with(kPrompt);
    if (continued) {
      list.back().command += "\n" + line;
    } else if (prompts) {
      list.push_back({number, line.substr(kPrompt.size()), {}});
    } else if (part.kind == Part::Kind::script) {
      if (!line.empty() && !line.starts_with("#")) list.push_back({number, line, {}});
    } else {
      if (list.empty()) fail(number, "output before any command");
      list.back().output.push_back(line);
      continue;
    }
    continued = line.ends_with("\\");
  }
  for (const std::string& substitution : part.substitutions) {
    static const std::regex form("s/(.*)/(.*)/");
    std::smatch match;
    if (!std::regex_match(substitution, match, form))
      fail(part.line, "write it as s/pattern/replacement/: " + substitution);
    bool changed = false;
    for (Shown& shown : list) {
      const std::string after =
          std::regex_replace(shown.command, std::regex(match[1].str()), match[2].str());
      changed |= after != shown.command;
      shown.command = after;
    }
    if (!changed) fail(part.line, "changes nothing: " + substitution);
  }
  return list;
}

std::string difference(const std::vector<std::string>& shown, const std::string& printed,
                       bool numbers_vary) {
  std::vector<std::string> wanted, given = lines_of(printed);
  for (const std::string& line : shown) wanted.push_back(masked(line, numbers_vary));
  for (std::string& line : given) line = masked(line, numbers_vary);
  drop_blank_ends(wanted);
  drop_blank_ends(given);
  // reach[i]: whether the first i of the wanted lines can be those that were given so far.
  std::vector<bool> reach(wanted.size() + 1);
  size_t farthest = 0;
  const auto skip_gaps = [&](std::vector<bool>& at) {
    for (size_t i = 0; i < wanted.size(); ++i)
      if (at[i] && wanted[i] == "...") at[i + 1] = true;
    for (size_t i = 0; i <= wanted.size(); ++i)
      if (at[i]) farthest = std::max(farthest, i);
  };
  reach[0] = true;
  skip_gaps(reach);
  for (const std::string& line : given) {
    std::vector<bool> after(wanted.size() + 1);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!reach[i]) continue;
      if (wanted[i] == "...")
        after[i] = true;
      else if (matches(wanted[i], line))
        after[i + 1] = true;
    }
    // A gap at the very end takes all that follows.
    if (reach[wanted.size()] && !wanted.empty() && wanted.back() == "...")
      after[wanted.size()] = true;
    skip_gaps(after);
    reach = std::move(after);
  }
  if (reach[wanted.size()]) return "";
  return farthest < wanted.size()
             ? fmt::format("this line of the page is not printed in its place: {}",
                           wanted[farthest])
             : "more is printed than the page shows";
}

}  // namespace onefold::docs
