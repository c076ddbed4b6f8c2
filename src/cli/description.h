// The command line as data, read off its description: what completions and the manual page are made
// of.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

namespace onefold::cli {

struct OptionDescription {
  std::string name;   // "set" of --set; of an argument without dashes, "config"
  std::string brief;  // "v" of -v; "": none
  std::string text;
  std::string value;                 // "SIZE"; "": it takes none
  std::vector<std::string> choices;  // the values there are; empty: any
  bool positional = false;
};

struct CommandDescription {
  std::string path;  // "/tokenize/encode"; "": the program itself
  std::string name;  // "onefold tokenize encode"
  std::string text, footer;
  std::vector<OptionDescription> options;
  std::vector<std::pair<std::string, std::string>> commands;  // below it: name, text
};

// The command and all below it, each before those that it holds.
std::vector<CommandDescription> describe_commands(const CLI::App& app);

}  // namespace onefold::cli
