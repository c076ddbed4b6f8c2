// onefold completions: what a shell needs to complete command lines, from their own description.
#include <fmt/format.h>

#include <memory>

#include "base/text.h"
#include "cli/cli.h"
#include "cli/description.h"

namespace onefold::cli {
namespace {

using Commands = std::vector<CommandDescription>;

// In single quotes; the escape for one inside them differs.
std::string quoted(const std::string& text, std::string_view quote) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string(quote) : std::string(1, c);
  return result + "'";
}

// All paths of commands: "/train|/plan|/tokenize|/tokenize/train".
std::string paths_pattern(const Commands& commands) {
  std::vector<std::string> paths;
  for (const CommandDescription& command : commands)
    if (!command.path.empty()) paths.push_back(command.path);
  return join(paths, "|");
}

// The lines of a case statement that offer the values of options which have few:
// "/plan:--transport) ...", by `offer`.
std::string choices_cases(const Commands& commands, std::string_view offer) {
  std::string text;
  for (const CommandDescription& command : commands)
    for (const OptionDescription& option : command.options)
      if (!option.choices.empty() && !option.positional)
        text += fmt::format("    {}:--{}) {} ;;\n", command.path, option.name,
                            fmt::format(fmt::runtime(offer), join(option.choices, " ")));
  return text;
}

// Subcommands, or else the choices of an argument (completions bash|zsh|fish).
std::vector<std::pair<std::string, std::string>> words_of(const CommandDescription& command) {
  auto words = command.commands;
  for (const OptionDescription& option : command.options)
    if (option.positional)
      for (const std::string& choice : option.choices) words.emplace_back(choice, "");
  return words;
}

std::string bash(const Commands& commands) {
  std::string words;
  for (const CommandDescription& command : commands) {
    std::vector<std::string> list;
    for (const auto& [name, text] : words_of(command)) list.push_back(name);
    for (const OptionDescription& option : command.options) {
      if (!option.positional && !option.name.empty()) list.push_back("--" + option.name);
      if (!option.brief.empty()) list.push_back("-" + option.brief);
    }
    words += fmt::format("    '{}') words='{}'; bare={} ;;\n", command.path, join(list, " "),
                         words_of(command).empty() ? 0 : 1);
  }
  return fmt::format(
      R"(# bash completion for onefold; written by: onefold completions bash
_onefold() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} at= words= bare=0 i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$at/${{COMP_WORDS[i]}}" in
    {}) at=$at/${{COMP_WORDS[i]}} ;;
    esac
  done
  COMPREPLY=()
  case "$at:$prev" in
{}  esac
  case "$at" in
{}  esac
  # Without an answer here, the shell completes the names of files.
  if [[ $cur == -* || $bare == 1 ]]; then COMPREPLY=($(compgen -W "$words" -- "$cur")); fi
}}
complete -o default -F _onefold onefold
)",
      paths_pattern(commands),
      choices_cases(commands, R"(COMPREPLY=($(compgen -W '{}' -- "$cur")); return)"), words);
}

std::string zsh(const Commands& commands) {
  const auto entry = [](const std::string& name, const std::string& text) {
    std::string escaped;
    for (const char c : text) escaped += c == ':' ? "\\:" : std::string(1, c);
    return " " + quoted(text.empty() ? name : name + ":" + escaped, "'\\''");
  };
  std::string lists;
  for (const CommandDescription& command : commands) {
    std::string words, options;
    for (const auto& [name, text] : words_of(command)) words += entry(name, text);
    for (const OptionDescription& option : command.options) {
      if (!option.positional && !option.name.empty())
        options += entry("--" + option.name, option.text);
      if (!option.brief.empty()) options += entry("-" + option.brief, option.text);
    }
    lists += fmt::format("    '{}') words_here=({}) options_here=({}) ;;\n", command.path, words,
                         options);
  }
  return fmt::format(
      R"(#compdef onefold
# zsh completion for onefold; written by: onefold completions zsh
_onefold() {{
  local at= i
  local -a words_here options_here
  for ((i = 2; i < CURRENT; i++)); do
    case "$at/${{words[i]}}" in
    {}) at=$at/${{words[i]}} ;;
    esac
  done
  case "$at:${{words[CURRENT - 1]}}" in
{}  esac
  case "$at" in
{}  esac
  if [[ $PREFIX == -* ]]; then
    _describe -o option options_here
  elif (( ${{#words_here}} )); then
    _describe command words_here
  else
    _files
  fi
}}
_onefold "$@"
)",
      paths_pattern(commands), choices_cases(commands, "compadd {}; return"), lists);
}

std::string fish(const Commands& commands) {
  std::string text = fmt::format(
      R"(# fish completion for onefold; written by: onefold completions fish
function __onefold_at
  set -l at ''
  for word in (commandline -opc)[2..]
    switch "$at/$word"
      case {}
        set at "$at/$word"
    end
  end
  test "$at" = "$argv[1]"
end
complete -c onefold -f
)",
      join(split(paths_pattern(commands), '|'), " "));
  const auto line = [&](const CommandDescription& command, const std::string& rest) {
    text += fmt::format("complete -c onefold -n '__onefold_at \"{}\"' {}\n", command.path, rest);
  };
  for (const CommandDescription& command : commands) {
    const auto words = words_of(command);
    if (words.empty()) line(command, "-F");  // names of files
    for (const auto& [name, description] : words)
      line(command, fmt::format("-a {} -d {}", name, quoted(description, "\\'")));
    for (const OptionDescription& option : command.options) {
      if (option.positional) continue;
      std::string rest = option.name.empty() ? "" : "-l " + option.name;
      if (!option.brief.empty()) rest += " -s " + option.brief;
      if (!option.choices.empty())
        rest += fmt::format(" -x -a '{}'", join(option.choices, " "));
      else if (!option.value.empty())
        rest += " -r -F";
      line(command, fmt::format("{} -d {}", rest, quoted(option.text, "\\'")));
    }
  }
  return text;
}

}  // namespace

void add_completions(CLI::App& app, Run& run) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completions =
      app.add_subcommand("completions", "Print a script that completes command lines in a shell");
  completions->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completions->footer(
      "Examples (an installation has the files in place already):\n"
      "  source <(onefold completions bash)\n"
      "  onefold completions zsh > ~/.zfunc/_onefold\n"
      "  onefold completions fish > ~/.config/fish/completions/onefold.fish");
  completions->callback([shell, &app, &run] {
    run = [shell, &app] {
      const Commands commands = describe_commands(app);
      fmt::print("{}", *shell == "bash"  ? bash(commands)
                       : *shell == "zsh" ? zsh(commands)
                                         : fish(commands));
      return kOk;
    };
  });
}

}  // namespace onefold::cli
