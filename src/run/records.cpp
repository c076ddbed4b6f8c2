#include "run/records.h"

#include <sstream>
#include <utility>

#include "base/file.h"
#include "base/text.h"

namespace onefold {

namespace {

// A run that is resumed at an earlier step writes the steps after it again.
void keep_lines_until(const std::string& path, int64_t step) {
  if (!path_exists(path)) return;
  std::istringstream lines(read_file(path));
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    if (!Json::accept(line)) continue;  // cut off by a kill
    const Json event = Json::parse(line);
    const auto found = event.is_object() ? event.find("step") : event.end();
    const bool later =
        found != event.end() && found->is_number_integer() && found->get<int64_t>() > step;
    if (!later) kept += line + "\n";  // also what others have written there
  }
  write_file(path, kept);
}

}  // namespace

Records::Records(const Config& config, const std::optional<RunFolder>& folder, Warn warn,
                 int64_t step, bool leads, int64_t origin)
    : breakdown_(config.wall_clock_breakdown),
      warn_(std::move(warn)),
      step_samples_(config.batch.global),
      origin_(origin) {
  if (!leads) return;
  if (!config.run.tensorboard_folder.empty()) {
    monitor_board_.emplace(config.run.tensorboard_folder);
    if (step > 0) monitor_board_->restart(step + 1);
  }
  if (!config.run.csv_folder.empty())
    tables_.emplace(config.run.csv_folder, step > 0 ? samples(step) : 0);
  if (!folder) return;
  const std::string path = folder->file("metrics.jsonl");
  if (step > 0) keep_lines_until(path, step);
  lines_.emplace(path, step > 0 ? MetricsWriter::Mode::append : MetricsWriter::Mode::fresh);
  if (!config.run.tensorboard) return;
  board_.emplace(folder->file("tensorboard"));
  if (step > 0) board_->restart(step + 1);
}

void Records::attempt(const std::function<void()>& write) {
  try {
    write();
    failing_ = false;
  } catch (const UserError& error) {
    if (!std::exchange(failing_, true))
      warn_(fmt::format("{}. Training goes on; what is missing is written when it can be",
                        error.what()));
  }
}

void Records::finish() {
  size_t waiting = lines_ ? lines_->waiting_bytes() : 0;
  for (const std::optional<TensorBoardWriter>* board : {&board_, &monitor_board_})
    if (*board) waiting += (*board)->waiting_bytes();
  if (waiting == 0) return;
  try {
    if (lines_) lines_->retry();
    for (std::optional<TensorBoardWriter>* board : {&board_, &monitor_board_})
      if (*board) (*board)->retry();
  } catch (const UserError& error) {
    warn_(fmt::format("{}: the last {} of metrics are lost", error.what(),
                      format_bytes(static_cast<int64_t>(waiting))));
  }
}

void Records::step(const ProgressState& s, double seconds, const VerbTimes& times) {
  Json line = {{"event", "step"},
               {"step", s.step},
               {"loss", s.loss},
               {"gradient_norm", s.gradient_norm},
               {"loss_scale", s.loss_scale},
               {"skipped_steps", s.skipped},
               {"learning_rate", s.learning_rate},
               {"tokens_per_second", s.tokens_per_second},
               {"gemm_fraction", s.gemm_fraction},
               {"seconds", seconds}};
  if (s.clipping.on) {
    line["clip_factor"] = s.clipping.all.factor;
    line["clipped_gradients"] = s.clipping.all.tensors;
    line["clamped_values"] = s.clipping.all.values;
  }
  for (const StepClipping::Part& part : s.clipping.units)
    line["clipping"][part.unit] = {
        {"factor", part.factor}, {"gradients", part.tensors}, {"values", part.values}};
  if (!s.routing.layers.empty()) {
    line["balance_loss"] = s.routing.balance_loss;
    line["z_loss"] = s.routing.z_loss;
  }
  for (const StepRouting::Layer& layer : s.routing.layers)
    line["experts"][layer.unit] = {{"shares", layer.shares}, {"dropped", layer.dropped}};
  if (breakdown_)
    line["wall_clock"] = {{"forward", times.forward},
                          {"backward", times.backward},
                          {"norm", times.squares},
                          {"step", times.step},
                          {"communication", times.communication}};
  attempt([&] {
    if (lines_) lines_->write(line);
    for (std::optional<TensorBoardWriter>* board : {&board_, &monitor_board_})
      if (*board)
        (*board)->scalars(s.step, {{"train/loss", s.loss},
                                   {"train/gradient_norm", s.gradient_norm},
                                   {"train/clip_factor", s.clipping.all.factor},
                                   {"train/learning_rate", s.learning_rate},
                                   {"speed/tokens_per_second", s.tokens_per_second}});
    if (tables_)
      tables_->write(samples(s.step), {{"Train/Samples/train_loss", s.loss},
                                       {"Train/Samples/gradient_norm", s.gradient_norm},
                                       {"Train/Samples/lr", s.learning_rate}});
  });
}

void Records::evaluation(int64_t step, double loss) {
  attempt([&] {
    if (lines_) lines_->write({{"event", "evaluation"}, {"step", step}, {"loss", loss}});
    for (std::optional<TensorBoardWriter>* board : {&board_, &monitor_board_})
      if (*board) (*board)->scalar("validation/loss", step, loss);
    if (tables_) tables_->write(samples(step), {{"Validation/Samples/loss", loss}});
  });
}

}  // namespace onefold
