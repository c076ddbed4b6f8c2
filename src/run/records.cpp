#include "run/records.h"

namespace onefold {

Records::Records(const Config& config, const std::optional<RunFolder>& folder)
    : breakdown_(config.wall_clock_breakdown) {
  if (!folder) return;
  lines_.emplace(folder->file("metrics.jsonl"), MetricsWriter::Mode::fresh);
  if (config.run.tensorboard) board_.emplace(folder->file("tensorboard"));
}

void Records::step(const ProgressState& s, double seconds, const VerbTimes& times) {
  if (!lines_) return;
  Json line = {{"event", "step"},
               {"step", s.step},
               {"loss", s.loss},
               {"gradient_norm", s.gradient_norm},
               {"learning_rate", s.learning_rate},
               {"tokens_per_second", s.tokens_per_second},
               {"gemm_fraction", s.gemm_fraction},
               {"seconds", seconds}};
  if (breakdown_)
    line["wall_clock"] = {{"forward", times.forward},
                          {"backward", times.backward},
                          {"norm", times.norm},
                          {"step", times.step},
                          {"communication", times.communication}};
  lines_->write(line);
  if (board_)
    board_->scalars(s.step, {{"train/loss", s.loss},
                             {"train/gradient_norm", s.gradient_norm},
                             {"train/learning_rate", s.learning_rate},
                             {"speed/tokens_per_second", s.tokens_per_second}});
}

void Records::evaluation(int64_t step, double loss) {
  if (lines_) lines_->write({{"event", "evaluation"}, {"step", step}, {"loss", loss}});
  if (board_) board_->scalar("validation/loss", step, loss);
}

}  // namespace onefold
