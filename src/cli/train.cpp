// onefold train: the whole story of a run, top to bottom.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/json_text.h"
#include "base/process.h"
#include "base/text.h"
#include "cli/cli.h"
#include "config/config.h"
#include "run/provenance.h"
#include "run/ranks.h"
#include "run/signals.h"
#include "run/supervisor.h"
#include "run/training.h"

namespace onefold::cli {
namespace {

constexpr const char* kAutomatic = "auto";  // --resume without a folder: from run.output

struct TrainArguments {
  std::string config, memory, trace, resume;
  std::vector<std::string> overrides;
  int ranks = 0, restarts = 0;
  bool overwrite = false, json = false, quiet = false, plan_only = false, allow_changes = false;
  bool restarted = false;  // by --restarts: from what the run has saved since, if anything
};

// Without run.memory the limit is the machine. Better now than by the system's out-of-memory
// killer.
void require_available(const RunPlan& plan, int here) {
  const int64_t needed = here * plan.rank.peak_bytes, available = memory_bytes("MemAvailable");
  if (available > 0 && needed > available)
    user_error(
        "this run needs {} of memory and the machine has {} left; set run.memory to {} to be told "
        "what would fit",
        format_bytes(needed), format_bytes(available), format_bytes(available / here));
}

std::string full_plan(const Config& config, const RunPlan& plan) {
  return fmt::format("configuration in force:\n{}\n\n{}", json_text(config.effective()),
                     plan_text(config, plan));
}

// A plan that was asked for is a result; before a run it is only a message.
int print_plan(const Config& config, const RunPlan& plan, bool json) {
  if (json)
    print_json(plan_json(config, plan));
  else
    fmt::print("{}", full_plan(config, plan));
  return kOk;
}

using Candidates = std::vector<CheckpointFolder::Entry>;

Candidates checkpoints_of(const std::string& run) {
  return CheckpointFolder(run + "/checkpoints").list();
}

// What --resume may mean: a checkpoint, a run's folder, or nothing yet (only where no folder was
// named: a run that was stopped before its first checkpoint begins again).
Candidates find_checkpoints(const TrainArguments& arguments, const Config& config) {
  const std::string& output = config.run.output;
  if (arguments.restarted && !output.empty()) {
    const Candidates found = checkpoints_of(output);
    if (!found.empty()) return found;
  }
  if (arguments.resume.empty()) return {};
  if (arguments.resume == kAutomatic) {
    if (output.empty())
      user_error("--resume: the configuration names no run.output to resume from");
    return checkpoints_of(output);
  }
  if (std::filesystem::exists(arguments.resume + "/" + kManifest)) return {{0, arguments.resume}};
  const Candidates found = checkpoints_of(arguments.resume);
  if (found.empty())
    user_error("--resume: {} is neither a checkpoint nor the folder of a run that has any",
               arguments.resume);
  return found;
}

// Differences in what is learned need a word from the user.
void require_same_training(const Candidates& candidates, const Config& config, const RunPlan& plan,
                           bool allow_changes) {
  std::vector<std::string> changes;
  for (const CheckpointFolder::Entry& candidate : candidates) {
    try {
      const Json run = Checkpoint(candidate.path).manifest().run;
      changes = changes_that_matter(run.value("configuration", Json()), config.effective());
      if (run.value("/data/fingerprint"_json_pointer, Json()) != plan.data.fingerprint)
        changes.push_back("data: the training sequences are others");
      break;
    } catch (const UserError&) {  // not whole: the next one is asked, and resuming says why
    }
  }
  if (changes.empty()) return;
  const std::string list = join(changes, "\n  ");
  if (!allow_changes)
    user_error(
        "the configuration differs from that of the checkpoint:\n  {}\nTo go on with these "
        "changes, pass --allow-changes",
        list);
  fmt::print(stderr, "going on with changes:\n  {}\n", list);
}

// Whatever way the two are spelled.
bool lies_in(const std::string& path, const std::string& folder) {
  namespace fs = std::filesystem;
  const fs::path inner = fs::weakly_canonical(fs::absolute(path)),
                 outer = fs::weakly_canonical(fs::absolute(folder) / "");
  const auto end = outer.has_filename() ? outer.end() : std::prev(outer.end());
  return std::mismatch(outer.begin(), end, inner.begin(), inner.end()).first == end;
}

std::optional<RunFolder> make_folder(const Config& config, const RunPlan& plan,
                                     const Candidates& candidates, bool overwrite) {
  if (config.run.output.empty()) return std::nullopt;
  const Tokenizer* tokenizer = plan.data.tokenizer ? &*plan.data.tokenizer : nullptr;
  const bool goes_on = !candidates.empty() && lies_in(candidates[0].path, config.run.output);
  return goes_on ? RunFolder::reopen(config.run.output, config, plan.model, tokenizer)
                 : RunFolder::create(config.run.output, config, plan.model, tokenizer, overwrite);
}

int run_train(TrainArguments arguments) {
  if (!arguments.memory.empty()) arguments.overrides.push_back("run.memory=" + arguments.memory);
  Ranks ranks(arguments.ranks, comm_options(arguments.config, arguments.overrides));
  const bool quiet = arguments.quiet || arguments.json || !ranks.leads();
  Config config;
  RunPlan plan;
  std::optional<RunFolder> folder;
  std::optional<Provenance> provenance;
  Candidates candidates;
  ranks.after_leader([&] {
    config = load_config(arguments.config, arguments.overrides, ranks.count());
    config.require_training();
    // Before the data is read, which can take long.
    candidates = find_checkpoints(arguments, config);
    if (!config.run.output.empty() && ranks.leads() && !arguments.plan_only && candidates.empty())
      RunFolder::require_free(config.run.output, arguments.overwrite);
    plan = plan_run(config, ranks);
    if (ranks.leads()) require_same_training(candidates, config, plan, arguments.allow_changes);
    if (arguments.plan_only) return;
    if (!quiet) fmt::print(stderr, "{}\n", full_plan(config, plan));
    require_available(plan, ranks.ranks_here());
    if (ranks.leads()) folder = make_folder(config, plan, candidates, arguments.overwrite);
    if (folder) provenance.emplace(*folder, config, plan);
  });
  if (arguments.plan_only) return ranks.leads() ? print_plan(config, plan, arguments.json) : kOk;

  bool interrupted = false;
  StopSignals signals;
  ranks.run([&](std::shared_ptr<Communicator> communicator) {
    const bool leads = !communicator || communicator->rank() == 0;
    Training training(config, plan, std::move(communicator), leads ? folder : std::nullopt,
                      {.quiet = quiet,
                       .trace = !arguments.trace.empty(),
                       .resume_from = candidates,
                       .signals = &signals});
    training.run();
    std::vector<RankTrace> trace;
    if (!arguments.trace.empty()) trace = training.collect_trace();
    if (!leads) return;
    if (provenance) provenance->finish(training.summary());
    if (!trace.empty()) write_trace(arguments.trace, trace);
    if (arguments.json)
      print_json(training.summary());
    else if (!quiet)
      fmt::print(stderr, "{}", training.report());
    interrupted = training.interrupted();
  });
  return interrupted ? kInterrupted : kOk;
}

// What only the user can mend is not tried again; and what has diverged would diverge again.
bool worth_restarting(int code) {
  return code != kOk && code != kInterrupted && code != kUserError && code != kUsage &&
         code != kDiverged;
}

int run_supervised(const TrainArguments& arguments) {
  return supervise(
      arguments.restarts,
      [&](int start) {
        TrainArguments now = arguments;
        now.restarted = start > 0;
        return guarded([&] { return run_train(now); });
      },
      worth_restarting);
}

}  // namespace

void add_train(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* train = app.add_subcommand("train", "Train a model as a configuration file says");
  train
      ->add_option("config", arguments->config,
                   "The configuration (JSON; every key: docs/config.md)")
      ->required();
  train
      ->add_option("--set", arguments->overrides,
                   "Override a key: --set run.steps=100 --set optimizer.params.lr=3e-4")
      ->allow_extra_args(false);
  train
      ->add_option("--ranks", arguments->ranks,
                   "Run this many ranks as threads of one process, cores divided among them")
      ->check(at_least(1));
  train->add_option("--memory", arguments->memory,
                    "The most memory that each rank may use, like 80GiB (run.memory)");
  train
      ->add_option("--resume", arguments->resume,
                   "Go on from the newest whole checkpoint of run.output, or of the folder named")
      ->expected(0, 1)
      ->type_name("[FOLDER]");
  train->add_flag("--allow-changes", arguments->allow_changes,
                  "Resume although the configuration would learn something else now");
  train
      ->add_option("--restarts", arguments->restarts,
                   "Start a failed run again, up to this many times, from its newest checkpoint")
      ->check(at_least(0));
  train->add_flag("--overwrite", arguments->overwrite, "Replace a trained model in run.output");
  auto* plan_only = train->add_flag("--plan-only", arguments->plan_only,
                                    "Print the plan (configuration, batch, memory) and stop");
  train
      ->add_option("--trace", arguments->trace,
                   "Write what every lane of every rank did when, for ui.perfetto.dev")
      ->excludes(plan_only);
  train->add_flag("--quiet", arguments->quiet, "No progress, no plan")->excludes(plan_only);
  train->add_flag("--json", arguments->json,
                  "A JSON summary (or plan) alone on standard output, and no progress");
  train->footer(
      "A minimal configuration:\n"
      "  {\"model\": \"gpt2-tiny\", \"train_batch_size\": 8, \"gradient_accumulation_steps\": 1,\n"
      "   \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}},\n"
      "   \"data\": {\"train\": \"book.txt\", \"sequence_length\": 64},\n"
      "   \"run\": {\"output\": \"runs/first\", \"steps\": 200}}\n\n"
      "Train with it, or look at the plan first:\n"
      "  onefold train config.json --plan-only\n"
      "  onefold train config.json --set run.output=runs/second --set optimizer.params.lr=3e-4\n\n"
      "On several ranks, with all training state held once between them (ZeRO):\n"
      "  onefold train config.json --ranks 4 --set zero_optimization.stage=3\n"
      "  mpirun -n 4 onefold train config.json --set zero_optimization.stage=3\n\n"
      "Ctrl-C finishes the step, saves a checkpoint and exits with 130; a second one ends at "
      "once.\n"
      "SIGUSR1 saves a checkpoint. A run that was stopped or killed goes on with:\n"
      "  onefold train config.json --resume");
  train->callback([arguments, train, &run] {
    if (train->count("--resume") > 0 && arguments->resume.empty()) arguments->resume = kAutomatic;
    run = [arguments] {
      return arguments->restarts > 0 ? run_supervised(*arguments) : run_train(*arguments);
    };
  });
}

}  // namespace onefold::cli
