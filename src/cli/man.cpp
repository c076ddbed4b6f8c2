// onefold man: the manual page, from the description of the command line.
#include <fmt/format.h>

#include "base/text.h"
#include "cli/cli.h"
#include "cli/description.h"

namespace onefold::cli {
namespace {

// Text that roff is not to interpret.
std::string roff(std::string_view text) {
  std::string result;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\')
      result += "\\e";
    else if (c == '-')
      result += "\\-";
    else
      result += c;
    line_begins = c == '\n';
  }
  return result;
}

// As it is written, in lines.
std::string verbatim(const std::string& text) {
  return text.empty() ? "" : fmt::format(".PP\n.nf\n{}\n.fi\n", roff(text));
}

std::string option_text(const OptionDescription& option) {
  std::string head = option.brief.empty() ? "" : fmt::format("\\fB\\-{}\\fR, ", roff(option.brief));
  head += option.positional ? fmt::format("\\fI{}\\fR", roff(option.name))
                            : fmt::format("\\fB\\-\\-{}\\fR", roff(option.name));
  std::string value = option.choices.empty() ? option.value : join(option.choices, "|");
  if (!option.positional && !value.empty()) head += fmt::format(" \\fI{}\\fR", roff(value));
  return fmt::format(".TP\n{}\n{}\n", head, roff(option.text));
}

std::string command_text(const CommandDescription& command) {
  std::string arguments;
  for (const OptionDescription& option : command.options)
    if (option.positional) arguments += fmt::format(" \\fI{}\\fR", roff(option.name));
  std::string text =
      fmt::format(".SS {}{}\n{}\n", roff(command.name), arguments, roff(command.text));
  for (const OptionDescription& option : command.options)
    if (option.name != "help") text += option_text(option);
  return text + verbatim(command.footer);
}

constexpr const char* kEnvironment = R"(.SH ENVIRONMENT
.TP
.B NO_COLOR
if it is set and not empty, no colours are written, unless \fB\-\-color always\fR is given.
.TP
.B OMP_NUM_THREADS
the number of threads of each rank where none is given by \fIrun.threads\fR or \fB\-\-threads\fR.
.SH SEE ALSO
docs/cli.md and docs/config.md of the sources describe every flag, output and configuration key.
)";

std::string manual(const std::vector<CommandDescription>& commands) {
  const CommandDescription& program = commands.front();
  std::string text = fmt::format(
      ".TH ONEFOLD 1 \"\" \"Onefold {}\" \"User Commands\"\n.SH NAME\nonefold \\- train "
      "transformer "
      "language models\n.SH SYNOPSIS\n.B onefold\n\\fIcommand\\fR [\\fIoptions\\fR]\n"
      ".SH DESCRIPTION\n{}\n",
      ONEFOLD_VERSION, roff(program.text));
  for (const OptionDescription& option : program.options) text += option_text(option);
  text += verbatim(program.footer) + ".SH COMMANDS\n";
  for (const CommandDescription& command : commands)
    if (command.commands.empty()) text += command_text(command);
  return text + kEnvironment;
}

}  // namespace

void add_man(CLI::App& app, Run& run) {
  CLI::App* man = app.add_subcommand("man", "Print the manual page");
  man->footer("Example:\n  onefold man | man -l -");
  man->callback([&app, &run] {
    run = [&app] {
      fmt::print("{}", manual(describe_commands(app)));
      return kOk;
    };
  });
}

}  // namespace onefold::cli
