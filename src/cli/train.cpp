// onefold train: the whole story of a run, top to bottom.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/text.h"
#include "cli/cli.h"
#include "config/config.h"
#include "engine/fit.h"
#include "io/metrics.h"
#include "io/tensorboard.h"
#include "kernels/probe.h"
#include "run/progress.h"
#include "run/run_folder.h"
#include "run/session.h"
#include "run/signals.h"

namespace onefold::cli {
namespace {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  bool overwrite = false, json = false, quiet = false, dry = false;
};

void print_plan(const Config& config, const ModelSpec& spec, const RunData& data, const Engine& engine, Ledger& planned,
                int64_t steps) {
  const BatchConfig& batch = config.batch;
  fmt::print(stderr, "model    {}: {} parameters, {} layers, hidden {}, vocabulary {}\n", config.model_source,
             format_count(spec.parameter_count()), spec.num_layers, spec.hidden_size, spec.vocab_size);
  fmt::print(stderr, "data     {} training tokens, {} held out, {} document{}\n", format_count(data.train_tokens),
             format_count(data.validation_tokens), format_count(data.documents), data.documents == 1 ? "" : "s");
  fmt::print(stderr, "batch    {} sequences of {} tokens = {} micro x {} accumulated x {} rank{}\n", batch.global,
             config.data.sequence_length, batch.micro, batch.accumulation, batch.world_size, batch.world_size == 1 ? "" : "s");
  fmt::print(stderr, "run      {} steps = {} tokens, {:.2f} epochs, on {} threads\n", steps,
             format_count(steps * batch.global * config.data.sequence_length), data.train->epochs(steps), engine.threads());
  fmt::print(stderr, "memory   {} planned: parameters {}, gradients {}, optimizer {}, activations {}, workspace {}\n\n",
             format_bytes(planned.peak_bytes()), format_bytes(planned.peak_bytes(Kind::parameters)),
             format_bytes(planned.peak_bytes(Kind::gradients)), format_bytes(planned.peak_bytes(Kind::optimizer)),
             format_bytes(planned.peak_bytes(Kind::activations)), format_bytes(planned.peak_bytes(Kind::workspace)));
}

// Metrics of a run: metrics.jsonl always, TensorBoard if asked for. Does nothing without a folder.
class Records {
 public:
  Records(const Config& config, const std::optional<RunFolder>& folder) {
    if (!folder) return;
    lines_.emplace(folder->file("metrics.jsonl"), MetricsWriter::Mode::fresh);
    if (config.run.tensorboard) board_.emplace(folder->file("tensorboard"));
  }
  void step(const ProgressState& s, double seconds, const VerbTimes* times) {
    if (!lines_) return;
    Json line = {{"event", "step"},           {"step", s.step},
                 {"loss", s.loss},            {"gradient_norm", s.gradient_norm},
                 {"learning_rate", s.learning_rate}, {"tokens_per_second", s.tokens_per_second},
                 {"gemm_fraction", s.gemm_fraction}, {"seconds", seconds}};
    if (times)
      line["wall_clock"] = {{"forward", times->forward}, {"backward", times->backward}, {"norm", times->norm},
                            {"step", times->step}};
    lines_->write(line);
    if (board_)
      board_->scalars(s.step, {{"train/loss", s.loss},
                               {"train/gradient_norm", s.gradient_norm},
                               {"train/learning_rate", s.learning_rate},
                               {"speed/tokens_per_second", s.tokens_per_second}});
  }
  void evaluation(int64_t step, double loss) {
    if (lines_) lines_->write({{"event", "evaluation"}, {"step", step}, {"loss", loss}});
    if (board_) board_->scalar("validation/loss", step, loss);
  }

 private:
  std::optional<MetricsWriter> lines_;
  std::optional<TensorBoardWriter> board_;
};

VerbTimes difference(const VerbTimes& a, const VerbTimes& b) {
  return {a.forward - b.forward, a.backward - b.backward, a.norm - b.norm, a.step - b.step};
}

int run_train(const TrainArguments& arguments) {
  const Config config = load_config(arguments.config, arguments.overrides);
  config.require_training();
  const bool quiet = arguments.quiet || arguments.json;
  const StopSignals signals;

  const RunData data = open_data(config);
  const ModelSpec spec = settled_model(config, data);
  const EngineOptions options = engine_options(config);
  require_fits(spec, options);
  const int64_t steps = config.total_steps(data.train->sequences().count());
  const Schedule schedule(config.schedule, config.learning_rate, steps);
  const auto plan = Engine::plan(spec, options);
  if (!quiet) {
    fmt::print(stderr, "effective configuration:\n{}\n\n", config.effective().dump(2));
    print_plan(config, spec, data, *plan, plan->ledger(), steps);
  }
  if (arguments.dry) return kOk;

  std::optional<RunFolder> folder;
  if (!config.run.output.empty())
    folder = RunFolder::create(config.run.output, config, spec, data.tokenizer ? &*data.tokenizer : nullptr,
                               arguments.overwrite);
  double gemm_gflops = 0;
  {
    ThreadPool pool(config.run.threads);
    gemm_gflops = measure_gemm_gflops(pool, 3);
  }
  Engine engine(spec, options);
  Records records(config, folder);
  Progress progress(config.steps_per_print, quiet);
  ProgressState state{.total_steps = steps};
  const double tokens = static_cast<double>(config.batch.global * config.data.sequence_length);
  const double begin = now_seconds();
  double step_seconds = 0;  // smoothed
  VerbTimes printed_times{};
  bool interrupted = false;
  for (int64_t step = 0; step < steps && !interrupted; ++step) {
    const double step_begin = now_seconds();
    const VerbTimes times_before = engine.times();
    state.learning_rate = schedule.rate(step);
    const StepResult result = train_step(engine, *data.train, state.learning_rate);
    const double seconds = now_seconds() - step_begin;
    step_seconds = step_seconds == 0 ? seconds : 0.9 * step_seconds + 0.1 * seconds;
    state.step = step + 1;
    state.loss = result.loss;
    state.gradient_norm = result.gradient_norm;
    state.tokens_per_second = tokens / step_seconds;
    state.gemm_fraction =
        state.tokens_per_second * spec.flops_per_token(config.data.sequence_length) / 1e9 / gemm_gflops;
    state.memory_bytes = current_rss_bytes();
    const VerbTimes step_times = difference(engine.times(), times_before);
    records.step(state, seconds, config.wall_clock_breakdown ? &step_times : nullptr);
    interrupted = signals.stop_wanted();
    const bool last = state.step == steps || interrupted;
    if (data.validation && (state.step % config.run.eval_every == 0 || last)) {
      state.validation_loss = validation_loss(engine, *data.validation);
      records.evaluation(state.step, state.validation_loss);
    }
    progress.show(state, static_cast<double>(steps - state.step) * (now_seconds() - begin) / static_cast<double>(state.step));
    if (config.wall_clock_breakdown && (state.step % config.steps_per_print == 0 || last)) {
      const VerbTimes t = difference(engine.times(), printed_times);
      printed_times = engine.times();
      progress.note(fmt::format("  time since the last line: forward {:.2f}s  backward {:.2f}s  norm {:.2f}s  step {:.2f}s",
                                t.forward, t.backward, t.norm, t.step));
    }
    if (folder && (last || (config.run.save_every > 0 && state.step % config.run.save_every == 0)))
      folder->save_weights(engine);
  }
  progress.finish();

  const double seconds = now_seconds() - begin;
  const Ledger& ledger = engine.ledger();
  if (arguments.json) {
    print_json({{"steps", state.step},
                {"interrupted", interrupted},
                {"loss", state.loss},
                {"validation_loss", state.validation_loss >= 0 ? Json(state.validation_loss) : Json()},
                {"seconds", seconds},
                {"tokens", static_cast<int64_t>(tokens) * state.step},
                {"tokens_per_second", tokens * static_cast<double>(state.step) / seconds},
                {"gemm_gflops", gemm_gflops},
                {"planned_peak_bytes", plan->ledger().peak_bytes()},
                {"ledger_peak_bytes", ledger.peak_bytes()},
                {"peak_rss_bytes", peak_rss_bytes()},
                {"output", config.run.output}});
  } else if (!arguments.quiet) {
    fmt::print(stderr, "\n{}{} steps in {}; planned peak {}, measured {}, resident {}\n{}",
               interrupted ? "interrupted after " : "", state.step, format_duration(seconds),
               format_bytes(plan->ledger().peak_bytes()), format_bytes(ledger.peak_bytes()), format_bytes(peak_rss_bytes()),
               engine.ledger().table());
    if (folder) fmt::print(stderr, "saved to {}; continue with: onefold generate {} --prompt '...'\n", folder->path(), folder->path());
  }
  return interrupted ? kInterrupted : kOk;
}

}  // namespace

void add_train(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* train = app.add_subcommand("train", "Train a model as a configuration file says");
  train->add_option("config", arguments->config, "The configuration (JSON; every key: docs/config.md)")->required();
  train->add_option("--set", arguments->overrides, "Override a key: --set run.steps=100 --set optimizer.params.lr=3e-4")
      ->allow_extra_args(false);
  train->add_flag("--overwrite", arguments->overwrite, "Replace a trained model in run.output");
  train->add_flag("--plan-only", arguments->dry, "Print the plan (configuration, batch, memory) and stop");
  train->add_flag("--quiet", arguments->quiet, "No progress, no plan");
  train->add_flag("--json", arguments->json, "A JSON summary on standard output instead of text");
  train->footer(
      "A minimal configuration:\n"
      "  {\"model\": \"gpt2-tiny\", \"train_batch_size\": 8, \"gradient_accumulation_steps\": 1,\n"
      "   \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}},\n"
      "   \"data\": {\"train\": \"book.txt\", \"sequence_length\": 64},\n"
      "   \"run\": {\"output\": \"runs/first\", \"steps\": 200}}\n\n"
      "Ctrl-C finishes the step, saves the weights and exits with 130; a second Ctrl-C ends at once.");
  train->callback([arguments, &run] { run = [arguments] { return run_train(*arguments); }; });
}

}  // namespace onefold::cli
