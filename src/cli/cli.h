// The command line's shared pieces: one function for each subcommand, exit codes, and how --json
// results are printed.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "base/json.h"
#include "engine/engine.h"

namespace onefold::cli {

// Documented in docs/cli.md.
enum ExitCode : int {
  kOk = 0,
  kUserError = 1,                        // bad input: configuration, file, flag
  kUsage = 2,                            // the command line itself could not be parsed
  kDiverged = DivergedError::kExitCode,  // a loss or gradient was not finite
  kDifferent = 4,                        // diff: the two are not equal
  kFindings = 5,       // data check: repeated documents, or contaminated validation data
  kInterrupted = 130,  // stopped by Ctrl-C or SIGTERM, after finishing the step and saving
  kInternalError = 70,
};

// Each adds its subcommand; what it must do when chosen is left in `run`, which returns an exit
// code.
using Run = std::function<int()>;
void add_init(CLI::App& app, Run& run);
void add_train(CLI::App& app, Run& run);
void add_plan(CLI::App& app, Run& run);
void add_generate(CLI::App& app, Run& run);
void add_eval(CLI::App& app, Run& run);
void add_tokenize(CLI::App& app, Run& run);
void add_data(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run);
void add_bench_comm(CLI::App& bench, Run& run);
void add_bench_adamw(CLI::App& bench, Run& run);
void add_bench_checkpoint(CLI::App& bench, Run& run);
void add_bench_disk(CLI::App& bench, Run& run);
void add_bench_kernels(CLI::App& bench, Run& run);
void add_bench_wire(CLI::App& bench, Run& run);
void add_export(CLI::App& app, Run& run);
void add_inspect(CLI::App& app, Run& run);
void add_diff(CLI::App& app, Run& run);
void add_info(CLI::App& app, Run& run);
void add_completions(CLI::App& app, Run& run);
void add_man(CLI::App& app, Run& run);

// What must hold before anything else is done: open standard streams, enough stack, a word about
// mapped files that are cut short.
void prepare_process();

// Runs it, and makes exit codes and messages of what it throws.
int guarded(const Run& run);

// Checks of flags: an integer of at least `minimum`.
CLI::Validator at_least(int64_t minimum);

// Before the work whose result `path` will hold. UserError that names the flag if it could not be
// written there, if it is one of the inputs, or if a file is there already, unless `overwrite`.
struct OutputFlag {
  const char* name;
  const char* advice;  // what to do about a file that is there
};
void require_output(const OutputFlag& flag, const std::string& path,
                    const std::vector<std::string>& inputs, bool overwrite);

// Processor time of this thread, for benchmarks: other work on the machine does not count.
double thread_seconds();

// One JSON document on standard output.
void print_json(const Json& json);

}  // namespace onefold::cli
