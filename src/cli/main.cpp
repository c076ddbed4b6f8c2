#include <fmt/format.h>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <system_error>

#include "base/error.h"
#include "base/json_text.h"
#include "base/text.h"
#include "cli/cli.h"
#include "engine/engine.h"

namespace onefold::cli {

CLI::Validator at_least(int64_t minimum) {
  const auto check = [minimum](std::string& text) -> std::string {
    int64_t value = 0;
    const char* last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, value);
    if (error == std::errc() && end == last && value >= minimum) return "";
    return fmt::format("must be an integer of at least {}, not \"{}\"", minimum, text);
  };
  return {check, ""};
}

void print_json(const Json& json) { fmt::print("{}\n", json_text(json)); }

namespace {

// The subcommand that the command line has reached: "tokenize", then "encode".
const CLI::App* reached(const CLI::App* app) {
  const auto parsed = app->get_subcommands();
  return parsed.empty() ? app : reached(parsed.front());
}

std::string full_name(const CLI::App* app) {
  return app->get_parent() ? full_name(app->get_parent()) + " " + app->get_name() : app->get_name();
}

std::string unknown_word(std::string_view kind, std::string_view word,
                         std::span<const std::string> known) {
  const std::string hint = did_you_mean(word, known);
  return fmt::format("there is no {} \"{}\"{}", kind, word,
                     hint.empty() ? "; there are: " + join(known, ", ") : hint);
}

std::string unknown_option(const CLI::App* command, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::Option* known : command->get_options())
    for (const std::string& name : known->get_lnames()) names.push_back(name);
  return unknown_word("option", word.substr(2, word.find('=') - 2), names);
}

// The library says what is missing before what it did not understand, which is often the cause.
std::string usage_problem(const CLI::App* command, const CLI::Error& error) {
  const std::vector<std::string> words = command->remaining();
  for (const std::string& word : words)
    if (word.starts_with("--")) return unknown_option(command, word);
  if (command->get_require_subcommand_min() == 0) return error.what();
  std::vector<std::string> names;
  for (const CLI::App* known : command->get_subcommands({})) names.push_back(known->get_name());
  if (words.empty()) return fmt::format("a command is missing: {}", join(names, ", "));
  return unknown_word("command", words[0], names);
}

std::string usage_message(const CLI::App* app, const CLI::Error& error) {
  const CLI::App* command = reached(app);
  return fmt::format("onefold: error: {}\nTry: {} --help\n", usage_problem(command, error),
                     full_name(command));
}

// What was printed must have arrived: a full disk is an error like any other.
void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout))
    user_error("cannot write to standard output: {}", std::strerror(errno));
}

}  // namespace

int guarded(const Run& run) {
  try {
    const int code = run();
    flush_output();
    return code;
  } catch (const DivergedError& error) {
    fmt::print(stderr, "onefold: diverged: {}\n", error.what());
    return kDiverged;
  } catch (const UserError& error) {
    fmt::print(stderr, "onefold: error: {}\n", error.what());
    return kUserError;
  } catch (const std::system_error& error) {  // the system refused a file, a thread or a write
    fmt::print(stderr, "onefold: error: {}\n", error.what());
    return kUserError;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "onefold: error: out of memory; set run.memory to be told what would fit\n");
    return kUserError;
  } catch (const std::exception& error) {
    fmt::print(stderr,
               "onefold: internal error: {}\nThis is a bug in Onefold; please report it with the "
               "command line.\n",
               error.what());
    return kInternalError;
  }
}

}  // namespace onefold::cli

int main(int argc, char** argv) {
  using namespace onefold::cli;
  CLI::App app{"Onefold trains transformer language models.\n", "onefold"};
  app.footer(
      "Examples:\n"
      "  onefold train config.json                       train as config.json says\n"
      "  onefold train config.json --set run.steps=100   the same, with a key overridden\n"
      "  onefold plan config.json --ranks 8              what each of 8 ranks would hold and send\n"
      "  onefold generate runs/demo --prompt 'In the beginning'\n"
      "  onefold tokenize train text.txt --vocab-size 4096 --output tokenizer.json\n"
      "  onefold export runs/demo models/demo            for Hugging Face transformers\n"
      "  onefold info                                    what this machine is and what it "
      "measures\n"
      "\nExit codes: 0 done, 1 bad input, 2 bad command line, 3 diverged, 4 different (diff), 5 "
      "findings (data check), 70 a bug in Onefold, 130 interrupted.\n"
      "Every command explains itself with --help.");
  app.set_version_flag("--version", std::string("onefold ") + ONEFOLD_VERSION);
  app.require_subcommand(1);
  app.failure_message(usage_message);
  Run run;
  add_train(app, run);
  add_plan(app, run);
  add_generate(app, run);
  add_tokenize(app, run);
  add_data(app, run);
  add_bench(app, run);
  add_export(app, run);
  add_inspect(app, run);
  add_diff(app, run);
  add_info(app, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? kOk : kUsage;
  }
  return guarded(run);
}
