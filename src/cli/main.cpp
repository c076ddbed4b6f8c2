#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <fstream>

#include "base/error.h"
#include "cli/cli.h"
#include "engine/engine.h"

namespace onefold::cli {

void print_json(const Json& json) {
  fmt::print("{}\n", json.dump(2));
  std::fflush(stdout);
}

int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

int64_t current_rss_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

namespace {

int guarded(const Run& run) {
  try {
    return run();
  } catch (const DivergedError& error) {
    fmt::print(stderr, "onefold: diverged: {}\n", error.what());
    return kDiverged;
  } catch (const UserError& error) {
    fmt::print(stderr, "onefold: error: {}\n", error.what());
    return kUserError;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "onefold: error: out of memory; set run.memory to be told what would fit\n");
    return kUserError;
  } catch (const std::exception& error) {
    fmt::print(stderr, "onefold: internal error: {}\nThis is a bug in Onefold; please report it with the command line.\n",
               error.what());
    return kInternalError;
  }
}

}  // namespace
}  // namespace onefold::cli

int main(int argc, char** argv) {
  using namespace onefold::cli;
  CLI::App app{"Onefold trains transformer language models larger than the memory they run in.\n"};
  app.footer(
      "Examples:\n"
      "  onefold train config.json                       train as config.json says\n"
      "  onefold train config.json --set run.steps=100   the same, with a key overridden\n"
      "  onefold generate runs/demo --prompt 'In the beginning'\n"
      "  onefold tokenize train text.txt --vocab-size 4096 --output tokenizer.json\n"
      "  onefold info                                    what this machine is and what it measures\n"
      "\nExit codes: 0 done, 1 bad input, 2 bad command line, 3 diverged, 70 a bug in Onefold, 130 interrupted.\n"
      "Every command explains itself with --help.");
  app.set_version_flag("--version", std::string("onefold ") + ONEFOLD_VERSION);
  app.require_subcommand(1);
  Run run;
  add_train(app, run);
  add_generate(app, run);
  add_tokenize(app, run);
  add_bench(app, run);
  add_info(app, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? kOk : kUsage;
  }
  return guarded(run);
}
