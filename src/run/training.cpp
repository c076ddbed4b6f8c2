#include "run/training.h"

#include "base/clock.h"
#include "base/process.h"
#include "base/text.h"
#include "kernels/probe.h"
#include "run/signals.h"
#include "run/traffic.h"

namespace onefold {
namespace {

VerbTimes difference(const VerbTimes& a, const VerbTimes& b) {
  return {a.forward - b.forward, a.backward - b.backward, a.norm - b.norm, a.step - b.step,
          a.communication - b.communication};
}

}  // namespace

Training::Training(const Config& config, const RunPlan& plan,
                   std::shared_ptr<Communicator> communicator, std::optional<RunFolder> folder,
                   const TrainingOptions& options)
    : config_(config),
      plan_(plan),
      folder_(std::move(folder)),
      schedule_(config.schedule, config.learning_rate, plan.steps),
      engine_(plan.model, plan.options, std::move(communicator)),
      records_(config, folder_),
      progress_(config.steps_per_print, options.quiet || engine_.rank() != 0) {
  state_.total_steps = plan.steps;
  if (options.trace) engine_.trace().switch_on();
}

void Training::run() {
  const StopSignals signals;
  measure_ceiling();
  engine_.exchange("begin", {});  // clocks start together
  begin_ = now_seconds();
  while (!done()) {
    step();
    interrupted_ = stop_wanted(signals.stop_wanted());
    if (evaluation_due()) evaluate();
    progress_.show(state_, seconds_left());
    if (config_.wall_clock_breakdown) show_times();
    if (save_due()) save();
  }
  seconds_ = now_seconds() - begin_;
}

// A signal may reach one process and not the others: all stop after the same step.
bool Training::stop_wanted(bool here) {
  const double mine = here ? 1 : 0;
  double wanted = 0;
  for (const double of_rank : engine_.exchange("stop", {&mine, 1})) wanted += of_rank;
  return wanted > 0;
}

double Training::seconds_left() const {
  return static_cast<double>(plan_.steps - state_.step) * (now_seconds() - begin_) /
         static_cast<double>(state_.step);
}

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
                                    config_.run.output, saved_step_));
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
// All ranks measure at once, as they compute.
void Training::measure_ceiling() {
  const double mine = measure_gemm_gflops(engine_.pool(), 1);
  double sum = 0;
  for (const double of_rank : engine_.exchange("measure", {&mine, 1})) sum += of_rank;
  gemm_gflops_ = std::max(gemm_gflops_, sum);
}

void Training::show_times() {
  if (state_.step % config_.steps_per_print != 0 && !done()) return;
  const VerbTimes t = difference(engine_.times(), shown_times_);
  shown_times_ = engine_.times();
  std::string text = fmt::format(
      "  time since the last line: forward {:.2f}s  backward {:.2f}s  norm {:.2f}s  step {:.2f}s",
      t.forward, t.backward, t.norm, t.step);
  if (engine_.ranks() > 1) text += fmt::format("  communication {:.2f}s", t.communication);
  progress_.note(text);
}

void Training::save() {
  if (folder_)
    folder_->save_weights(engine_);
  else
    engine_.for_each_parameter([](const ParamSpec&, Tensor) {});  // rank 0 needs the shards
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
          {"ranks", engine_.ranks()},
          {"planned_peak_bytes", plan_.rank.peak_bytes},
          {"ledger_peak_bytes", engine_.ledger().peak_bytes()},
          {"peak_rss_bytes", peak_rss_bytes()},
          {"communication", traffic_json(engine_)},
          {"output", config_.run.output}};
}

std::string Training::report() {
  std::string text = fmt::format(
      "\n{}{} step{} in {}; {}planned peak {}, measured {}, resident {}\n{}{}",
      interrupted_ ? "interrupted after " : "", state_.step, state_.step == 1 ? "" : "s",
      format_duration(seconds_), engine_.ranks() > 1 ? "on each rank " : "",
      format_bytes(plan_.rank.peak_bytes), format_bytes(engine_.ledger().peak_bytes()),
      format_bytes(peak_rss_bytes()), engine_.ledger().table(), traffic_table(engine_));
  if (!folder_) return text + "nothing was saved: the configuration names no run.output\n";
  return text + fmt::format("saved to {0}; try it with: onefold generate {0} --prompt '...'\n",
                            folder_->path());
}

std::vector<RankTrace> Training::collect_trace() {
  RankTrace mine{.rank = engine_.rank()};
  for (const Lane lane : {Lane::compute, Lane::gather, Lane::reduce}) {
    RankTrace::Lane& to = mine.lanes.emplace_back(RankTrace::Lane{lane_name(lane), {}});
    for (const TraceSpan& span : engine_.trace().spans(lane))
      if (span.begin >= begin_)
        to.spans.push_back({span.name, span.begin - begin_, span.end - span.begin, span.bytes});
  }
  std::vector<RankTrace> all;
  for (const std::string& text : engine_.collect("trace", trace_to_text(mine)))
    if (leads()) all.push_back(trace_from_text(text));
  return all;
}

}  // namespace onefold
