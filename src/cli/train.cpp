// onefold train: the whole story of a run, top to bottom.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/text.h"
#include "cli/cli.h"
#include "config/config.h"
#include "kernels/probe.h"
#include "run/json_text.h"
#include "run/plan.h"
#include "run/progress.h"
#include "run/records.h"
#include "run/run_folder.h"
#include "run/signals.h"

namespace onefold::cli {
namespace {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  bool overwrite = false, json = false, quiet = false, plan_only = false;
};

VerbTimes difference(const VerbTimes& a, const VerbTimes& b) {
  return {a.forward - b.forward, a.backward - b.backward, a.norm - b.norm, a.step - b.step};
}

// A run under way: the engine, and all that watches it.
class Training {
 public:
  Training(const Config& config, const RunPlan& plan, std::optional<RunFolder> folder, bool quiet)
      : config_(config),
        plan_(plan),
        folder_(std::move(folder)),
        schedule_(config.schedule, config.learning_rate, plan.steps),
        engine_(plan.model, plan.options),
        records_(config, folder_),
        progress_(config.steps_per_print, quiet) {
    state_.total_steps = plan.steps;
  }

  // To the last step, or to the one during which a signal came.
  void run() {
    const StopSignals signals;
    measure_ceiling();
    begin_ = now_seconds();
    while (!done()) {
      step();
      interrupted_ = signals.stop_wanted();
      if (evaluation_due()) evaluate();
      progress_.show(state_, seconds_left());
      if (config_.wall_clock_breakdown) show_times();
      if (save_due()) save();
    }
    seconds_ = now_seconds() - begin_;
  }

  bool interrupted() const { return interrupted_; }
  Json summary();
  std::string report();

 private:
  void step();
  void evaluate();
  void measure_ceiling();
  void show_times();
  void save();

  bool done() const { return interrupted_ || state_.step == plan_.steps; }
  // Not after an interruption: whoever asked to stop waits for the weights.
  bool evaluation_due() const {
    const bool due = state_.step % std::max<int64_t>(1, config_.run.eval_every) == 0;
    return plan_.data.validation && !interrupted_ && (due || done());
  }
  bool save_due() const {
    const int64_t every = config_.run.save_every;
    return folder_ && (done() || (every > 0 && state_.step % every == 0));
  }
  int64_t step_tokens() const { return config_.batch.global * config_.data.sequence_length; }
  double seconds_left() const {
    return static_cast<double>(plan_.steps - state_.step) * (now_seconds() - begin_) /
           static_cast<double>(state_.step);
  }

  const Config& config_;
  const RunPlan& plan_;
  const std::optional<RunFolder> folder_;
  const Schedule schedule_;
  Engine engine_;
  double gemm_gflops_ = 0;  // the best rate measured so far
  Records records_;
  Progress progress_;
  ProgressState state_;
  double begin_ = 0, seconds_ = 0;
  double step_seconds_ = 0;  // smoothed
  VerbTimes shown_times_;
  int64_t saved_step_ = 0;
  bool interrupted_ = false;
};

void Training::step() {
  const double begin = now_seconds();
  const VerbTimes times_before = engine_.times();
  state_.learning_rate = schedule_.rate(state_.step);
  StepResult result;
  try {
    result = train_step(engine_, *plan_.data.train, state_.learning_rate);
  } catch (const DivergedError& error) {
    if (saved_step_ == 0) throw;
    throw DivergedError(fmt::format("{}. {} holds the weights of step {}", error.what(),
                                    folder_->path(), saved_step_));
  }
  const double seconds = now_seconds() - begin;
  step_seconds_ = step_seconds_ == 0 ? seconds : 0.9 * step_seconds_ + 0.1 * seconds;
  ++state_.step;
  state_.loss = result.loss;
  state_.gradient_norm = result.gradient_norm;
  state_.tokens_per_second = static_cast<double>(step_tokens()) / step_seconds_;
  state_.gemm_fraction = state_.tokens_per_second *
                         plan_.model.flops_per_token(config_.data.sequence_length) / 1e9 /
                         gemm_gflops_;
  state_.memory_bytes = current_rss_bytes();
  records_.step(state_, seconds, difference(engine_.times(), times_before));
}

void Training::evaluate() {
  state_.validation_loss = validation_loss(engine_, *plan_.data.validation);
  records_.evaluation(state_.step, state_.validation_loss);
  measure_ceiling();
}

// Again and again, and the best counts: one measurement on a busy machine would flatter the run.
void Training::measure_ceiling() {
  gemm_gflops_ = std::max(gemm_gflops_, measure_gemm_gflops(engine_.pool(), 1));
}

void Training::show_times() {
  if (state_.step % config_.steps_per_print != 0 && !done()) return;
  const VerbTimes t = difference(engine_.times(), shown_times_);
  shown_times_ = engine_.times();
  progress_.note(fmt::format(
      "  time since the last line: forward {:.2f}s  backward {:.2f}s  norm {:.2f}s  step {:.2f}s",
      t.forward, t.backward, t.norm, t.step));
}

void Training::save() {
  folder_->save_weights(engine_);
  saved_step_ = state_.step;
}

Json Training::summary() {
  const int64_t tokens = step_tokens() * state_.step;
  return {{"steps", state_.step},
          {"interrupted", interrupted_},
          {"loss", state_.loss},
          {"validation_loss", state_.validation_loss >= 0 ? Json(state_.validation_loss) : Json()},
          {"seconds", seconds_},
          {"tokens", tokens},
          {"tokens_per_second", static_cast<double>(tokens) / seconds_},
          {"gemm_gflops", gemm_gflops_},
          {"planned_peak_bytes", plan_.peak_bytes},
          {"ledger_peak_bytes", engine_.ledger().peak_bytes()},
          {"peak_rss_bytes", peak_rss_bytes()},
          {"output", config_.run.output}};
}

std::string Training::report() {
  std::string text =
      fmt::format("\n{}{} step{} in {}; planned peak {}, measured {}, resident {}\n{}",
                  interrupted_ ? "interrupted after " : "", state_.step,
                  state_.step == 1 ? "" : "s", format_duration(seconds_),
                  format_bytes(plan_.peak_bytes), format_bytes(engine_.ledger().peak_bytes()),
                  format_bytes(peak_rss_bytes()), engine_.ledger().table());
  if (!folder_) return text + "nothing was saved: the configuration names no run.output\n";
  return text + fmt::format("saved to {0}; try it with: onefold generate {0} --prompt '...'\n",
                            folder_->path());
}

// Without run.memory the limit is the machine. Better now than by the system's out-of-memory
// killer.
void require_available(const RunPlan& plan) {
  const int64_t available = memory_bytes("MemAvailable");
  if (available > 0 && plan.peak_bytes > available)
    user_error(
        "this run needs {} of memory and the machine has {} left; set run.memory to that to be "
        "told what would fit",
        format_bytes(plan.peak_bytes), format_bytes(available));
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

std::optional<RunFolder> create_folder(const Config& config, const RunPlan& plan, bool overwrite) {
  if (config.run.output.empty()) return std::nullopt;
  const std::optional<Tokenizer>& tokenizer = plan.data.tokenizer;
  return RunFolder::create(config.run.output, config, plan.model, tokenizer ? &*tokenizer : nullptr,
                           overwrite);
}

int run_train(const TrainArguments& arguments) {
  const Config config = load_config(arguments.config, arguments.overrides);
  config.require_training();
  if (arguments.plan_only) return print_plan(config, plan_run(config), arguments.json);

  const bool quiet = arguments.quiet || arguments.json;
  // Before the data is read, which can take long.
  if (!config.run.output.empty()) RunFolder::require_free(config.run.output, arguments.overwrite);
  const RunPlan plan = plan_run(config);
  if (!quiet) fmt::print(stderr, "{}\n", full_plan(config, plan));
  require_available(plan);

  Training training(config, plan, create_folder(config, plan, arguments.overwrite), quiet);
  training.run();
  if (arguments.json)
    print_json(training.summary());
  else if (!quiet)
    fmt::print(stderr, "{}", training.report());
  return training.interrupted() ? kInterrupted : kOk;
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
  train->add_flag("--overwrite", arguments->overwrite, "Replace a trained model in run.output");
  auto* plan_only = train->add_flag("--plan-only", arguments->plan_only,
                                    "Print the plan (configuration, batch, memory) and stop");
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
      "Ctrl-C finishes the step, saves the weights and exits with 130; a second one ends at once.");
  train->callback([arguments, &run] { run = [arguments] { return run_train(*arguments); }; });
}

}  // namespace onefold::cli
