#include "run/training.h"

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"
#include "base/text.h"
#include "device/rates.h"
#include "inspect/hf_export.h"
#include "inspect/hf_source.h"
#include "inspect/saved_run.h"
#include "run/evaluation.h"
#include "run/traffic.h"

namespace onefold {
namespace {

StepClipping clipping_of(const StepResult& result, const Engine& engine) {
  const auto part = [](const std::string& unit, const ClippedGradients& clipped) {
    return StepClipping::Part{unit, clipped.factor, clipped.tensors, clipped.values};
  };
  const EngineOptions& options = engine.options();
  StepClipping clipping{
      .on = options.clipping > 0 || options.clip_rule.percentile > 0 || options.clip_rule.value > 0,
      .all = part("", result.clipped),
      .units = {}};
  for (size_t u = 0; u < result.clipped_units.size(); ++u)
    clipping.units.push_back(part(engine.model().units[u]->name(), result.clipped_units[u]));
  return clipping;
}

StepRouting routing_of(const StepResult& result, const Engine& engine) {
  StepRouting routing{result.experts.balance_loss, result.experts.z_loss, {}};
  for (const StepExperts::Layer& layer : result.experts.layers)
    routing.layers.push_back({engine.model().units[static_cast<size_t>(layer.unit)]->name(),
                              layer.shares, layer.dropped});
  return routing;
}

VerbTimes difference(const VerbTimes& a, const VerbTimes& b) {
  return {a.forward - b.forward, a.backward - b.backward, a.squares - b.squares, a.step - b.step,
          a.communication - b.communication};
}

// The writer hears of every action, to hold back steps whose unit is not written yet.
EngineOptions with_saving(EngineOptions options, std::optional<CheckpointWriter>& writer) {
  options.before_action = [&writer](const Action& action) {
    if (writer) writer->before(action);
  };
  return options;
}

// Elements of the adapters that training starts from, which must be those of the configuration.
ParameterReader adapter_reader(const Config& config, const ModelSpec& model) {
  const std::string& path = config.lora_adapter;
  const auto adapter = std::make_shared<const AdapterWeights>(open_adapter(path, model.base()));
  if (adapter->lora.rank != model.lora.rank || adapter->lora.scale() != model.lora.scale())
    user_error("lora.adapter: {} has rank {} and alpha {:g}; set lora.rank and lora.alpha to these",
               path, adapter->lora.rank, adapter->lora.alpha);
  if (adapter->model.hidden_size != model.hidden_size)
    user_error("lora.adapter: {} adapts another model", path);
  size_t wanted = 0;
  for (const ParamSpec& param : parameters_of(model)) {
    wanted += param.adapter;
    if (param.adapter && !adapter->values.contains(param.name))
      user_error("lora.adapter: {} has no {}, which lora.targets asks for", path, param.name);
  }
  if (wanted != adapter->values.size())
    user_error("lora.adapter: {} adapts more than lora.targets names: {} matrices, not {}", path,
               adapter->values.size(), wanted);
  return [adapter](const ParamSpec& param, int64_t first, std::span<float> dst) {
    const std::vector<float>& values = adapter->values.at(param.name);
    std::copy_n(values.begin() + first, dst.size(), dst.begin());
  };
}

// Of a Hugging Face folder, or of another run.
std::shared_ptr<const ParameterSource> weights_of(const std::string& folder,
                                                  const ModelSpec& model) {
  if (!path_exists(folder + "/" + kRunModel)) return std::make_shared<HfSource>(folder, model);
  const SavedRun run(folder);
  ModelSpec saved = run.model();
  saved.dropout = model.dropout;  // which no weight depends on
  if (saved.to_json() != model.to_json())
    user_error("model.weights: {} has another model than the configuration", folder);
  return run.weights();
}

// A resumed run's weights come from its checkpoint, a new one's perhaps from a folder. Of a run
// with adapters the checkpoint has them alone.
EngineOptions with_weights(EngineOptions options, const Config& config, const ModelSpec& model,
                           bool resumes) {
  const ParameterReader nothing = [](const ParamSpec&, int64_t, std::span<float>) {};
  const bool adapts = model.lora.enabled();
  if (resumes && !adapts)
    options.initial = nothing;
  else if (!config.model_weights.empty())
    options.initial = reader_of(weights_of(config.model_weights, model));
  if (resumes && adapts)
    options.initial_adapters = nothing;
  else if (!config.lora_adapter.empty())
    options.initial_adapters = adapter_reader(config, model);
  return options;
}

}  // namespace

Training::Training(const Config& config, const RunPlan& plan,
                   std::shared_ptr<Communicator> communicator, const TrainingOptions& options)
    : config_(config),
      plan_(plan),
      signals_(options.signals),
      schedule_(config.schedule, config.learning_rate, plan.steps),
      batches_(*plan.data.train),
      engine_(
          plan.model,
          with_saving(with_weights(plan.options, config, plan.model, !options.resume_from.empty()),
                      checkpoints_),
          std::move(communicator)),
      progress_(config.steps_per_print, options.quiet || engine_.rank() != 0) {
  state_.total_steps = plan.steps;
  if (options.trace) engine_.trace().switch_on();
  if (saves()) checkpoints_.emplace(engine_, CheckpointFolder(config.run.output + "/checkpoints"));
  if (!options.resume_from.empty()) resume_from(options.resume_from);
  // With a folder, write_to() opens them once it is there.
  open_records(leads() && !saves());
}

void Training::write_to(RunFolder folder) {
  folder_ = std::move(folder);
  checkpoints_->folder().discard_all();
  if (first_step_ > 0)
    for (const std::string& path :
         checkpoints_->folder().abandon_after(first_step_, resumed_.passed_over))
      progress_.note(fmt::format("set aside, as the run goes on before it: {}", path));
  // From here on the checkpoints are ahead of the weights that the run's earlier end has left.
  if (first_step_ > 0 && !done()) folder_->replace_weights();
  open_records(leads());
}

void Training::open_records(bool writes) {
  records_.emplace(
      config_, folder_, [this](const std::string& text) { progress_.warn(text); }, state_.step,
      writes, batches_.layout().origin);
}

void Training::resume_from(const std::vector<CheckpointFolder::Entry>& candidates) {
  resumed_ = resume(engine_, candidates);
  const Resumed& resumed = resumed_;
  if (resumed.step > plan_.steps)
    throw AgreedError(
        fmt::format("{} has {} steps behind it, and the run has {}; set run.steps to more",
                    resumed.path, resumed.step, plan_.steps));
  if (leads())
    for (const std::string& remark : resumed.remarks)
      progress_.warn(fmt::format("passed over: {}", remark));
  progress_.note(fmt::format("resumed from {}", resumed.path));
  state_.step = first_step_ = saved_step_ = resumed.step;
  batches_ = batches_.from_origin(resumed.position - resumed.step * config_.batch.global);
}

void Training::run() {
  measure_ceiling();
  engine_.control().exchange("begin", {});  // clocks start together
  begin_ = saved_at_ = now_seconds();
  while (!done()) {
    step();
    agree();
    if (evaluation_due()) evaluate();
    progress_.show(state_, seconds_left());
    if (config_.wall_clock_breakdown) show_times();
    settle_checkpoint(false);
    if (checkpoint_due()) begin_checkpoint();
  }
  if (saves()) save_last();
  records_->finish();
  seconds_ = now_seconds() - begin_;
}

// A signal may reach one process and not the others, and clocks differ: all do the same after the
// same step.
void Training::agree() {
  const double minutes = config_.run.save_minutes;
  const bool due = leads() && minutes > 0 && now_seconds() - saved_at_ >= 60 * minutes;
  const bool stop = signals_ != nullptr && signals_->stop_wanted();
  const bool save = signals_ != nullptr && signals_->take_save_request();
  const double mine[] = {stop ? 1.0 : 0.0, save || due ? 1.0 : 0.0};
  const std::vector<double> all = engine_.control().exchange("agree", mine);
  save_wanted_ = false;
  for (size_t i = 0; i < all.size(); i += 2) {
    interrupted_ |= all[i] > 0;
    save_wanted_ |= all[i + 1] > 0;
  }
}

void Training::begin_checkpoint() {
  settle_checkpoint(true);  // of the one before, if it is still under way
  saved_at_ = now_seconds();
  retry_step_ = -1;
  stalled_before_ = checkpoints_->stalled_seconds();
  checkpoints_->begin();
}

// Concludes the checkpoint under way once all ranks have written their files.
void Training::settle_checkpoint(bool wait) {
  if (!checkpoints_ || !checkpoints_->active()) return;
  if (wait) checkpoints_->wait();
  const double mine = checkpoints_->done() ? 1 : 0;
  double written = 0;
  for (const double of_rank : engine_.control().exchange("checkpoint written", {&mine, 1}))
    written += of_rank;
  if (written < engine_.ranks()) return;
  const int64_t step = checkpoints_->step();
  const std::vector<std::string> errors = checkpoints_->finish(run_record());
  if (errors.empty()) {
    failures_ = 0;
    saved_step_ = step;
    drop_replaced();
    if (leads())
      for (const std::string& problem :
           checkpoints_->folder().prune(step, config_.run.keep_last, config_.run.keep_every))
        progress_.warn(fmt::format("an old checkpoint stays: {}", problem));
    const double seconds = checkpoints_->seconds();
    progress_.note(
        fmt::format("checkpoint of step {}: {} in {:.1f}s, behind training but for {:.2f}s", step,
                    format_bytes(checkpoints_->bytes()), seconds,
                    checkpoints_->stalled_seconds() - stalled_before_));
    return;
  }
  if (config_.run.stop_if_unsaved)
    user_error("the checkpoint of step {} could not be written: {} (run.save_failures is \"stop\")",
               step, join(errors, "; "));
  ++failures_;
  retry_step_ = state_.step + (int64_t{1} << std::min<int64_t>(failures_, 10));
  if (leads())
    progress_.warn(fmt::format("the checkpoint of step {} could not be written: {}. {}", step,
                               join(errors, "; "),
                               done() ? "Trying again"
                                      : fmt::format("Training goes on; it is tried again after "
                                                    "step {}",
                                                    retry_step_)));
}

// The run has a checkpoint of its own: what it replaces is no longer the only thing to go back to.
void Training::drop_replaced() {
  if (!folder_ || std::exchange(replaced_dropped_, true)) return;
  for (const std::string& problem : folder_->drop_replaced())
    progress_.warn(fmt::format("of the run that was replaced something stays: {}", problem));
}

// The end of a run is the one checkpoint that cannot be left for later.
void Training::save_last() {
  settle_checkpoint(true);
  constexpr int kTries = 3;
  for (int tried = 0; saved_step_ != state_.step && tried < kTries; ++tried) {
    if (tried > 0) std::this_thread::sleep_for(std::chrono::seconds(1));
    begin_checkpoint();
    settle_checkpoint(true);
  }
  if (saved_step_ != state_.step)
    user_error("the last checkpoint, of step {}, could not be written to {}; {}", state_.step,
               checkpoints_->folder().path(),
               saved_step_ > 0 ? fmt::format("that of step {} is there", saved_step_)
                               : std::string("nothing was saved"));
  if (folder_)
    folder_->save_weights(engine_);
  else
    // Rank 0 needs the shards.
    engine_.state().for_each_saved(engine_.channel(Lane::gather),
                                   [](const ParamSpec&, std::span<const float>) {});
  drop_replaced();  // also where a finished checkpoint was resumed, and there was nothing to save
}

// What a manifest says about the run it belongs to.
Json Training::run_record() const {
  const int64_t step = checkpoints_->step();
  Json record = {{"onefold", ONEFOLD_VERSION},
                 {"ranks", engine_.ranks()},
                 {"stage", config_.zero.stage},
                 {"total_steps", plan_.steps},
                 {"position", batches_.layout().position(step)},
                 {"data",
                  {{"fingerprint", plan_.data.fingerprint},
                   {"xxh3", plan_.data.hash.empty() ? Json() : Json(plan_.data.hash)},
                   {"sequences", batches_.sequences().count()}}},
                 {"model", plan_.model.to_json()},
                 {"configuration", config_.effective()}};
  if (plan_.lora) record["lora"] = plan_.lora->to_json();
  return record;
}

double Training::mean_step_seconds() const {
  const int64_t later = state_.step - first_step_ - 1;
  return later > 0 ? later_seconds_ / static_cast<double>(later) : 0;
}

double Training::seconds_left() const {
  return static_cast<double>(plan_.steps - state_.step) * (now_seconds() - begin_) /
         static_cast<double>(state_.step - first_step_);
}

void Training::step() {
  const double begin = now_seconds();
  const VerbTimes times_before = engine_.times();
  const StepRates rates = schedule_.rates(engine_.updates_done());
  state_.learning_rate = rates.learning_rate;
  StepResult result;
  try {
    result = train_step(engine_, batches_, rates);
  } catch (const DivergedError& error) {
    // What is being written is of the step before, and still unchanged.
    settle_checkpoint(true);
    if (saved_step_ == 0) throw;
    throw DivergedError(fmt::format("{}. {} has a checkpoint of step {}", error.what(),
                                    config_.run.output, saved_step_));
  }
  const double seconds = now_seconds() - begin;
  if (state_.step > first_step_) later_seconds_ += seconds;
  step_seconds_ = step_seconds_ == 0 ? seconds : 0.9 * step_seconds_ + 0.1 * seconds;
  ++state_.step;
  state_.loss = result.loss;
  state_.gradient_norm = result.gradient_norm;
  state_.loss_scale = result.loss_scale;
  state_.skipped = engine_.loss_scale().state().skipped;
  state_.clipping = clipping_of(result, engine_);
  state_.routing = routing_of(result, engine_);
  if (result.skipped)
    progress_.note(fmt::format(
        "step {} is skipped: its gradients are not finite; the loss scale is {:g}, {:g} from here "
        "on",
        state_.step, result.loss_scale, engine_.loss_scale().scale()));
  state_.tokens_per_second = static_cast<double>(step_tokens()) / step_seconds_;
  state_.gemm_fraction = state_.tokens_per_second *
                         plan_.model.flops_per_token(config_.data.sequence_length) / 1e9 /
                         gemm_gflops_;
  state_.memory_bytes = current_rss_bytes();
  records_->step(state_, seconds, difference(engine_.times(), times_before));
}

void Training::evaluate() {
  state_.validation_loss = sum_losses(engine_, *plan_.data.validation).mean();
  records_->evaluation(state_.step, state_.validation_loss);
  measure_ceiling();
}

// Again and again, and the best counts: one measurement on a busy machine would flatter the run.
// All ranks measure at once, as they compute.
void Training::measure_ceiling() {
  // A card does not slow down with its neighbours, and has no memory to spare later.
  if (gemm_gflops_ > 0 && !engine_.device().memory_is_the_hosts()) return;
  const double mine =
      measure_product_gflops(engine_.device(), engine_.options().precision.compute, 1);
  double sum = 0;
  for (const double of_rank : engine_.control().exchange("measure", {&mine, 1})) sum += of_rank;
  gemm_gflops_ = std::max(gemm_gflops_, sum);
}

void Training::show_times() {
  if (state_.step % config_.steps_per_print != 0 && !done()) return;
  const VerbTimes t = difference(engine_.times(), shown_times_);
  shown_times_ = engine_.times();
  std::string text = fmt::format(
      "  time since the last line: forward {:.2f}s  backward {:.2f}s  norm {:.2f}s  step {:.2f}s",
      t.forward, t.backward, t.squares, t.step);
  if (engine_.ranks() > 1) text += fmt::format("  communication {:.2f}s", t.communication);
  progress_.note(text);
}

int64_t Training::planned_peak() const {
  return plan_.rank.place_peaks[static_cast<size_t>(engine_.pipeline().place)];
}

Json Training::summary() {
  const int64_t tokens = step_tokens() * (state_.step - first_step_);
  const Device::DriverMemory driver = engine_.device().driver_memory();
  return {{"steps", state_.step},
          {"new_steps", state_.step - first_step_},
          {"resumed_from_step", first_step_},
          {"passed_over", resumed_.remarks},
          {"interrupted", interrupted_},
          {"loss", state_.loss},
          {"validation_loss", state_.validation_loss >= 0 ? Json(state_.validation_loss) : Json()},
          {"seconds", seconds_},
          {"tokens", tokens},
          {"tokens_per_second", static_cast<double>(tokens) / seconds_},
          {"step_seconds", mean_step_seconds()},
          {"predicted_step_seconds",
           plan_.rank.predicted ? Json(plan_.rank.predicted->seconds) : Json()},
          {"gemm_gflops", gemm_gflops_},
          {"ranks", engine_.ranks()},
          {"planned_peak_bytes", planned_peak()},
          {"ledger_peak_bytes", engine_.ledger().peak_bytes()},
          {"mapped_bytes", driver.mapped_bytes},
          {"driver_bytes", driver.used_bytes},
          {"peak_rss_bytes", peak_rss_bytes()},
          {"communication", traffic_json(engine_)},
          {"checkpoint_stall_seconds", checkpoints_ ? checkpoints_->stalled_seconds() : 0.0},
          {"output", config_.run.output}};
}

std::string Training::report() {
  const std::string earlier =
      first_step_ > 0 ? fmt::format(" ({} since it was resumed)", state_.step - first_step_) : "";
  std::string text =
      fmt::format("\n{}{} step{}{} in {}; {}planned peak {}, measured {}, resident {}\n{}{}{}",
                  interrupted_ ? "interrupted after " : "", state_.step,
                  state_.step == 1 ? "" : "s", earlier, format_duration(seconds_),
                  engine_.ranks() == 1  ? ""
                  : plan_.rank.staged() ? "on ranks at the first place "
                                        : "on each rank ",
                  format_bytes(planned_peak()), format_bytes(engine_.ledger().peak_bytes()),
                  format_bytes(peak_rss_bytes()), driver_text(engine_.device().driver_memory()),
                  engine_.ledger().table(), traffic_table(engine_));
  if (plan_.rank.predicted && mean_step_seconds() > 0)
    text += fmt::format("a step was predicted to take {:.3f}s, and took {:.3f}s ({:+.0f} %)\n",
                        plan_.rank.predicted->seconds, mean_step_seconds(),
                        100 * (mean_step_seconds() / plan_.rank.predicted->seconds - 1));
  if (!folder_) return text + "nothing was saved: the configuration names no run.output\n";
  const bool converses = config_.data.train.format == DataFormat::kChat;
  return text + fmt::format("saved to {0}; try it with: onefold generate {0} {1}\n",
                            folder_->path(), converses ? "--chat" : "--prompt '...'");
}

std::vector<RankTrace> Training::collect_trace() {
  const RankTrace mine = rank_trace(engine_, begin_);
  std::vector<RankTrace> all;
  for (const std::string& text : engine_.control().collect("trace", trace_to_text(mine)))
    if (leads()) all.push_back(trace_from_text(text));
  return all;
}

}  // namespace onefold
