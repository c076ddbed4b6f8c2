// Learning-rate schedules, counted in optimizer steps. A schedule is a pure function of the step: a
// resumed run, or one that is only planned, sees the same rates.
//
// Ours have a linear warm-up, lr * (step + 1) / (warmup_steps + 1), so that no step is wasted at 0
// and step number `warmup_steps` is the first at the full rate; then, with p running from 0 there
// to 1 at total_steps (one past the last step) and m = min_lr_ratio:
//   constant   lr
//   linear     lr * (m + (1 - m) * (1 - p))
//   cosine     lr * (m + (1 - m) * (1 + cos(pi * p)) / 2)
//   wsd        lr, until decay_steps before the end; then down to m * lr by decay_type: linear,
//   cosine, or
//              sqrt (1 - sqrt(p)), with p running over the decay alone
// DeepSpeed's schedules give the rates that DeepSpeed puts
// into the optimizer. It advances its schedule after the optimizer step, so step s runs at its
// "last batch iteration" s - 1, and step 0 at the lowest rate of the warm-up (WarmupCosineLR: at
// 0). OneCycle and LRRangeTest have no warm-up; the header of their structs says what they do.
#pragma once

#include <cstdint>

#include "optim/optimizer.h"

namespace onefold {

enum class ScheduleType : uint8_t {
  constant,
  linear,
  cosine,
  wsd,
  warmup_lr,         // DeepSpeed's
  warmup_decay_lr,   // DeepSpeed's
  warmup_cosine_lr,  // DeepSpeed's
  one_cycle,         // DeepSpeed's
  lr_range_test,     // DeepSpeed's
};
enum class DecayType : uint8_t { linear, cosine, sqrt };

// Up from min_lr to the top in first_steps and down again in second_steps, in as many stairs as
// said or (0) without; then min_lr / (1 + decay_lr_rate * n / decay_steps) at the n-th step after.
// Adam's first beta goes the other way, from max_momentum to min_momentum and back, and the second
// is 0.99 throughout; but the very first step has min_momentum, as DeepSpeed leaves it.
struct OneCycleConfig {
  double min_lr = 0;
  int64_t first_steps = 2000, second_steps = 2000;
  int64_t first_stairs = 0, second_stairs = 0;
  int64_t decay_steps = 0;  // 0: no decay
  double decay_lr_rate = 0;
  bool momentum = true;
  double min_momentum = 0.8, max_momentum = 0.9;
  double decay_momentum_rate = 0;  // it grows: max_momentum * (1 + rate * n / decay_steps)
};

// lr * (1 + step_rate * step / step_size), or with stairs step / step_size without its fraction.
struct RangeTestConfig {
  int64_t step_size = 2000;
  double step_rate = 1;
  bool staircase = false;
};

// Which schedule, with which constants. Fields that a type does not use keep their defaults.
struct ScheduleConfig {
  ScheduleType type = ScheduleType::constant;
  int64_t warmup_steps = 0;  // DeepSpeed's: warmup_num_steps
  int64_t total_steps = 0;   // DeepSpeed's: total_num_steps; 0: the run's
  double min_lr_ratio = 0;   // DeepSpeed's: cos_min_ratio
  int64_t decay_steps = 0;   // wsd; 0: a tenth of the total
  DecayType decay_type = DecayType::linear;
  double warmup_min_lr = 0;     // warmup_lr, warmup_decay_lr
  double warmup_min_ratio = 0;  // warmup_cosine_lr
  bool log_warmup = true;       // DeepSpeed's: warmup_type "log", else "linear"
  OneCycleConfig cycle = {};
  RangeTestConfig range_test = {};

  bool is_deepspeed() const { return type >= ScheduleType::warmup_lr; }
  bool cycles_momentum() const { return type == ScheduleType::one_cycle && cycle.momentum; }
};

class Schedule {
 public:
  // `lr` is the rate at the top (lr_range_test: at the first step); `run_steps` the length of the
  // run. Throws UserError (naming scheduler.params...) if warm-up and decay do not fit in the
  // total, or a growing momentum reaches 1 in it.
  Schedule(const ScheduleConfig& config, double lr, int64_t run_steps);

  // The rate of an optimizer step; the first is step 0. Past the total the rate stays where it
  // ended.
  double rate(int64_t step) const;
  // The same with what else the schedule sets.
  StepRates rates(int64_t step) const;
  int64_t total_steps() const { return config_.total_steps; }

 private:
  double ours(int64_t step) const;
  double deepspeed(int64_t step) const;
  double one_cycle(int64_t step) const;
  double range_test(int64_t step) const;
  double first_beta(int64_t step) const;

  ScheduleConfig config_;
  double lr_;
};

}  // namespace onefold
