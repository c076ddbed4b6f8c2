// onefold train: a run from its configuration to its results, in order.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/file.h"
#include "base/json_text.h"
#include "base/say.h"
#include "base/text.h"
#include "cli/cli.h"
#include "config/config.h"
#include "engine/launch.h"
#include "plan/fit.h"
#include "run/provenance.h"
#include "run/run_lock.h"
#include "run/signals.h"
#include "run/supervisor.h"
#include "run/training.h"

namespace onefold::cli {
namespace {

constexpr const char* kAutomatic = "auto";  // --resume without a folder: from run.output

// A checkpoint that was there at some time. One that is saved later has another time, whatever
// its name.
struct SavedThen {
  std::string path;
  std::filesystem::file_time_type time;
  bool operator==(const SavedThen&) const = default;
};

struct TrainArguments {
  std::string config, device, memory, trace, resume, hardware;
  std::vector<std::string> overrides;
  int ranks = 0, restarts = 0;
  bool overwrite = false, json = false, quiet = false, plan_only = false, allow_changes = false;
  bool verbose = false;
  bool restarted = false;  // by --restarts: from what the run has saved since, if anything
  std::vector<SavedThen> saved_before = {};  // with --restarts: by earlier runs
};

std::string configuration_text(const Config& config) {
  return fmt::format("configuration in force:\n{}\n\n", json_text(config.effective()));
}

// A plan that was asked for is a result; before a run it is only a message.
int print_plan(const Config& config, const RunPlan& plan, bool json) {
  if (json)
    print_json(plan_json(config, plan));
  else
    fmt::print("{}{}", configuration_text(config),
               with_headings(plan_text(config, plan), Stream::out));
  return kOk;
}

using Candidates = std::vector<CheckpointFolder::Entry>;

Candidates checkpoints_of(const std::string& run) {
  return CheckpointFolder(run + "/checkpoints").list();
}

SavedThen saved_then(const CheckpointFolder::Entry& checkpoint) {
  std::error_code unknown;
  return {checkpoint.path,
          std::filesystem::last_write_time(checkpoint.path + "/" + kManifest, unknown)};
}

// Of the checkpoints in a run's folder, those that the run has saved since it was started first:
// the folder may hold an earlier run's, which this one was about to replace (--overwrite) or to
// leave for an earlier checkpoint (--resume), when it crashed.
Candidates saved_since(const std::vector<SavedThen>& before, const std::string& run) {
  Candidates found = checkpoints_of(run);
  std::erase_if(found, [&](const CheckpointFolder::Entry& entry) {
    return std::find(before.begin(), before.end(), saved_then(entry)) != before.end();
  });
  return found;
}

// What --resume may mean: a checkpoint, a run's folder, or nothing yet (only where no folder was
// named: a run that was stopped before its first checkpoint begins again).
Candidates find_checkpoints(const TrainArguments& arguments, const Config& config) {
  const std::string& output = config.run.output;
  if (arguments.restarted && !output.empty()) {
    const Candidates found = saved_since(arguments.saved_before, output);
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

// Differences in what is learned need the user's consent.
void require_same_training(const Candidates& candidates, const Config& config, const RunPlan& plan,
                           bool allow_changes) {
  std::vector<std::string> changes;
  for (const CheckpointFolder::Entry& candidate : candidates) {
    try {
      const Json run = Checkpoint(candidate.path).manifest().run;
      changes = changes_that_matter(run.value("configuration", Json()), config.effective());
      if (!same_data(run, plan.data.hash, plan.data.fingerprint))
        changes.push_back("data: the training sequences are others");
      if (!same_base(run, plan.lora))
        changes.push_back("model: the weights are not those that the adapters were trained on");
      break;
    } catch (const UserError&) {  // not whole: the next one is tried, and resuming reports why
    }
  }
  if (changes.empty()) return;
  const std::string list = join(changes, "\n  ");
  if (!allow_changes)
    user_error(
        "the configuration differs from that of the checkpoint:\n  {}\nTo go on with these "
        "changes, pass --allow-changes",
        list);
  say("going on with changes:\n  {}\n", list);
}

// Whatever way the two are spelled.
bool lies_in(const std::string& path, const std::string& folder) {
  namespace fs = std::filesystem;
  const fs::path inner = fs::weakly_canonical(fs::absolute(path)),
                 outer = fs::weakly_canonical(fs::absolute(folder) / "");
  const auto end = outer.has_filename() ? outer.end() : std::prev(outer.end());
  return std::mismatch(outer.begin(), end, inner.begin(), inner.end()).first == end;
}

// Whether the run that is resumed is the one in run.output, and not another whose checkpoint a new
// one begins with. Checkpoints may be links to other disks.
bool goes_on_in(const std::string& output, const Candidates& candidates) {
  if (output.empty() || candidates.empty()) return false;
  const std::string& path = candidates[0].path;
  for (const CheckpointFolder::Entry& own : checkpoints_of(output))
    if (is_same_file(own.path, path)) return true;
  return lies_in(path, output + "/checkpoints");
}

RunFolder make_folder(const Config& config, const RunPlan& plan, bool goes_on, bool overwrite) {
  const Tokenizer* tokenizer = plan.data.tokenizer ? &*plan.data.tokenizer : nullptr;
  return goes_on ? RunFolder::reopen(config.run.output, config, plan.model, tokenizer)
                 : RunFolder::create(config.run.output, config, plan.model, tokenizer, overwrite);
}

// A trace that could not be written would be told after the training.
void check_trace(const TrainArguments& arguments, const Config& config) {
  const std::filesystem::path trace = std::filesystem::absolute(arguments.trace);
  if (is_same_file(trace.parent_path().string(), config.run.output) &&
      RunFolder::is_own_file(trace.filename().string()))
    user_error("--trace: {} is a file that the run itself writes; name another", arguments.trace);
  std::vector<std::string> inputs = {arguments.config, config.data.tokenizer};
  for (const auto& paths : {config.data.train.paths, config.data.validation}) {
    const std::vector<std::string> files = expanded({.paths = paths}).paths;
    inputs.insert(inputs.end(), files.begin(), files.end());
  }
  require_output(
      {"--trace", "name another file (--overwrite would replace it, and a model in run.output)"},
      arguments.trace, inputs, arguments.overwrite);
}

// Ranks that share a host, where these are not all.
int host_ranks(const TrainArguments& arguments, const Ranks& ranks) {
  const int described =
      arguments.hardware.empty() ? 0 : hardware_named(arguments.hardware).host_ranks;
  if (described > 0) return described;
  return ranks.ranks_here() < ranks.count() ? ranks.ranks_here() : 0;
}

int run_train(TrainArguments arguments) {
  if (!arguments.device.empty()) arguments.overrides.push_back("run.device=" + arguments.device);
  if (!arguments.memory.empty()) arguments.overrides.push_back("run.memory=" + arguments.memory);
  Ranks ranks(arguments.ranks, comm_options(arguments.config, arguments.overrides));
  const bool quiet = arguments.quiet || arguments.json || !ranks.leads();
  Config config;
  RunPlan plan;
  std::optional<RunLock> lock;
  std::optional<Provenance> provenance;
  Candidates candidates;
  bool goes_on = false;
  ranks.after_leader([&] {
    const Json root = read_config(arguments.config, arguments.overrides);
    const Freedom freedom = asked_for(root);
    const OpenConfig open =
        open_config(root, arguments.config, ranks.count(), freedom, host_ranks(arguments, ranks));
    config = open.config;
    config.require_training();
    if (freedom != Freedom{}) {
      const FitContext context = run_context(config, ranks, arguments.hardware);
      config = settle_layout(open, root, context, run_limits(config, ranks, context));
    }
    const std::string& output = config.run.output;
    const bool writes = !output.empty() && ranks.leads() && !arguments.plan_only;
    // Before the data is read, which can take long. A folder that is no run's gets no lock's file
    // until it is found free.
    if (writes && RunFolder::begun(output)) lock.emplace(output);
    candidates = find_checkpoints(arguments, config);
    goes_on = goes_on_in(output, candidates);
    if (writes && !goes_on) RunFolder::require_free(output, arguments.overwrite);
    if (ranks.leads() && !arguments.trace.empty()) check_trace(arguments, config);
    plan = plan_run(config, ranks, arguments.hardware);
    if (!candidates.empty()) plan.resumes = candidates[0].path;
    if (ranks.leads()) require_same_training(candidates, config, plan, arguments.allow_changes);
    if (arguments.plan_only) return;
    if (!quiet)
      say("{}{}\n", arguments.verbose ? configuration_text(config) : "",
          with_headings(plan_text(config, plan), Stream::err));
    if (config.run.device == "cpu")
      require_available(plan.rank.peak_bytes + plan.rank.host_bytes, ranks.ranks_here(),
                        "run.memory");
    else
      require_host_memory(plan.rank.host_bytes * ranks.ranks_here());
    if (plan.rank.disk_bytes > 0)
      require_disk(plan.options.offload.folder, plan.rank.disk_bytes * ranks.ranks_here());
    if (!writes) return;
    make_folders(output);
    if (!lock) lock.emplace(output);
    provenance.emplace(config, plan);
  });
  ranks.require_alike(common_ground(config, plan));
  if (arguments.plan_only) return ranks.leads() ? print_plan(config, plan, arguments.json) : kOk;

  bool interrupted = false;
  StopSignals signals;
  ranks.run([&](std::shared_ptr<Communicator> communicator) {
    const bool leads = !communicator || communicator->rank() == 0;
    Training training(config, plan, std::move(communicator),
                      {.quiet = quiet,
                       .trace = !arguments.trace.empty(),
                       .resume_from = candidates,
                       .signals = &signals});
    if (leads && provenance) {
      const RunFolder folder = make_folder(config, plan, goes_on, arguments.overwrite);
      provenance->begin(folder);
      training.write_to(folder);
    }
    training.run();
    std::vector<RankTrace> trace;
    if (!arguments.trace.empty()) trace = training.collect_trace();
    if (!leads) return;
    if (provenance) provenance->finish(training.summary());
    if (!trace.empty()) write_trace(arguments.trace, trace);
    if (arguments.json)
      print_json(training.summary());
    else if (!quiet)
      say("{}", training.report());
    interrupted = training.interrupted();
  });
  return interrupted ? kInterrupted : kOk;
}

// Errors that only the user can correct are not retried, nor is a run that diverged: it would
// diverge again.
bool worth_restarting(int code) {
  return code != kOk && code != kInterrupted && code != kUserError && code != kUsage &&
         code != kDiverged;
}

// What is in run.output before the run is started first. A configuration that cannot be read is
// reported by the run.
std::vector<SavedThen> saved_by_earlier_runs(const TrainArguments& arguments) {
  std::vector<SavedThen> saved;
  try {
    const Config config =
        load_config(arguments.config, arguments.overrides, std::max(1, arguments.ranks));
    if (config.run.output.empty()) return {};
    for (const CheckpointFolder::Entry& entry : checkpoints_of(config.run.output))
      saved.push_back(saved_then(entry));
  } catch (const UserError&) {
  }
  return saved;
}

int run_supervised(TrainArguments arguments) {
  arguments.saved_before = saved_by_earlier_runs(arguments);
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
  train->add_option("--device", arguments->device,
                    "Where to train: cpu, cuda (a card for each rank) or cuda:N (run.device)");
  train->add_option("--memory", arguments->memory,
                    "The most memory that each rank may use, like 80GiB (run.memory)");
  train
      ->add_option("--hardware", arguments->hardware,
                   "The rates of this machine (info --save): the plan predicts how long a step "
                   "takes, and the end compares")
      ->type_name("NAME|FILE");
  auto* resume =
      train
          ->add_option("--resume", arguments->resume,
                       "Go on from the newest whole checkpoint of run.output, or of the folder "
                       "named")
          ->expected(0, 1)
          ->type_name("[FOLDER]");
  train
      ->add_flag("--allow-changes", arguments->allow_changes,
                 "Resume although the configuration would learn something else now")
      ->needs(resume);
  train
      ->add_option("--restarts", arguments->restarts,
                   "Start a failed run again, up to this many times, from its newest checkpoint")
      ->check(at_least(0));
  train->add_flag(
      "--overwrite", arguments->overwrite,
      "Replace a trained model in run.output, once the new run has saved something, and "
      "the file of --trace");
  auto* plan_only = train->add_flag("--plan-only", arguments->plan_only,
                                    "Print the plan (configuration, batch, memory) and stop");
  train
      ->add_option("--trace", arguments->trace,
                   "Write what every lane of every rank did when, for ui.perfetto.dev")
      ->excludes(plan_only);
  auto* quiet =
      train->add_flag("--quiet", arguments->quiet, "No progress, no plan")->excludes(plan_only);
  auto* verbose = train->add_flag("-v,--verbose", arguments->verbose,
                                  "Print the whole configuration in force before the run too");
  verbose->excludes(plan_only)->excludes(quiet);
  train
      ->add_flag("--json", arguments->json,
                 "A JSON summary (or plan) alone on standard output, and no progress")
      ->excludes(verbose);
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
      "So do SIGTERM, SIGHUP and SIGPIPE.\n"
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
