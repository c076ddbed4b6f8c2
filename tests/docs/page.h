// A page of the documentation as a list of things to run and to compare. What is in a page:
//
//   ```sh          commands, one on each line: each must succeed
//   ```console     "$ command", then what it prints; the same without a language
//   ```json        JSON; a configuration (it has a "model") must be one that `onefold plan` takes
//   ```text, cpp, cmake, bash    neither commands nor output: not looked at
//
// and invisible marks before a block, each a comment of one line, "<!-- test: ... -->":
//
//   skip REASON          the block is not run; the test lists all of these
//   file NAME            the block is saved as this file, for the commands that follow
//   run COMMAND          run this here, unseen; not a mark of the block
//   output of COMMAND    the block is what this prints
//   with s/PATTERN/REPLACEMENT/    the commands are changed so before they are run, to take less
//   time numbers vary         numbers in the output are not compared exits CODE           the
//   command ends with this code, not with 0
//
// Output is compared line by line. "..." on a line of its own stands for any lines, at the end of a
// line for the rest of it; runs of blanks count as one. What depends on the machine is masked:
// times, rates, losses and norms, numbers of threads, and the sizes that follow from these.
#pragma once

#include <string>
#include <vector>

namespace onefold::docs {

struct Part {
  enum class Kind { script, console, file, hidden, skipped };
  Kind kind = Kind::script;
  int line = 0;  // in the page, from 1
  std::string language;
  std::vector<std::string> lines;  // of the block
  std::string command;             // hidden: what to run; console: what the block is the output of
  std::string file;                // name to save it as
  std::string reason;              // skipped: why
  std::vector<std::string> substitutions;
  bool numbers_vary = false;
  int exit_code = 0;
};

// Throws std::runtime_error that names the line if the page does not follow the rules above.
std::vector<Part> read_page(const std::string& text);

// A command and the output that the page shows after it.
struct Shown {
  int line = 0;
  std::string command;
  std::vector<std::string> output;
};
// Of a script or console part, with its substitutions applied.
std::vector<Shown> commands_of(const Part& part);

// What is wrong with the output, in words; "" if it is as shown.
std::string difference(const std::vector<std::string>& shown, const std::string& printed,
                       bool numbers_vary);

}  // namespace onefold::docs
