#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/mapped_faults.h"
#include "base/say.h"
#include "base/text.h"
#include "cli/cli.h"
#include "config/key_hints.h"
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

void require_output(const OutputFlag& flag, const std::string& path,
                    const std::vector<std::string>& inputs, bool overwrite) {
  for (const std::string& input : inputs)
    if (is_plain_file(path) && is_same_file(path, input))
      user_error("{}: {} is the input {} itself; name another file", flag.name, path, input);
  if (is_plain_file(path) && !overwrite)
    user_error("{}: {} already exists; {}", flag.name, path, flag.advice);
  // A pipe is left alone: to open one waits for its reader.
  if (!path_exists(path) || is_plain_file(path) || is_folder(path)) {
    try {
      const OutputFile attempt(path);
    } catch (const UserError& error) {
      user_error("{}: {}", flag.name, error.what());
    }
  }
}

void print_json(const Json& json) { fmt::print("{}\n", json_text(json)); }

namespace {

bool json_wanted = false;  // by --json: an error is a JSON object on standard output too

// For scripts, which read one object whatever happens; the sentence on standard error is for people
// and logs.
int failed(ExitCode code, std::string_view mark, const std::string& message,
           const std::string& hint = "") {
  say("onefold: {}: {}\n{}", mark, message, hint);
  if (json_wanted) {
    print_json({{"error", {{"message", message}, {"code", static_cast<int>(code)}}}});
    (void)std::fflush(stdout);
  }
  return code;
}

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
  const size_t equals = word.find('=');
  const std::string name = word.substr(2, equals - 2), key = key_known_as(name);
  const bool takes_keys = std::find(names.begin(), names.end(), "set") != names.end();
  if (takes_keys && !key.empty() && did_you_mean(name, names).empty())
    return fmt::format("there is no option \"{}\": write --set {}={}", name, key,
                       equals == std::string::npos ? "..." : word.substr(equals + 1));
  return unknown_word("option", name, names);
}

// CLI11 reports missing arguments before unknown ones, which are often the cause.
std::string usage_problem(const CLI::App* command, const CLI::Error& error) {
  const std::vector<std::string> words = command->remaining();
  const bool misnamed = command->get_require_subcommand_min() > 0 && !words.empty() &&
                        !words[0].starts_with("-");  // its flags are unknown for that reason
  for (const std::string& word : misnamed ? std::vector<std::string>() : words)
    if (word.starts_with("--")) return unknown_option(command, word);
  if (command->get_require_subcommand_min() == 0) return error.what();
  std::vector<std::string> names;
  for (const CLI::App* known : command->get_subcommands({})) names.push_back(known->get_name());
  if (words.empty()) return fmt::format("a command is missing: {}", join(names, ", "));
  return unknown_word("command", words[0], names);
}

// The command line could not be read.
int misused(const CLI::App* app, const CLI::Error& error) {
  const CLI::App* command = reached(app);
  return failed(kUsage, "error", usage_problem(command, error),
                fmt::format("Try: {} --help\n", full_name(command)));
}

// --color, before the command and after it.
void add_color(CLI::App& command) {
  static const std::map<std::string, Colours> names = {
      {"auto", Colours::automatic}, {"always", Colours::always}, {"never", Colours::never}};
  command
      .add_option_function<std::string>(
          "--color", [](const std::string& name) { set_colours(names.at(name)); },
          "auto (on terminals, unless NO_COLOR is set), always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->type_name("WHEN");
  for (CLI::App* below : command.get_subcommands({})) add_color(*below);
}

// A script's variable that is not set gives an empty argument. To go on as if its flag were not
// there would be something else than what was asked for. (--resume alone has an empty value too.)
void refuse_empty_arguments(const CLI::App* command) {
  static const std::set<std::string> texts = {"text", "--prompt", "--stop", "--system", "--resume"};
  for (const CLI::Option* option : command->get_options()) {
    const std::string name = option->get_name();
    if (texts.contains(name) || name.ends_with("-prefix") || name.ends_with("-suffix")) continue;
    for (const std::string& value : option->results())
      if (value.empty()) user_error("{} is empty; give it a value, or leave it out", name);
  }
  for (const CLI::App* below : command->get_subcommands()) refuse_empty_arguments(below);
}

// What was printed must have arrived: a full disk is an error like any other.
void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout))
    user_error("cannot write to standard output: {}", std::strerror(errno));
}

// A file that is opened while standard error is closed would get its number, and messages would be
// written into it.
void open_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // Results that go nowhere are an error, so standard output is opened such that writing fails.
    const int opened = ::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
    if (opened >= 0 && opened != fd) ::close(opened);
  }
}

// A thread has as much stack as the limit was when the process began, and the matrix library needs
// more than the least that can be set.
void require_stack() {
  constexpr rlim_t kNeeded = rlim_t{1} << 20, kUsual = rlim_t{8} << 20;
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kNeeded) return;
  const rlim_t most = ::geteuid() == 0 ? kUsual : std::min(kUsual, limit.rlim_max);
  const rlimit more{most, std::max(most, limit.rlim_max)};
  pthread_attr_t threads;
  if (most < kNeeded || ::setrlimit(RLIMIT_STACK, &more) != 0 ||
      ::pthread_getattr_default_np(&threads) != 0 ||
      ::pthread_attr_setstacksize(&threads, most) != 0 ||
      ::pthread_setattr_default_np(&threads) != 0)
    user_error("the stack is limited to {}; {} are needed: ulimit -s {}",
               format_bytes(static_cast<int64_t>(limit.rlim_cur)),
               format_bytes(static_cast<int64_t>(kNeeded)), kUsual / 1024);
}

}  // namespace

void prepare_process() {
  open_standard_streams();
  require_stack();
  report_faults_of_maps();
  // A file that reaches the limit of sizes (ulimit -f) is a write that fails, and is named.
  std::signal(SIGXFSZ, SIG_IGN);
}

int guarded(const Run& run) {
  try {
    const int code = run();
    flush_output();
    return code;
  } catch (const DivergedError& error) {
    return failed(kDiverged, "diverged", error.what());
  } catch (const UserError& error) {
    return failed(kUserError, "error", error.what());
  } catch (const std::system_error& error) {  // the system refused a file, a thread or a write
    return failed(kUserError, "error", error.what());
  } catch (const std::bad_alloc&) {
    return failed(kUserError, "error", "out of memory; set run.memory to be told what would fit");
  } catch (const std::exception& error) {
    return failed(kInternalError, "internal error", error.what(),
                  "This is a bug in Onefold; please report it with the command line.\n");
  }
}

}  // namespace onefold::cli

int main(int argc, char** argv) {
  using namespace onefold::cli;
  for (const std::string_view word : std::span(argv, static_cast<size_t>(argc)))
    json_wanted |= word == "--json";
  if (const int code = guarded([] {
        prepare_process();
        return kOk;
      }))
    return code;
  CLI::App app{"Onefold trains transformer language models.\n", "onefold"};
  app.footer(
      "Examples:\n"
      "  onefold init gpt2 --data book.txt               write a configuration to begin with\n"
      "  onefold train config.json                       train as config.json says\n"
      "  onefold train config.json --set run.steps=100   the same, with a key overridden\n"
      "  onefold plan config.json --ranks 8              what each of 8 ranks would hold and send\n"
      "  onefold generate runs/demo --prompt 'In the beginning'\n"
      "  onefold eval runs/demo --data held_out.txt      loss, perplexity, bits per byte\n"
      "  onefold tokenize train text.txt --vocab-size 4096 --output tokenizer.json\n"
      "  onefold export runs/demo models/demo            for Hugging Face transformers\n"
      "  onefold info                                    what this machine is and what it "
      "measures\n"
      "\nExit codes: 0 done, 1 bad input, 2 bad command line, 3 diverged, 4 different (diff), 5 "
      "findings (data check), 70 a bug in Onefold, 130 interrupted.\n"
      "Every command explains itself with --help.");
  app.set_version_flag("--version", std::string("onefold ") + ONEFOLD_VERSION);
  app.require_subcommand(1);
  Run run;
  add_init(app, run);
  add_train(app, run);
  add_plan(app, run);
  add_generate(app, run);
  add_eval(app, run);
  add_tokenize(app, run);
  add_data(app, run);
  add_bench(app, run);
  add_export(app, run);
  add_inspect(app, run);
  add_diff(app, run);
  add_info(app, run);
  add_completions(app, run);
  add_man(app, run);
  add_color(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return misused(&app, error);
    app.exit(error);
    return guarded([] {  // --help and --version are results too
      if (!std::cout.flush()) onefold::user_error("cannot write to standard output");
      return kOk;
    });
  }
  return guarded([&] {
    refuse_empty_arguments(&app);
    return run();
  });
}
